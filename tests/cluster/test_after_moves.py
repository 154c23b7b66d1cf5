"""A job that has moved is rolled back to a checkpoint made on another host."""
import os
import signal
import time

import pytest
from test_group import count, faulty_lab, give_up, last, programs
from test_parent_elsewhere import move
from test_tree_cut import Pair


def images(host, name):
    return sorted(path.name for path in (host.state / "pbeam" / name).glob("*.c*"))


def saved_at_home(home, away, *words):
    """A Pair that was saved on `home` and has moved as a whole."""
    pair = Pair(home, None, *words)
    pair.until_counts()
    home.checkpoint("pair")
    move(home, pair.parent, away)
    return pair


@pytest.mark.parametrize("how", ["pipe", "socket"])
def test_checkpoint_at_home(make_lab, how):
    """Saved at home, moved as a whole, rolled back from any host: it goes on where it is now."""
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    pair = saved_at_home(a, b, how, 60000)
    for asked in (a, b, c):
        pair.until_counts()
        pair.goes_back(asked)
        pair.until_counts()
        assert pair.where() == ("b", "b")
    assert images(a, "pair") == ["1.ckpt"] and not images(b, "pair") and not images(c, "pair")
    pair.end()


def test_numbers_go_along(make_lab):
    """A job's checkpoints share one sequence of numbers over all hosts, and the newest is found wherever it is."""
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    pair = saved_at_home(a, b)
    assert a.ctl("checkpoint", "pair").stdout == f"{b.state}/pbeam/pair/2.ckpt\n"
    move(b, pair.parent, c)
    pair.goes_back(a)
    pair.until_counts()
    newest = pair.counts()[-1]
    assert a.ctl("checkpoint", "pair").stdout == f"{c.state}/pbeam/pair/3.ckpt\n"
    move(c, pair.parent, a)
    pair.until_counts(20)
    pair.goes_back(b)
    assert pair.where() == ("a", "a")
    pair.until_counts()
    assert min(pair.counts()[-3:]) > newest
    b.ctl("rollback", "--to", "1", "pair")
    pair.until_counts()
    b.ctl("rollback", pair.parent)  # b has the checkpoints of what it takes for ended
    pair.until_counts()
    assert len(a.ps()["processes"]) == 2
    assert a.checkpoint("pair").name == "4.ckpt"
    assert "no checkpoint 7" in a.ctl("rollback", "--to", "7", "pair", check=False).stderr
    pair.end()


def test_earlier_job_of_that_name(make_lab):
    """Checkpoints that another job of the same name has left on the target are not taken for the job's own, and stay."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    b.detach("sleep", "1000", name="pair")
    for n in range(3):
        theirs = b.checkpoint("pair")
    b.ctl("kill", "-s", "KILL", "pair")
    b.wait_until(lambda: not b.vpids(), what="the earlier job to end")
    before = theirs.read_bytes()
    pair = saved_at_home(a, b)
    pair.until_counts()
    pair.goes_back(b)
    pair.until_counts()
    assert images(b, "pair") == ["1.ckpt", "2.ckpt", "3.ckpt"] and theirs.read_bytes() == before
    pair.end()


def test_refused(make_lab):
    """A process of the checkpoint that is now on another host ends there and is restored with the job; if the image is missing the job goes on."""
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    pair = Pair(b, None)
    pair.until_counts()
    b.checkpoint("pair")
    move(b, pair.parent, c, "--alone")
    pair.until_counts()
    pair.goes_back(b)
    pair.until_counts()
    assert pair.where() == ("c", "c")
    image = b.state / "pbeam" / "pair" / "1.ckpt"
    os.truncate(image, image.stat().st_size // 2)
    refused = c.ctl("rollback", "pair", check=False)
    assert refused.returncode == 1 and refused.stderr.count("\n") == 1, refused.stderr
    pair.until_counts()
    pair.end()


@pytest.mark.long
@pytest.mark.timeout(120)
def test_child_elsewhere(make_lab, long):
    """Saved when all was at home, rolled back while the child is elsewhere: that one ends, and all goes on at home."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    pair = Pair(a, None)
    pair.until_counts()
    a.checkpoint("pair")
    for n in range(60 if long else 4):
        move(a, pair.child, b, "--alone")
        pair.until_counts()
        pair.goes_back((a, b)[n % 2])
        pair.until_counts()
        assert pair.where() == ("a", "a") and not b.program_pids()
    pair.end()


def test_child_on_a_third_host(make_lab):
    """Saved on one host, rolled back on a second while the child is on a third and its stub with the parent: the old child ends, and all goes on on the second."""
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    pair = Pair(a, None)
    pair.until_counts()
    a.checkpoint("pair")
    for asked in lab.hosts:
        move(a, pair.child, b, "--alone")
        move(a, pair.parent, c)
        pair.until_counts()
        assert pair.where() == ("c", "b")
        pair.goes_back(asked)
        pair.until_counts()
        assert pair.where() == ("c", "c")
        b.wait_until(lambda: not b.program_pids(), what="the child's end there")
        move(b, pair.parent, a)
    pair.end()


