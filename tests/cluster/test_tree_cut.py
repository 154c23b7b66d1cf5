"""A tree with processes on several hosts is saved as one cut and rolled back as one, with stubs and pipes."""
import os
import signal
import time

import pytest

from test_parent_elsewhere import Family, move
from test_group import STEPS, faulty_lab, give_up, lose, programs, replaced

# A parent and a child (or two programs that meet at the path `sock`) that send each other every number in order, `ahead` of them on their way, over pipes
# or a UNIX connection. The file `go` ends it.
FAMILY = """import os, select, socket, struct, sys, time
how, ahead = sys.argv[1], int(sys.argv[2])
def child(get, put):
    n = 0
    rest = b''
    while True:
        data = os.read(get, 65536)
        if not data: break
        data = rest + data
        whole = len(data) // 8 * 8
        rest = data[whole:]
        for (seen,) in struct.iter_unpack('<Q', data[:whole]):
            assert seen == n, (seen, n)
            n += 1
        done = 0
        while done < whole:
            done += os.write(put, data[done:whole])
    os._exit(5 if not rest else 6)
if how == 'connect':
    peer = socket.socket(socket.AF_UNIX)
    peer.connect('sock')
    print('family', os.getpid(), 0, flush=True)
    child(peer.fileno(), peer.fileno())
if how == 'pipe':
    (a, b), (c, d) = os.pipe(), os.pipe()
elif how == 'listen':
    listener = socket.socket(socket.AF_UNIX)
    listener.bind('sock')
    listener.listen()
    print('listens', flush=True)
    b = c = listener.accept()[0].detach()
else:
    pair = [s.detach() for s in socket.socketpair()]
    a = d = pair[0]
    b = c = pair[1]
pid = 0
if how != 'listen':
    pid = os.fork()
    if not pid:
        for fd in {b, c}: os.close(fd)
        child(a, d)
    for fd in {a, d}: os.close(fd)
os.set_blocking(b, False)
print('family', os.getpid(), pid, flush=True)
sent = back = told = 0
out = rest = b''
closed = False
while True:
    if not closed and os.path.exists('go') and not out:
        closed = True
        if how == 'pipe': os.close(b)
        else: socket.socket(fileno=os.dup(b)).shutdown(socket.SHUT_WR)
    if not closed and not out and sent - back < ahead:
        out = struct.pack('<512Q', *range(sent, sent + 512))
        sent += 512
    ready = select.select([c], [b] if out else [], [], .02)
    if ready[1]:
        out = out[os.write(b, out):]
    if ready[0]:
        data = os.read(c, 65536)
        if not data: break
        data = rest + data
        whole = len(data) // 8 * 8
        rest = data[whole:]
        for (seen,) in struct.iter_unpack('<Q', data[:whole]):
            assert seen == back, (seen, back)
            back += 1
    if back // 20000 > told:
        told = back // 20000
        print(told, flush=True)
        time.sleep(.02)
assert back == sent and not rest, (back, sent)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid else 5
print('ended', status, flush=True)
sys.exit(40 + status)
"""


def numbers(job, word):
    """The numbers after this word, once the line is complete."""
    found = []

    def there():
        found[:] = [line.split()[1:] for line in job.text()[:job.text().rfind("\n") + 1].splitlines() if line.split()[:1] == [word]]
        return found

    job.host.wait_until(there, 20, word)
    return [int(number) for number in found[0]]


