"""The end of a parent, with parent and child on any hosts: getppid() and PR_SET_PDEATHSIG of the child."""
import os
import random
import threading
import time

import pytest

pytestmark = pytest.mark.timeout(120)

# main, its child the parent, its child. SIGUSR2: the child wants SIGUSR1 at its parent's end. With an argument main is a subreaper.
KIN = """import ctypes, os, signal, sys, time
prctl = ctypes.CDLL(None).prctl
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def say(*words): os.write(out, (' '.join(map(str, words)) + '\\n').encode())
def want(*_):
    prctl(1, signal.SIGUSR1)
    say('wants')
def child():
    signal.signal(signal.SIGUSR1, lambda *_: say('heard', os.getppid()))
    signal.signal(signal.SIGUSR2, want)
    before = 0
    while True:
        now = os.getppid()
        if now != before: say('child', os.getpid(), now, open('/proc/self/stat').read().rsplit(')')[1].split()[1])
        before = now
        time.sleep(.02)
def parent():
    if not os.fork(): child()
    while True: time.sleep(1)
if len(sys.argv) > 2: prctl(36, 1)
pid = os.fork()
if not pid: parent()
say('main', os.getpid(), os.getppid(), pid)
while True:
    try: say('waited', os.wait()[0])
    except ChildProcessError: break
time.sleep(1000)
"""


class Kin:
    def __init__(self, home, name, *reaper):
        self.home, self.name = home, name
        self.job = home.start(["scip", "run", "--name", name, "--", "python3", "-u", "-c", KIN, name + ".out", *reaper], name)
        home.wait_until(lambda: self.said("main") and self.said("child"), 20, "the kin to live")
        self.main, self.keeper, self.parent = map(int, self.said("main")[0][1:])
        self.child = int(self.said("child")[0][1])

    def said(self, word):
        path = self.home.home / f"{self.name}.out"
        return [line.split() for line in path.read_text().splitlines() if line.split()[:1] == [word]] if path.exists() else []

    def signal(self, name, vpid):
        self.home.ctl("kill", "-s", name, vpid)

    def move(self, vpid, to, *options, check=True):
        return self.home.ctl("migrate", *options, vpid, to.name, check=check)

    def want(self):
        self.signal("USR2", self.child)
        self.home.wait_until(lambda: self.said("wants"), what="the child to want a signal")

    def check(self, parent):
        """The child has learned of its parent's end, once, and has this new parent."""
        self.home.wait_until(lambda: self.said("heard") and len(self.said("child")) > 1, 15, f"vpid {self.child} to hear of its parent's end")
        time.sleep(.2)
        assert self.said("heard") == [["heard", str(parent)]]
        assert [line[2:] for line in self.said("child")] == [[str(self.parent)] * 2, [str(parent)] * 2]

    def end(self):
        for vpid in (self.child, self.main):
            self.signal("KILL", vpid)
        assert self.job.wait() == 137


def keepers(host):
    return {int(path.name) for path in (host.runtime / "pbeam" / "job").glob("*")}


def test_parent_ends_on_another_host(make_lab):
    """As on one host: the child has another parent, and gets the signal that it asked for before or after the move."""
    a, b, c = hosts = make_lab(3).start().hosts
    moved, both, left, reaped = made = [Kin(a, name, *reaper) for name, *reaper in (["moved"], ["both"], ["left"], ["reaped", "reaper"])]
    both.want()
    both.move(both.child, c)
    both.move(both.parent, b)  # and the child's stub with it
    refused = both.move(both.parent, c, "--alone", check=False)
    assert refused.returncode == 1 and f"vpid {both.child}, its child, would be left here without a parent" in refused.stderr
    left.want()
    left.move(left.parent, b, "--alone")
    for kin in (moved, reaped):
        kin.move(kin.child, b)
        kin.want()
    for kin in made:
        assert not kin.said("heard")
        kin.signal("KILL", kin.parent)
    moved.check(moved.keeper)
    both.check(both.keeper)
    left.check(left.keeper)
    reaped.check(reaped.main)
    for to in (c, a):
        moved.move(moved.child, to)
        reaped.move(reaped.child, to)
    moved.check(moved.keeper)
    reaped.check(reaped.main)
    for kin in made:
        kin.end()
    for host in hosts:
        host.wait_until(lambda host=host: not keepers(host), 15, f"{host.name} to be left")


def test_parent_ends_while_its_child_moves(make_lab, long):
    """The parent's end during a migration is reported exactly once."""
    a, b, c = make_lab(3).start().hosts
    seed = int(os.environ.get("PBEAM_FAULT_SEED", random.randrange(1 << 30) if long else 1))
    dice = random.Random(seed)
    for n in range(30 if long else 3):
        kin = Kin(a, f"kin{n}")
        if n % 3:
            kin.move(kin.child, b)
        kin.want()
        to = (b, c, a)[n % 3]
        mover = threading.Thread(target=kin.move, args=(kin.child, to))
        mover.start()
        time.sleep(dice.random() * .3)
        kin.signal("KILL", kin.parent)
        mover.join()
        print(f"seed {seed} round {n} to {to.name}")
        kin.check(kin.keeper)
        kin.end()
