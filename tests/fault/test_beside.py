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

class Segment:
    def __init__(self):
        libc.shmat.restype = ctypes.c_void_p
        self.id = calls(libc.shmget(0x5e000000 + os.getpid(), 3 * 4096, 0o1600))
        self.at = (ctypes.c_char * (3 * 4096)).from_address(libc.shmat(self.id, None, 0)); self.at[0:5] = b"saved"
    def set(self, changed): self.at[0:5] = b"other"; self.at[8192:8196] = b"more"
    def get(self):
        state = self.at[0:5], self.at[8192:8196]
        assert state in ((b"saved", bytes(4)), (b"other", b"more")), state
        return state[0] != b"saved"

class Semaphore:
    def __init__(self): self.id = calls(libc.semget(0x5e000000 + os.getpid(), 2, 0o1600)); self.op(0, 5, 0o10000); self.op(1, 1, 0)
    def op(self, number, n, flags): calls(libc.semop(self.id, struct.pack("hhh", number, n, flags), 1))
    def set(self, changed): self.op(0, -2, 0o10000); self.op(1, 7, 0)
    def get(self):
        values = [libc.semctl(self.id, n, 12) for n in range(2)]
        assert values in ([5, 1], [3, 8]), values
        return values != [5, 1]

class Messages:
    def __init__(self): self.id = calls(libc.msgget(0x5e000000 + os.getpid(), 0o1600)); self.send(b"saved")
    def send(self, text): calls(libc.msgsnd(self.id, struct.pack("l", 1) + text, len(text), 0))
    def take(self):
        room = ctypes.create_string_buffer(100); n = calls(libc.msgrcv(self.id, room, 92, 0, 0o4000)); return room.raw[8:8 + n]
    def set(self, changed): self.take(); self.send(b"changed")
    def get(self):
        text = self.take(); self.send(text); assert text in (b"saved", b"changed"); return text != b"saved"

class Datagram:
    def __init__(self):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); self.socket.bind(os.path.abspath("datagrams"))
        self.sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); self.sender.bind("sender"); self.sender.connect(os.path.abspath("datagrams"))
        self.sender.send(b"saved")
    def set(self, changed): self.socket.recv(100); self.sender.send(b"changed")
    def get(self):
        text, source = self.socket.recvfrom(100); self.sender.send(text)
        assert source == "sender" and text in (b"saved", b"changed") and self.socket.getsockname() == os.path.abspath("datagrams"), (text, source)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as caller:
            caller.sendto(b"call", "datagrams"); assert self.socket.recvfrom(100) == (text, "sender") and self.socket.recv(100) == b"call"
        self.sender.send(text)
        return text != b"saved"

class Server:
    def __init__(self):
        self.socket = socket.socket(socket.AF_UNIX); self.socket.bind("server"); self.socket.listen()
        self.client = socket.socket(socket.AF_UNIX); self.client.connect("server"); self.peer = self.socket.accept()[0]
        self.waiting = socket.socket(socket.AF_UNIX); self.waiting.connect("server"); self.client.send(b"saved")
    def set(self, changed): self.peer.recv(100); self.client.send(b"changed")
    def get(self):
        text = self.peer.recv(100); self.client.send(text)
        assert self.peer.getsockname() == self.client.getpeername() == "server" and text in (b"saved", b"changed")
        next_one = self.socket.accept()[0]; self.waiting.send(b"hello"); assert next_one.recv(100) == b"hello"
        self.waiting = socket.socket(socket.AF_UNIX); self.waiting.connect("server")
        return text != b"saved"

thing = {"flock": Flock, "record": Record, "ofd": Ofd, "fifo": Fifo, "queue": Queue, "netlink": Netlink, "idle": Idle, "segment": Segment, "semaphore": Semaphore, "messages": Messages, "datagram": Datagram, "server": Server}[how]()
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
KINDS = ["flock", "record", "ofd", "fifo", "queue", "netlink", "idle", "segment", "semaphore", "messages", "datagram", "server"]