def test_end_told_late(make_lab):
    """The old child's host learns of the stub's end only after the new child exists: the new child is not affected."""
    lab = make_lab(2)
    a, b = lab.hosts
    word = a.file("fault")
    a.env["PBEAM_FAULT"] = str(word)
    lab.start()
    pair = Pair(a, None)
    pair.until_counts()
    a.checkpoint("pair")
    move(a, pair.child, b, "--alone")
    lines = b.named("scip-link")
    word.write_text("restore-frozen:sleep")
    asked = b.start(["pbeamctl", "rollback", "pair"], "asked")
    for number, then in ((signal.SIGSTOP, "restore-condemned:sleep"), (signal.SIGKILL, "")):
        a.wait_until(lambda: word.read_text().endswith(":reached"), what="the rollback to be there")
        for pid in lines:
            os.kill(pid, number)
        if number == signal.SIGKILL:
            b.kill_programs()
            time.sleep(.2)  # the other end of the stream returns the bytes that it has not delivered
        word.write_text(then)
    assert asked.wait() == 0, asked.errors()
    pair.until_counts()
    pair.end()


@pytest.mark.messy
def test_given_up(make_lab):
    """The rollback of a job that has moved fails, or its coordinator is killed: the old process goes on. Killed after the commit the new one does, and its console at home neither sees the end of the old one nor misses that of the new one."""
    lab = faulty_lab(make_lab)
    a, b = lab.hosts
    job = count(a, "count")
    a.ctl("migrate", "count", "b")
    a.checkpoint("count")
    for step in ("restore-frozen:kill", "restore-made-tree:fail", "restore-before-commit:kill"):
        give_up(lab, a, "count", b, step)
        seen = last(job)
        a.wait_until(lambda seen=seen: last(job) > seen + 3, 20, "the program to go on")
    seen = last(job)
    before = programs(lab)
    b.file("fault", "restore-condemned:kill")
    b.ctl("rollback", "count", check=False)
    b.file("fault")
    b.wait_until(lambda: len(programs(lab)) == len(before) and programs(lab) != before, 20, "the new process alone to run")
    a.wait_until(lambda: last(job) > seen + 3, 20, "it to count on")
    assert job.process.poll() is None
    b.ctl("kill", "-s", "TERM", "count")
    assert job.wait(20) == 128 + signal.SIGTERM


SERVER = """import os, socket, sys, time
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind((sys.argv[1], 5601))
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((sys.argv[1], 5600))
listener.listen()
n = 0
print('listens', flush=True)
while True:
    connection, peer = listener.accept()
    n += 1
    connection.sendall(b'%d %s\\n' % (n, repr((listener.getsockname(), udp.getsockname())).encode()))
    connection.close()
"""
CLIENT = "import socket, sys; c = socket.create_connection((sys.argv[1], 5600), 10); print(c.makefile().read(), end='')"


@pytest.mark.parametrize("wildcard", [False, True])
def test_listening(make_lab, wildcard):
    """A server that has moved is rolled back to its state at home: every host reaches it at the address of its birth. Its bridge has the ports: --replace."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    at = "0.0.0.0" if wildcard else a.ip
    server = a.scip_run("python3", "-u", "-c", SERVER, at, name="server").wait_for("listens")

    def ask(host):
        return host.run(["scip", "run", "--", "python3", "-c", CLIENT, a.ip]).stdout

    ask(b)
    a.checkpoint("server")
    told = ask(a)
    a.ctl("migrate", "server", "b")
    ask(a)
    for host in (a, b):
        refused = host.ctl("rollback", "server", check=False)
        assert refused.returncode == 1 and "bridge" in refused.stderr and "--replace" in refused.stderr, refused.stderr
        ask(b)
        host.rollback("server", "--replace")
        assert [row["host"] for row in a.ps()["processes"]] == ["b"]
        assert ask(b) == told
        ask(a)
    a.ctl("migrate", "server", "a")
    assert int(ask(b).split()[0]) == int(told.split()[0]) + 2
    a.ctl("kill", "-s", "KILL", "server")
    assert server.wait(20) == 128 + 9


def test_refused_before_anything_ends(make_lab):
    """Two UDP sockets connected to each other on an address of the host where they were saved: the rollback on another host is refused with the reason, and the job goes on. Back at home a bridge of the job has their ports until it ends: --replace."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    talk = """import socket, sys, time
one, other = socket.socket(type=socket.SOCK_DGRAM), socket.socket(type=socket.SOCK_DGRAM)
for s in one, other: s.bind((sys.argv[1], 0))
one.connect(other.getsockname()); other.connect(one.getsockname())
for n in range(10**9):
    one.send(b'%d' % n)
    print(other.recv(20).decode(), flush=True)
    time.sleep(.01)
"""
    job = a.scip_run("python3", "-c", talk, a.ip, name="talk").wait_for("10")
    a.checkpoint("talk")
    a.ctl("migrate", "talk", "b")
    refused = a.ctl("rollback", "talk", check=False)
    assert refused.returncode == 1 and f"it is bound to {a.ip}:" in refused.stderr and refused.stderr.count("\n") == 1, refused.stderr
    before = len(job.lines())
    a.wait_until(lambda: len(job.lines()) > before + 5, what="it to go on")
    a.ctl("migrate", "talk", "a")
    refused = a.ctl("rollback", "talk", check=False)
    assert refused.returncode == 1 and "--replace" in refused.stderr, refused.stderr
    before = len(job.lines())
    a.wait_until(lambda: len(job.lines()) > before + 5, what="it to go on")
    a.rollback("talk", "--replace")
    a.ctl("kill", "-s", "KILL", "talk")
    assert job.wait(20) == 128 + 9
