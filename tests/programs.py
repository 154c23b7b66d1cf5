"""Small programs that several tests run."""

# Counts into its output file, which holds 0, 1, 2 ... without gap or repetition after any number of rollbacks.
COUNT = ["python3", "-uc", """
import time
n = 0
while True:
    print(n)
    n += 1
    time.sleep(0.02)
"""]

# Writes its ids and counts into the given file.
COUNTER = """
import os, sys, time
out, n = open(sys.argv[1], "a", 1), 0
while True:
    out.write(f"{os.getpid()} {os.getppid()} {os.getpgrp()} {os.getsid(0)} {n}\\n")
    n += 1
    time.sleep(0.01)
"""

# A tree of three processes: writes its ids, waits for the file "go" and checks them.
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
    """Waits until the counter has advanced by `more`."""
    before = counted(path)
    host.wait_until(lambda: counted(path) >= before + more, timeout, "the program to go on counting")


def numbers(path):
    """Checks the output of a COUNTER: its ids never change, its numbers go up by one. Returns ids and number."""
    rows = [[int(word) for word in line.split()] for line in path.read_text().split("\n")[:-1]]
    assert len({tuple(row[:4]) for row in rows}) <= 1, rows[-5:]
    assert [row[4] for row in rows] == list(range(len(rows))), [row[4] for row in rows][-50:]
    return (rows[0][:4] if rows else None), len(rows)


def fill_disk(path):
    """Makes a file that takes all the room that is left."""
    with open(path, "wb", 0) as file:
        for size in (65536, 512):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                pass
