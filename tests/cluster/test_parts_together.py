"""Parts of one job that were saved on several hosts are rolled back on one remaining host."""
import signal

import pytest

from test_parent_elsewhere import move
from test_group import lose
from test_tree_cut import Pair, numbers


@pytest.mark.messy
def test_console_lost(make_lab):
    """The host of the parent and the console is lost: the parent continues beside its child, on the terminal there, which can be attached from any host."""
    lab = make_lab(3).start()
    spare, a, b = lab.hosts
    shell = a.terminal(["scip", "run", "--name", "shell", "--", "bash", "--norc", "--noprofile"], env={"TERM": "dumb"})
    shell.sendline("PS1='> '; sleep 1000 & echo $((40 + 1)) $!")
    shell.expect(r"41 (\d+)\r\n")
    sleeper = int(shell.match.group(1))
    move(a, sleeper, b)
    a.wait_until(lambda: not a.ctl("ps").stderr, 20, "all hosts to answer")
    a.checkpoint("shell")
    shell.kill(signal.SIGKILL)
    shell.wait()
    lose(lab, a)
    b.ctl("rollback", "--on", "b=c", "shell")
    assert {row["host"] for row in b.ps()["processes"]} == {"c"} and sleeper in b.vpids()
    for host in (b, spare):
        console = host.terminal(["pbeamctl", "attach", "shell"])
        console.sendline("echo $((40 + 2)) here; jobs")
        console.expect_exact("42 here\r\n")
        console.expect("Running +sleep 1000")
        console.send("\x1dd")
        assert console.end() == 0
    spare.ctl("hosts", "--remove", "b")
    b.checkpoint("shell")
    console = b.terminal(["pbeamctl", "attach", "shell"])
    console.sendline("kill %1; wait %1; echo $((40 + 3)) $?")
    console.expect_exact("43 143\r\n")
    assert console.end("exit 7") == 7
    b.wait_until(lambda: not b.vpids(), 20, "all to end")


# Three generations in a ring: the root sends every number over TCP to its grandchild, that over a UNIX connection to its parent, that over a pipe to the
# root, `ahead` of them on their way. The file `go` ends it, each with the status of its child and more.
RING = """import os, select, socket, struct, sys, time
ahead = int(sys.argv[1])
def say(*words): os.write(1, (' '.join(map(str, words)) + '\\n').encode())
def copy(get, put):
    while True:
        data = os.read(get, 65536)
        if not data: return
        while data: data = data[os.write(put, data):]
listener = socket.create_server(('127.0.0.1', 0))
back, put = os.pipe()
middle = os.fork()
if not middle:
    os.close(back)
    up, down = socket.socketpair()
    last = os.fork()
    if not last:
        up.close()
        os.close(put)
        ring = socket.create_connection(listener.getsockname())
        listener.close()
        say('last', os.getpid())
        copy(ring.fileno(), down.fileno())
        os._exit(3)
    down.close()
    listener.close()
    copy(up.fileno(), put)
    os._exit(10 + os.waitstatus_to_exitcode(os.waitpid(last, 0)[1]))
os.close(put)
ring = listener.accept()[0]
ring.setblocking(False)
say('ring', os.getpid(), middle)
sent = seen = told = 0
out = rest = b''
closed = False
while True:
    if not closed and not out and os.path.exists('go'):
        closed = True
        ring.shutdown(socket.SHUT_WR)
    if not closed and not out and sent - seen < ahead:
        out = struct.pack('<512Q', *range(sent, sent + 512))
        sent += 512
    ready = select.select([back], [ring] if out else [], [], .02)
    if ready[1]: out = out[ring.send(out):]
    if ready[0]:
        data = os.read(back, 65536)
        if not data: break
        rest += data
        whole = len(rest) // 8 * 8
        for (n,) in struct.iter_unpack('<Q', rest[:whole]):
            assert n == seen, (n, seen)
            seen += 1
        rest = rest[whole:]
    if seen // 20000 > told:
        told = seen // 20000
        say(told)
        time.sleep(.02)
assert seen == sent and not rest, (seen, sent)
say('ended')
sys.exit(20 + os.waitstatus_to_exitcode(os.waitpid(middle, 0)[1]))
"""