class Pair:
    """FAMILY on `home`, its child on `away`."""

    def __init__(self, home, away, how="pipe", ahead=30000, options=()):
        self.home = home
        words = ["scip", "run", "--name", "pair", *options, "--", "python3", "-u", "-c", FAMILY, how, ahead]
        self.job = home.start(["bash", "-o", "pipefail", "-c", '"$@" | cat', "bash", *words], "pair")
        self.parent, self.child = numbers(self.job, "family")
        if away:
            move(home, self.child, away, "--alone")

    def counts(self):
        return [int(line) for line in self.job.text()[:self.job.text().rfind("\n") + 1].splitlines() if line.isdigit()]

    def until_counts(self, more=3):
        seen = len(self.counts())
        self.home.wait_until(lambda: len(self.counts()) > seen + more, 20, "the numbers to go on")

    def goes_back(self, host):
        seen = self.counts()
        host.rollback("pair")
        self.home.wait_until(lambda: any(b <= a for a, b in zip(self.counts()[len(seen) - 1:], self.counts()[len(seen):])), 20, "the numbers to go back")

    def end(self):
        self.home.file("go")
        assert self.job.wait(40) == 45, self.job.text() + self.job.errors()
        assert "ended 5" in self.job.text()

    def where(self):
        rows = {row["vpid"]: row["host"] for row in self.home.ps()["processes"]}
        return rows.get(self.parent), rows.get(self.child)


@pytest.mark.parametrize("how, ahead", [("pipe", 60000), ("socket", 60000)])
def test_goes_back(make_lab, how, ahead):
    """Parent here, child there, numbers under way in both directions: saved and rolled back twice, from either host. No number is lost, and the child's exit arrives."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    pair = Pair(a, b, how, ahead)
    pair.until_counts()
    path = a.checkpoint("pair")
    assert path == a.state / "pbeam" / "pair" / "1.ckpt"
    assert sorted(os.listdir(a.state / "pbeam" / "pair" / "1.parts")) == ["1.ckpt", "2.ckpt"]
    pair.until_counts()
    for host in (a, b):
        pair.goes_back(host)
        pair.until_counts()
        assert pair.where() == ("a", "b")
        a.checkpoint("pair")
    pair.end()


@pytest.mark.parametrize("late", (False, True))
def test_after_its_end(make_lab, late):
    """The whole job has ended, keepers too: it is restored on the same hosts. Signals, stops and the exit pass both ways between parent and child. A late report of the old child's exit finds the parent's old keeper, and the new child's stub ignores it."""
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    family = Family(a)
    move(a, family.parent, b)
    move(a, family.child, c)
    root = next(row["vpid"] for row in a.ps()["processes"] if row["vpid"] not in (family.parent, family.child))
    a.ctl("checkpoint", str(root))
    family.check()
    a.rollback(str(root))
    family.check()
    lines = c.named("scip-link") if late else []
    for pid in lines:
        os.kill(pid, signal.SIGSTOP)
    for vpid in (root, family.parent, family.child):
        a.ctl("kill", "-s", "KILL", str(vpid))
    family.job.wait(20)
    a.wait_until(lambda: not a.vpids(), 20, "all to be gone")
    b.rollback(str(root))
    assert {row["vpid"]: row["host"] for row in a.ps()["processes"]} == {root: "a", family.parent: "b", family.child: "c"}
    family.check()
    for pid in lines:
        os.kill(pid, signal.SIGCONT)
    if lines:
        time.sleep(.5)  # which is when they report
    family.check()
    move(a, family.child, a)
    family.check()
    family.signal("TERM", family.child)
    family.until("ended", 1, "the child's end")
    a.wait_until(lambda: not a.vpids(), 20, "all to end")


@pytest.mark.messy
@pytest.mark.long
def test_lost_host(make_lab, long):
    """The child's host is lost (in the long form the parent's too): that part continues on a third host, the other where it was, and data under way between them arrives."""
    for lost in (1, 0) if long else (1,):
        lab = make_lab(3).start()
        spare, first, second = lab.hosts
        pair = Pair(first, second)
        pair.until_counts()
        first.checkpoint("pair")
        gone, stays = ((first, second), (second, first))[lost]
        lose(lab, gone)
        done = stays.ctl("rollback", "pair", check=False)
        assert done.returncode == 1 and f"--on {gone.name}=HOST" in done.stderr, done.stderr
        stays.ctl("rollback", "--on", f"{gone.name}={spare.name}", "pair")
        at = [first.name, second.name]
        at[lost] = spare.name
        pair.home = spare
        assert pair.where() == tuple(at)
        first.file("go")
        if lost:
            assert pair.job.wait(40) == 45, pair.job.text() + pair.job.errors()
        spare.wait_until(lambda spare=spare: not spare.vpids(), 30, "both to end well")