class Program:
    def __init__(self, host, how):
        self.host, self.fault = host, host.file("fault")
        host.file("program.py", PROGRAM)
        self.vpid, self.out = host.detach("python3", "program.py", how, name="has", env={"PBEAM_FAULT": str(self.fault)})
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
        host.run(["python3", "-c", "import ctypes; ctypes.CDLL(None).mq_unlink(b'/pbeam-test-beside')"])
    option = {"segment": "-M", "semaphore": "-S", "messages": "-Q"}.get(how)
    if option:
        host.run(["ipcrm", option, hex(0x5e000000 + program.vpid)])


def test_adjustment(host):
    """The new process has the adjustment of the image: its end applies that, and not the one of the old process."""
    program = Program(host, "semaphore")
    program.fails("restore-before-commit", "fail")
    program.returns()
    key = 0x5e000000 + program.vpid
    line, = [line.split() for line in open("/proc/sysvipc/sem") if line.split()[0] == str(key)]
    host.kill_programs()
    value = "import ctypes, sys; print([ctypes.CDLL(None).semctl(int(sys.argv[1]), n, 12) for n in range(2)])"
    assert host.run(["python3", "-c", value, line[1]]).stdout == "[0, 1]\n"
    host.run(["ipcrm", "-s", line[1]])


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


# Has something that cannot exist twice.
SINGLE = """
import fcntl, os, socket, sys, time
if sys.argv[1] == "abstract":
    has = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    has.bind("\\0pbeam-test-single-%d" % os.getpid())
else:
    open("leased", "w").close()
    has = open("leased")
    fcntl.fcntl(has, fcntl.F_SETLEASE, fcntl.F_RDLCK)
n = 0
while True:
    print(n, flush=True)
    n += 1
    time.sleep(0.01)
"""


@pytest.mark.parametrize("how,what", [("abstract", "the abstract name of a UNIX socket"), ("lease", "its lease of a file")])
def test_refused(host, how, what):
    """The refusal names the way that kills the old processes first, and changes nothing."""
    host.file("single.py", SINGLE)
    _, out = host.detach("python3", "single.py", how, name="single")
    host.wait_until(lambda: counted(out) > 3, what="counting")
    host.checkpoint("single")
    before = host.ps()["processes"][0]["pid"]
    done = host.ctl("rollback", "single", check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and what in done.stderr and "--replace" in done.stderr, done
    assert host.ps()["processes"][0]["pid"] == before
    counts(host, out)
    host.rollback("single", "--replace")
    assert host.ps()["processes"][0]["pid"] != before
    counts(host, out)
    host.kill_programs()


THREADS = """
import threading, time
threading.stack_size(65536)
for _ in range(700):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
n = 0
while True:
    print(n, flush=True)
    n += 1
    time.sleep(0.01)
"""


def tasks_of_user(host):
    """How many processes and threads the kernel counts for the user: a fork works with one more (more or less: others come and go)."""
    low, high = 0, 1 << 16
    while low + 1 < high:
        middle = (low + high) // 2
        works = host.run(["prlimit", f"--nproc={middle}", "sh", "-c", "/bin/true; exit $?"], check=False).returncode == 0
        low, high = (low, middle) if works else (middle, high)
    return high


def test_limit_of_processes(host):
    """The threads of the old and the new process are too many for the limit: found out before anything changes."""
    host.file("threads.py", THREADS)
    _, out = host.detach("python3", "threads.py", name="threads")
    host.wait_until(lambda: counted(out) > 3, what="counting")
    host.checkpoint("threads")
    keeper, = host.named("scip-keeper")

    def refused():
        """Other processes of the user come and go: the coordinator cannot be started then, or both have room."""
        before = host.ps()["processes"][0]["pid"]
        host.run(["prlimit", "--pid", str(keeper), f"--nproc={tasks_of_user(host) + 350}:"])
        done = host.ctl("rollback", "threads", check=False)
        if done.returncode == 0 or "start the coordinator" in done.stderr:
            return False
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and "ulimit -u" in done.stderr and "--replace" in done.stderr, done
        assert host.ps()["processes"][0]["pid"] == before
        return True

    host.wait_until(refused, 90, "the refusal")
    counts(host, out)
    host.kill_programs()
