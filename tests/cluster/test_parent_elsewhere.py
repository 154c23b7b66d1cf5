"""Parents and children on different hosts see each other's signals, stops and exits."""
import json
import signal


import pytest

# A parent and its child below a first process that only waits. SIGUSR2 makes the parent send its child SIGUSR1, which answers with SIGWINCH. The parent's timer
# interrupts its wait: Python does not run the handler of a signal that comes right before the system call.
FAMILY = """import os, signal, sys, time
out = os.open('out', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def say(*words): os.write(out, (' '.join(map(str, words)) + '\\n').encode())
def child():
    signal.signal(signal.SIGUSR1, lambda *_: os.kill(os.getppid(), signal.SIGWINCH))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
    n = 0
    while True:
        say('child', os.getpid(), os.getppid(), n)
        n += 1
        time.sleep(.05)
def parent():
    pid = os.fork()
    if not pid: child()
    signal.signal(signal.SIGUSR2, lambda *_: os.kill(pid, signal.SIGUSR1))
    signal.signal(signal.SIGWINCH, lambda *_: say('answered'))
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, .1, .1)
    say('parent', os.getpid(), os.getppid(), pid)
    while True:
        status = os.waitpid(pid, os.WUNTRACED | os.WCONTINUED)[1]
        if os.WIFSTOPPED(status): say('stopped', os.WSTOPSIG(status))
        elif os.WIFCONTINUED(status): say('continued')
        else: break
    say('ended', os.waitstatus_to_exitcode(status))
    os._exit(40 + os.waitstatus_to_exitcode(status))
pid = os.fork()
if not pid: parent()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def move(host, vpid, to, *options):
    return host.run(["pbeamctl", "migrate", *options, vpid, to.name]).stderr


def keepers(host):
    """The keepers of jobs that have a process or a stub on this host."""
    return [path.name for path in (host.runtime / "pbeam" / "job").glob("*")]


class Family:
    """FAMILY on host `home`: the pids of its parent and child, and their output."""

    def __init__(self, home):
        self.home = home
        self.job = home.start(["scip", "run", "--", "python3", "-u", "-c", FAMILY], "family")
        home.wait_until(lambda: self.said("parent") and self.said("child"), 20, "the family to live")
        self.parent, self.child = int(self.said("parent")[0][1]), int(self.said("parent")[0][3])

    def said(self, word):
        path = self.home.home / "out"
        return [line.split() for line in path.read_text().splitlines() if line.split()[:1] == [word]] if path.exists() else []

    def signal(self, name, vpid):
        self.home.run(["pbeamctl", "kill", "-s", name, vpid])

    def until(self, word, count, what):
        self.home.wait_until(lambda: len(self.said(word)) >= count, 15, f"{what} ({word} {count}; said {[len(self.said(w)) for w in ('answered', 'stopped', 'continued', 'ended')]})")

    def check(self):
        """Signals both ways; stop and continue as the parent's wait sees them."""
        answered, stopped, continued = (len(self.said(word)) for word in ("answered", "stopped", "continued"))
        self.signal("USR2", self.parent)
        self.until("answered", answered + 1, "the child's answer")
        self.signal("STOP", self.child)
        self.until("stopped", stopped + 1, "the parent to see the stop")
        self.signal("CONT", self.child)
        self.until("continued", continued + 1, "the parent to see it go on")
        assert {(line[1], line[2]) for line in self.said("child")} == {(str(self.child), str(self.parent))}


@pytest.fixture
def four(make_lab):
    return make_lab(4).start().hosts


def test_parent_moves_after_its_child(four):
    """Parent and child on different hosts; then the parent moves repeatedly, with its child's stub, and nothing stays behind."""
    a, b, c, d = four
    family = Family(a)
    move(a, family.parent, b)
    move(a, family.child, c)
    family.check()
    for here, there in ((b, d), (d, a), (a, b), (b, d)):
        move(a, family.parent, there)
        family.check()
        here.wait_until(lambda: here is a or not keepers(here), 10, f"nothing to be left on {here.name}")
    b.daemon.process.kill()
    family.check()
    move(a, family.child, a)
    family.check()
    move(a, family.child, d)  # to its stub
    family.check()
    family.signal("TERM", family.child)
    assert family.job.wait(30) == 45
    assert family.said("ended") == [["ended", "5"]]


def test_parent_goes_to_its_child(four):
    """A process moves to its child's host: there it is its real child, not a stub; both move on together and apart."""
    a, b, c, _ = four
    family = Family(a)
    move(a, family.child, b)
    family.check()
    move(a, family.parent, b)
    family.check()
    done = move(a, family.parent, c)
    assert "(2 processes)" in done
    family.check()
    a.wait_until(lambda: not keepers(b), 10, "nothing to be left on b")
    move(a, family.child, a)  # where the parent's stub is
    family.check()
    family.signal("KILL", family.child)
    assert family.job.wait(30) == 40 - signal.SIGKILL
    a.wait_until(lambda: not a.vpids(), 10, "all to be gone")


def test_host_is_emptied(four):
    """Everything on a host moves away; what still depends on it is listed, and the exit status tells whether the host can be left."""
    a, b, c, _ = four
    family = Family(a)
    move(a, family.parent, b)
    move(a, family.child, c)
    assert a.run(["pbeamctl", "migrate", "--all-from", "b", "c"]).stdout == ""
    family.check()
    a.wait_until(lambda: not keepers(b), 10, "nothing to be left on b")
    done = a.run(["pbeamctl", "migrate", "--all-from", "a", "b"], check=False)
    assert done.returncode == 1 and "runs on b" in done.stderr
    assert f"vpid {family.parent} on host c: its console is here" in done.stdout.splitlines()
    hosts = {row["name"]: row["depends"] for row in json.loads(a.ctl("hosts", "--json").stdout)["hosts"]}
    assert f"vpid {family.parent} on host c: its parent is here" in hosts["b"] and not hosts["c"]
    family.check()
    family.signal("TERM", family.child)
    assert family.job.wait(30) == 45