class Ring(Pair):
    """RING on `home`, its second and third generation on hosts of their own."""

    def __init__(self, home, second, third, ahead=60000, options=()):
        self.home = home
        words = ["scip", "run", "--name", "pair", *options, "--", "python3", "-u", "-c", RING, ahead]
        self.job = home.start(["bash", "-o", "pipefail", "-c", '"$@" | cat', "bash", *words], "ring")
        self.parent, self.child = numbers(self.job, "ring")
        self.last = numbers(self.job, "last")[0]
        move(home, self.child, second)
        move(home, self.last, third)

    def where(self):
        rows = {row["vpid"]: row["host"] for row in self.home.ps()["processes"]}
        return "".join(rows.get(vpid, "-") for vpid in (self.parent, self.child, self.last))

    def end(self):
        self.home.file("go")
        assert self.job.wait(40) == 33, self.job.text() + self.job.errors()


@pytest.mark.messy
@pytest.mark.long
def test_three_hosts(make_lab, long):
    """Three generations on three hosts, connected by TCP, a UNIX connection and a pipe; one or two hosts remain. Data under way arrives, and processes on one host are one tree again: saved, rolled back, and their exits seen."""
    ways = [("bc", "b=a,c=a", "aaa"), ("b", "b=c", "acc"), ("b", "b=a", "aac"), ("c", "c=a", "aba")]
    for lost, on, where in ways if long else ways[:1]:
        lab = make_lab(3).start()
        a, b, c = lab.hosts
        ring = Ring(a, b, c)
        ring.until_counts()
        assert ring.where() == "abc"
        a.checkpoint("pair")
        ring.until_counts()
        for host in (b, c):
            if host.name in lost:
                lose(lab, host)
                a.ctl("hosts", "--remove", host.name)
        a.ctl("rollback", "--on", on, "pair")
        ring.until_counts()
        assert ring.where() == where
        a.checkpoint("pair")
        ring.goes_back(a)
        ring.until_counts()
        assert ring.where() == where
        ring.end()


def test_nothing_lost(make_lab):
    """With nothing lost --on moves the rolled back job; after the job has ended a part of two hosts starts on one. A mistyped host is reported."""
    lab = make_lab(2)
    a, b = lab.hosts
    for host in lab.hosts:
        host.env["PBEAM_FAULT"] = str(host.file("fault"))
    lab.start()
    pair = Pair(a, b, "pipe", 60000)
    pair.until_counts()
    a.checkpoint("pair")
    for on, text in (("b=x", "no host x"), ("x=a", "host x"), ("b", "HOST=HOST")):
        done = a.ctl("rollback", "--on", on, "pair", check=False)
        assert done.returncode and text in done.stderr, done.stderr
    pair.until_counts()
    a.ctl("rollback", "--on", "b=a", "pair")
    pair.until_counts()
    assert pair.where() == ("a", "a")
    pair.goes_back(b)
    pair.until_counts()
    assert pair.where() == ("a", "b")
    a.ctl("kill", "-s", "KILL", str(pair.parent))
    assert pair.job.wait(20) == 128 + signal.SIGKILL
    a.wait_until(lambda: not a.vpids(), 20, "both to end")
    for on, host in (("b=a", a), ("a=b", b)):
        for point in ("migrate-target-state:fail", "restore-made-tree:fail", "migrate-target-held:kill"):
            host.file("fault", point)
            assert a.ctl("rollback", "--on", on, "pair", check=False).returncode == 1
            a.wait_until(lambda: not a.vpids(), 20, "nothing to be left")
        host.file("fault")
        a.ctl("rollback", "--on", on, "pair")
        assert pair.where() == (host.name, host.name)
        host.checkpoint("pair").unlink()
        a.ctl("kill", "-s", "KILL", str(pair.parent))
        a.wait_until(lambda: not a.vpids(), 20, "both to end")
