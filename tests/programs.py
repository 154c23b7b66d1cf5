"""Small programs that several tests run."""

# Counts into its output: however often it is checkpointed and rolled back, the file holds 0, 1, 2 ... without gap or repetition.
COUNT = ["python3", "-uc", """
import time
n = 0
while True:
    print(n)
    n += 1
    time.sleep(0.02)
"""]

# A tree of three that says its ids, then waits for the file "go" and checks them.
TREE = ["python3", "-uc", """
import os, time
def go():
    while not os.path.exists("go"):
        time.sleep(0.02)
me, parent = os.getpid(), os.getppid()
child = os.fork()
if child == 0:
    own = os.getpid()
    grandchild = os.fork()
    if grandchild == 0:
        go()
        os._exit(11 if os.getppid() == own else 1)
    go()
    pid, status = os.wait()
    os._exit(22 if (pid, os.waitstatus_to_exitcode(status)) == (grandchild, 11) and os.getppid() == me else 2)
print("ids", me, child)
go()
assert (os.getpid(), os.getppid()) == (me, parent), (os.getpid(), os.getppid(), me, parent)
pid, status = os.wait()
assert pid == child and os.waitstatus_to_exitcode(status) == 22, (pid, child, status)
print("pass")
"""]


def counted(path):
    """The numbers COUNT has written, checked to be 0, 1, 2 ..."""
    lines = path.read_text().split("\n")[:-1]
    assert lines == [str(n) for n in range(len(lines))], lines[-50:]
    return len(lines)


def counts(host, path, more=5, timeout=20):
    """Waits until it has gone on by `more`."""
    before = counted(path)
    host.wait_until(lambda: counted(path) >= before + more, timeout, "the program to go on counting")
