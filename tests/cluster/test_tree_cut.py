"""A tree whose processes are on several hosts: saved as one cut and rolled back as one, stubs, pipes and all."""
import os
import signal
import time

import pytest

from test_far import Family, move
from test_group import lose

# A parent and a child that send each other every number in order, `ahead` of them on their way, over pipes or a socketpair. The file `go` ends it.
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
if how == 'pipe':
    (a, b), (c, d) = os.pipe(), os.pipe()
else:
    pair = [s.detach() for s in socket.socketpair()]
    a = d = pair[0]
    b = c = pair[1]
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
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print('ended', status, flush=True)
sys.exit(40 + status)
"""


class Pair:
    """FAMILY on `home`, its child on `away`."""

    def __init__(self, home, away, how="pipe", ahead=30000, options=()):
        self.home = home
        words = ["scip", "run", "--name", "pair", *options, "--", "python3", "-u", "-c", FAMILY, how, ahead]
        self.job = home.start(["bash", "-o", "pipefail", "-c", '"$@" | cat', "bash", *words], "pair").wait_for("family")
        self.parent, self.child = (int(word) for word in self.job.text().split()[1:3])
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


@pytest.mark.parametrize("how, ahead", [("pipe", 2000), ("pipe", 60000), ("socket", 60000)])
def test_goes_back(make_lab, how, ahead):
    """Parent here, child there, numbers on their way in both directions: saved and rolled back twice, from either host. Not one is lost, and the child's
    end arrives."""
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
    pair.end()


def test_after_its_end(make_lab):
    """All of it is gone, keepers too: brought back on the same hosts; signals, stops and the end go both ways between parent and child."""
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
    for vpid in (root, family.parent, family.child):
        a.ctl("kill", "-s", "KILL", str(vpid))
    family.job.wait(20)
    a.wait_until(lambda: not a.vpids(), 20, "all to be gone")
    b.rollback(str(root))
    assert {row["vpid"]: row["host"] for row in a.ps()["processes"]} == {root: "a", family.parent: "b", family.child: "c"}
    family.check()
    move(a, family.child, a)
    family.check()
    family.signal("TERM", family.child)
    family.until("ended", 1, "the child's end")
    a.wait_until(lambda: not a.vpids(), 20, "all to end")


@pytest.mark.messy
@pytest.mark.parametrize("lost", [0, 1], ids=["parent", "child"])
def test_lost_host(make_lab, lost):
    """The host of the parent, or of the child, is lost: that part goes on on a third host, the other where it was, and what was on its way between them arrives."""
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
    time.sleep(.5)
    first.file("go")
    if lost:
        assert pair.job.wait(40) == 45, pair.job.text() + pair.job.errors()
    spare.wait_until(lambda: not spare.vpids(), 30, "both to end well")
