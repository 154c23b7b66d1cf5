"""A rollback for which something is missing that the checkpoint had: it is refused with one sentence, and the same processes go on."""
import subprocess

import pytest

pytestmark = pytest.mark.timeout(120)

# Has something until the file "drop" exists, then counts on without it.
PROGRAM = """
import ctypes, os, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
how, number = sys.argv[1], int(sys.argv[2])
if how == "tcp":
    has = socket.socket(); has.bind(("127.0.0.1", number)); has.listen()
elif how == "abstract":
    has = socket.socket(socket.AF_UNIX); has.bind("\\0pbeam-test-%d" % number); has.listen()
elif how == "sysv":
    has = libc.shmget(number, 4096, 0o1600)
    assert has >= 0
elif how in ("pipe", "descriptors"):
    has = [os.pipe() for _ in range(30)]
else:
    has = libc.inotify_init()
n = 0
while True:
    print(n, flush=True)
    n += 1
    if n and has is not None and os.path.exists("drop"):
        if how in ("tcp", "abstract"):
            has.close()
        elif how == "sysv":
            assert libc.shmctl(has, 0, None) == 0
        elif how == "inotify":
            os.close(has)
        else:
            os.closerange(3, 1000)
        has = None
        print("dropped", flush=True)
    time.sleep(0.01)
"""

# Takes it, says so, and waits.
TAKER = """
import ctypes, fcntl, os, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
how, number, has = sys.argv[1], int(sys.argv[2]), []
if how == "tcp":
    has = socket.socket(); has.bind(("127.0.0.1", number)); has.listen()
elif how == "abstract":
    has = socket.socket(socket.AF_UNIX); has.bind("\\0pbeam-test-%d" % number); has.listen()
elif how == "sysv":
    assert libc.shmget(number, 8192, 0o1600) >= 0
elif how == "pipe":
    while True:
        has.append(os.pipe())
        try:
            fcntl.fcntl(has[-1][0], 1031, 1 << 20)  # F_SETPIPE_SZ
        except PermissionError:
            break
else:
    while libc.inotify_init() >= 0:
        pass
print("taken", flush=True)
time.sleep(100)
"""
NUMBERS = {"tcp": 20719, "abstract": 719, "sysv": 0x719, "inotify": 0, "pipe": 0}


class Program:
    """The job, which had the thing when it was saved and does not have it any more."""

    def __init__(self, host, how, number=0):
        self.host = host
        host.file("program.py", PROGRAM)
        _, self.out = host.detach("python3", "program.py", how, number, name="has")
        host.wait_until(lambda: "3\n" in self.out.read_text(), what="counting")
        host.checkpoint("has")
        host.file("drop")
        host.wait_until(lambda: "dropped" in self.out.read_text(), what="it to be dropped")
        self.before = self.pids()

    def pids(self):
        """The real pids by vpid."""
        return {row["vpid"]: row["pid"] for row in self.host.ps()["processes"]}

    def refuses(self):
        """The rollback fails, and the program goes on as it is."""
        done = self.host.ctl("rollback", "has", check=False)
        assert done.returncode == 1 and done.stderr.count("\n") == 1, done
        assert self.pids() == self.before
        count = len(self.out.read_text())
        self.host.wait_until(lambda: len(self.out.read_text()) > count + 20, what="the program to go on")
        return done.stderr


@pytest.mark.parametrize("how", NUMBERS)
def test_taken(host, how):
    """Another process has taken it meanwhile. When that gives it up the rollback works."""
    program = Program(host, how, NUMBERS[how])
    taker = host.popen(["python3", "-c", TAKER, how, str(NUMBERS[how])], stdout=subprocess.PIPE, text=True)
    assert taker.stdout.readline() == "taken\n"
    program.refuses()
    if how == "sysv":
        host.run(["ipcrm", "-M", hex(NUMBERS[how])])
    taker.kill()
    taker.wait()
    (host.home / "drop").unlink()
    host.rollback("has")
    assert program.pids().keys() == program.before.keys()
    host.kill_programs()
    if how == "sysv":
        host.run(["ipcrm", "-M", hex(NUMBERS[how])])


def test_descriptors(host):
    """The coordinator cannot have as many as the program had."""
    program = Program(host, "descriptors")
    keeper, = host.named("scip-keeper")
    host.run(["prlimit", "--pid", str(keeper), "--nofile=60:60"])
    assert "Too many open files" in program.refuses()
    host.kill_programs()