def test_interval(make_lab):
    """--interval continues when a part has moved: it makes cuts, keeps the newest, and each can be verified and rolled back to."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    pair = Pair(a, b, options=("--interval", "1s", "--keep", "2"))
    kept = a.state / "pbeam" / "pair"

    def cuts():
        return sorted(int(path.name.split(".")[0]) for path in kept.glob("*.parts") if (kept / (path.name.split(".")[0] + ".ckpt")).exists())

    a.wait_until(lambda: len(cuts()) == 2 and cuts()[0] > 1, 20, "the third cut")
    number = cuts()[-1]
    log = [line.split() for line in a.ctl("log", "pair").stdout.splitlines()[1:]]
    assert any(line[0] == str(number) for line in log), log
    a.ctl("image", "verify", kept / f"{number}.ckpt")
    done = a.ctl("rollback", "--to", str(number), "pair", check=False)
    while done.returncode and ("at work" in done.stderr or "no checkpoint" in done.stderr):  # by the next interval's, which removes the oldest
        number = cuts()[-1]
        done = a.ctl("rollback", "--to", str(number), "pair", check=False)
    assert done.returncode == 0, done.stderr
    pair.until_counts()
    pair.end()


@pytest.mark.messy
def test_given_up(make_lab):
    """A part's coordinator, the leader, a daemon or a scip is killed during a cut: the older cut counts, the program runs on, and a process whose scip was killed is restored."""
    lab = make_lab(2)
    a, b = lab.hosts
    for host in lab.hosts:
        host.env["PBEAM_FAULT"] = str(host.file("fault"))
    lab.start()
    pair = Pair(a, b)
    pair.until_counts()
    a.checkpoint("pair")
    for host, point in ((b, "cut-frozen"), (b, "cut-dumped"), (a, "cut-lead-dumped"), (a, "cut-lead-before-manifest")):
        host.file("fault", f"{point}:kill")
        assert a.ctl("checkpoint", "pair", check=False).returncode == 1
        host.file("fault")
        pair.until_counts(1)
        assert not (a.state / "pbeam" / "pair" / "2.ckpt").exists()
    a.file("fault", "cut-lead-dumped:sleep")
    saving = a.start(["pbeamctl", "checkpoint", "pair"], "saving")
    a.wait_until(lambda: "reached" in (a.home / "fault").read_text(), 20, "the cut")
    b.daemon.process.kill()
    a.file("fault")
    saving.wait(30)  # whether it was committed or not
    pair.until_counts(1)
    b.ctl("hosts")  # its daemon starts again
    a.wait_until(lambda: pair.where() == ("a", "b"), 20, "host b to be back")
    pair.goes_back(a)
    pair.until_counts(1)
    scip = next(row["scip"] for row in b.ps()["processes"] if row["vpid"] == pair.child)
    a.file("fault", "cut-lead-frozen:sleep")
    saving = a.start(["pbeamctl", "checkpoint", "pair"], "saving")
    a.wait_until(lambda: "reached" in (a.home / "fault").read_text(), 20, "the cut")
    os.kill(scip, signal.SIGKILL)
    a.file("fault")
    assert saving.wait(30) == 1
    a.wait_until(lambda: pair.where()[1] is None, 20, "the child to be gone")
    b.rollback("pair")
    assert pair.where() == ("a", "b")
    a.file("go")
    a.wait_until(lambda: not a.vpids(), 30, "both to end")


@pytest.mark.messy
@pytest.mark.parametrize("how", ["pipe", "socket"])
def test_rollback_given_up(make_lab, how):
    """The part of the parent or of the child fails, or its coordinator is killed, at each step of a rollback before the commit: both go on with the same pids, and the numbers on their way arrive. Killed after the commit the new ones run."""
    lab = faulty_lab(make_lab)
    a, b = lab.hosts
    pair = Pair(a, b, how)
    pair.until_counts()
    a.checkpoint("pair")
    for host in (a, b):
        for point in STEPS:
            give_up(lab, a, "pair", host, f"{point}:kill")
    give_up(lab, b, "pair", a, "restore-made-tree:fail")
    give_up(lab, b, "pair", b, "cut-lead-before-commit:kill")
    pair.until_counts(1)
    for host in (a, b):
        seen = pair.counts()
        replaced(lab, a, "pair", host, "restore-condemned:kill")
        a.wait_until(lambda: any(y <= x for x, y in zip(pair.counts()[len(seen) - 1:], pair.counts()[len(seen):])), 20, "the numbers to go back")
        pair.until_counts(1)
        assert pair.where() == ("a", "b")
    pair.end()


