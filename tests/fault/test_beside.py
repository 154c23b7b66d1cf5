"""A rollback that fails before its commit, of a program with something that cannot exist twice: the program goes on with it. The next one works."""
import subprocess

import pytest
from programs import COUNT, counted, counts

pytestmark = pytest.mark.timeout(120)

# Has something with a state that the checkpoint saves, and another one after "change". Prints its state now and then, and what is wrong.
PROGRAM = """
import ctypes, fcntl, os, select, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
how = sys.argv[1]

def calls(result):
    assert result >= 0, os.strerror(ctypes.get_errno())
    return result

class Flock:
    def __init__(self): self.file = open("locked", "w"); self.set(False)
    def set(self, changed): fcntl.flock(self.file, fcntl.LOCK_SH if changed else fcntl.LOCK_EX)
    def get(self):
        with open("locked") as other:
            try: fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError: return False
            return True

class Record:
    command = fcntl.F_SETLK
    def __init__(self): self.file = open("locked", "w"); self.set(False)
    def lock(self, kind, start): fcntl.fcntl(self.file, self.command, struct.pack("hhlli4x", kind, 0, start, 5, 0))
    def set(self, changed):
        self.lock(fcntl.F_UNLCK, 10)
        self.lock(fcntl.F_WRLCK, 20 if changed else 10)
    def get(self):
        lines, own = map(str.split, open("/proc/locks")), ":%d" % os.fstat(self.file.fileno()).st_ino
        return [line[-2:] for line in lines if len(line) == 8 and line[1] in ("POSIX", "OFDLCK") and line[5].endswith(own)] != [["10", "14"]]

class Ofd(Record):
    command = 37

class Fifo:
    def __init__(self):
        os.mkfifo("fifo"); self.fd = os.open("fifo", os.O_RDWR | os.O_NONBLOCK); os.write(self.fd, b"saved")
    def set(self, changed): os.read(self.fd, 100); os.write(self.fd, b"changed and longer")
    def get(self):
        text = os.read(self.fd, 100); os.write(self.fd, text); return text != b"saved"

class Queue:
    def __init__(self):
        self.fd = calls(libc.mq_open(b"/pbeam-test-beside", os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o600, None))
        self.send(b"saved")
    def send(self, text): calls(libc.mq_send(self.fd, text, len(text), 0))
    def take(self):
        room = ctypes.create_string_buffer(8192); n = calls(libc.mq_receive(self.fd, room, 8192, None)); return room.raw[:n]
    def set(self, changed): self.take(); self.send(b"changed"); self.send(b"twice")
    def get(self):
        text = self.take(); self.send(text)
        if text == b"saved": return False
        other = self.take(); self.send(other); assert {text, other} == {b"changed", b"twice"}, (text, other)
        return True

class Netlink:
    def __init__(self): self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); self.socket.bind((0, 1)); self.name = self.socket.getsockname()
    def set(self, changed): self.socket.bind((self.name[0], 0x11)); self.changed = True
    def get(self):
        name = self.socket.getsockname(); assert name[0] == self.name[0]; return name[1] == 0x11

class Idle:
    def __init__(self): self.socket = socket.socket(); self.socket.bind(("127.0.0.1", 20727)); self.fd = os.dup(0)
    def set(self, changed): self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    def get(self):
        assert self.socket.getsockname() == ("127.0.0.1", 20727); return bool(self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))

thing = {"flock": Flock, "record": Record, "ofd": Ofd, "fifo": Fifo, "queue": Queue, "netlink": Netlink, "idle": Idle}[how]()
n, changed = 0, False
assert thing.get() is False
while True:
    if os.path.exists("change") and not changed:
        changed = True
        thing.set(True)
    assert thing.get() == changed, (how, changed)
    print(n, "changed" if changed else "saved", flush=True)
    n += 1
    time.sleep(0.01)
"""
KINDS = ["flock", "record", "ofd", "fifo", "queue", "netlink", "idle"]