@pytest.mark.messy
def test_rollback_of_one_that_left_given_up(make_lab):
    """The child has moved since the checkpoint: it ends there and is restored here. The rollback fails on either host: both go on where they are. Killed after the commit: the child is here alone."""
    lab = faulty_lab(make_lab)
    a, b = lab.hosts
    pair = Pair(a, None, "pipe")
    pair.until_counts()
    a.checkpoint("pair")
    for host in (a, b):
        move(a, pair.child, b, "--alone")
        pair.until_counts(1)
        for each in (a, b):
            for point in ("restore-frozen", "migrate-target-held"):
                give_up(lab, a, "pair", each, f"{point}:kill")
        pair.until_counts(1)
        assert pair.where() == ("a", "b")
        host.file("fault", "restore-condemned:kill")
        a.rollback("pair")
        host.file("fault")
        a.wait_until(lambda: pair.where() == ("a", "a") and len(programs(lab)) == 2, 20, "both to be here alone")
        pair.until_counts(1)
    pair.end()


OUTSIDE = """import os, sys, time
pid = os.fork()
if not pid:
    out = 3
    print('child', os.getpid(), flush=True)
    n = 0
    while True:
        os.write(out, b'%d\\n' % n)
        n += 1
        time.sleep(.02)
for fd in range(3, 100):
    try: os.close(fd)
    except OSError: pass
os.waitpid(pid, 0)
"""


def test_refused(make_lab):
    """A part that cannot be saved refuses the whole cut, with its reason; all processes continue."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    job = a.start(["bash", "-c", '"$@" 3> >(cat >seen)', "bash", "scip", "run", "--name", "out", "--", "python3", "-u", "-c", OUTSIDE], "out")
    (child,) = numbers(job, "child")
    move(a, child, b, "--alone")
    done = a.ctl("checkpoint", "out", check=False)
    assert done.returncode == 1 and "host b: the other end of a pipe" in done.stderr, done.stderr
    seen = (a.home / "seen").stat().st_size
    a.wait_until(lambda: (a.home / "seen").stat().st_size > seen + 20, 20, "the child to go on")
    assert not list((a.state / "pbeam" / "out").glob("*.ckpt"))
    a.ctl("kill", "-s", "KILL", str(child))
    job.wait(20)
    seen = (a.home / "seen").read_text().split()
    assert seen == [str(n) for n in range(len(seen))]


def test_two_jobs_of_one_host(make_lab):
    """Two jobs of a group on one host with a UNIX connection between them: it is restored on one host or on two."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    words = [["scip", "run", "--name", how, "--group", "g", "--", "python3", "-u", "-c", FAMILY, how, 60000] for how in ("listen", "connect")]
    pair = Pair.__new__(Pair)
    pair.home = a
    pair.job = a.start(["bash", "-o", "pipefail", "-c", '"$@" | cat', "bash", *words[0]], "listen").wait_for("listens")
    other = a.start(words[1], "connect").wait_for("family")
    pair.until_counts()
    a.checkpoint("g")
    pair.until_counts()
    a.rollback("g")
    pair.until_counts()
    a.ctl("migrate", "connect", "b")
    pair.until_counts()
    a.checkpoint("g")
    b.rollback("g")
    pair.until_counts()
    assert {row["job_name"]: row["host"] for row in a.ps()["processes"]} == {"listen": "a", "connect": "b"}
    a.file("go")
    assert pair.job.wait(40) == 45, pair.job.text() + pair.job.errors()
    assert other.wait(40) == 5