class Program:
    def __init__(self, host, how):
        self.host, self.fault = host, host.file("fault")
        host.file("program.py", PROGRAM)
        _, self.out = host.detach("python3", "program.py", how, name="has", env={"PBEAM_FAULT": str(self.fault)})
        self.goes_on("saved")
        host.checkpoint("has")
        host.file("change")
        self.goes_on("changed")

    def goes_on(self, state):
        """The program prints its state, which it has compared with the kernel's."""
        count = len(self.out.read_text())
        self.host.wait_until(lambda: self.out.read_text()[count:].count(state + "\n") > 5, what=lambda: f"{state}: {self.out.read_text()[-500:]}")

    def pids(self):
        return {row["vpid"]: row["pid"] for row in self.host.ps()["processes"]}

    def fails(self, point, action):
        before = self.pids()
        self.fault.write_text(f"{point}:{action}\n")
        done = self.host.ctl("rollback", "has", check=False)
        assert done.returncode == 1 and done.stderr.count("\n") == 1, done
        self.fault.write_text("")
        assert self.pids() == before
        self.goes_on("changed")

    def returns(self):
        before = self.pids()
        (self.host.home / "change").unlink()
        self.host.rollback("has")
        assert not set(before.values()) & set(self.pids().values())
        self.goes_on("saved")
        assert "the old processes end before" not in self.host.log() and "error:" not in self.host.log(), self.host.log()


@pytest.mark.parametrize("how", KINDS)
def test_fails(host, how):
    program = Program(host, how)
    for point, action in [("restore-before-run", "fail"), ("restore-before-commit", "fail"), ("restore-before-commit", "kill")]:
        program.fails(point, action)
    program.returns()
    host.kill_programs()
    if how == "queue":
        (host.run(["python3", "-c", "import ctypes; ctypes.CDLL(None).mq_unlink(b'/pbeam-test-beside')"]))


OTHER = """
import fcntl, struct, sys
how, start = sys.argv[1], int(sys.argv[2])
with open("locked", "r+") as file:
    print("asks", flush=True)
    if how == "flock":
        fcntl.flock(file, start)
    else:
        fcntl.lockf(file, fcntl.LOCK_EX, 5, start)
    print("has", flush=True)
    sys.stdin.read()
"""


def other(host, *words):
    """Another program that asks for a lock, and says when it has it."""
    process = host.popen(["python3", "-c", OTHER, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "asks\n"
    return process


def waiting(process):
    """Whether it is in flock() or fcntl(). (/proc/locks leaves out locks whose taker has ended.)"""
    return open(f"/proc/{process.pid}/syscall").read().split()[0] in ("73", "72")


@pytest.mark.parametrize("how,word", [("flock", "1"), ("record", "10")])
def test_locked_by_others(host, how, word):
    """Another program has the lock of the image: the rollback is refused. When that has ended it works."""
    program = Program(host, how)
    taker = other(host, how, word)
    assert taker.stdout.readline() == "has\n"
    before = program.pids()
    done = host.ctl("rollback", "has", check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "another program has locked it now" in done.stderr, done
    assert program.pids() == before
    program.goes_on("changed")
    taker.communicate("")
    program.returns()
    host.kill_programs()


@pytest.mark.parametrize("how", ["flock", "record"])
def test_waited_for(host, how):
    """Another program waits for the lock. It does not get a flock, and would get a record lock: then the rollback is refused."""
    program = Program(host, how)
    program.returns()
    taker = other(host, how, 2 if how == "flock" else 10)
    host.wait_until(lambda: waiting(taker), what="it to wait")
    for _ in range(10 if how == "flock" else 0):
        host.rollback("has")
        assert waiting(taker)
    if how == "record":
        before = program.pids()
        done = host.ctl("rollback", "has", check=False)
        assert done.returncode == 1 and f"process {taker.pid} waits for a record lock" in done.stderr, done
        assert program.pids() == before
    program.goes_on("saved")
    taker.kill()
    taker.wait()
    host.kill_programs()


def test_scip_cannot_attach(host):
    """A tracer of the keeper has the new process before its scip: the rollback fails, and the job is not restored over itself."""
    vpid, out = host.detach(*COUNT, name="count")
    host.wait_until(lambda: counted(out) > 3, what="counting")
    host.checkpoint("count")
    before = host.ps()["processes"][0]["pid"]
    keeper, = host.named("scip-keeper")
    tracer = host.popen(["strace", "-f", "-e", "trace=none", "-p", str(keeper)], stderr=subprocess.PIPE, text=True)
    assert "attached" in tracer.stderr.readline()
    done = host.ctl("rollback", "count", check=False)
    tracer.terminate()
    tracer.communicate()
    assert done.returncode == 1 and "its scip could not attach to it" in done.stderr, done
    assert host.ps()["processes"][0]["pid"] == before
    counts(host, out)
    host.rollback("count")
    counts(host, out)
    host.kill_programs()
