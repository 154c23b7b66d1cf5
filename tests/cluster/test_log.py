"""`pbeamctl log` in a cluster lists the checkpoints of all hosts, and `rollback --to` takes each."""
import json

import pytest
from test_group import lose
from test_tree_cut import Pair


def started(lab):
    """Waits until every host can ask every other: channels between joined hosts come a moment later."""
    lab.start()
    for host in lab.hosts:
        host.wait_until(lambda host=host: not host.ctl("ps").stderr, what="all hosts to answer")
    return lab


def rows(host, what, check=True):
    """(number, hosts) of each checkpoint, and standard error."""
    done = host.ctl("log", "--json", what, check=check)
    return [(row["number"], *row["hosts"]) for row in json.loads(done.stdout)["checkpoints"]], done.stderr


def listed(host, what):
    """The checkpoints as `rollback --to` takes them."""
    return [line.split()[0] for line in host.ctl("log", what).stdout.splitlines()[1:]]


def runs(host):
    """The processes and their hosts."""
    return [(row["command"], row["host"]) for row in host.ps()["processes"]]


def end(host, name):
    host.ctl("kill", "-s", "KILL", name)
    host.wait_until(lambda: not host.vpids(), what="its end")


@pytest.mark.messy
def test_of_all_hosts(make_lab):
    """By name or number, from every host. While a host is lost, the checkpoints of the others; a job that may still run on the lost host is not started again."""
    lab = started(make_lab(3))
    a, b, c = lab.hosts
    vpid, _ = a.detach("sleep", "1000", name="job")
    first = a.checkpoint("job")
    assert "HOST" not in a.ctl("log", "job").stdout
    a.ctl("migrate", "job", "b")
    second = a.ctl("checkpoint", "job").stdout.strip()
    for host in lab.hosts:
        for word in ("job", vpid):
            assert rows(host, word) == ([(1, "a"), (2, "b")], "")
        lines = host.ctl("log", "job").stdout.splitlines()
        assert lines[0].split()[-2:] == ["HOST", "IMAGE"]
        assert [line.split()[-2:] for line in lines[1:]] == [["a", str(first)], ["b", second]]
    lose(lab, b)
    assert rows(c, "job") == ([(1, "a")], "pbeamctl: host b does not answer; its checkpoints are not shown\n")
    done = c.ctl("rollback", "job", check=False)
    assert done.returncode == 1 and f"vpid {vpid} may run on host b, which does not answer" in done.stderr and done.stderr.count("\n") == 1, done.stderr
    done = c.ctl("log", "no-such-job", check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "on any host that answers; host b does not answer" in done.stderr


def test_same_number(make_lab):
    """Two different checkpoints with one number on two hosts are listed twice; a cut, whose manifest is on two hosts, once."""
    lab = started(make_lab(2))
    a, b = lab.hosts
    for host in (b, a):
        vpid, _ = host.detach("sleep", "1000", name="job", options=("--group", "g"))
        host.checkpoint("job")
        (host.state / "pbeam" / "job" / "7.ckpt").write_bytes(b"\033[31mno image" * 1000)
        if host is b:
            host.ctl("kill", "-s", "KILL", "job")
            host.wait_until(lambda: not a.vpids(), what="its end")
    b.detach("sleep", "1000", name="other", options=("--group", "g"))
    a.checkpoint("g")
    assert rows(a, "job")[0] == rows(b, "job")[0] == [(1, "b"), (1, "a"), (7, "b"), (7, "a")]
    assert rows(a, "g")[0] == [(1, "a", "b")] and rows(b, "g")[0] == [(1, "b", "a")]
    text = a.ctl("log", "job").stdout
    assert text.count("(damaged: ") == 2 and "\033" not in text
    assert listed(a, "job") == listed(b, "job") == ["1@b", "1", "7@b", "7"]
    for name in ("job", "other"):
        a.ctl("kill", "-s", "KILL", name)


def test_any_of_them(make_lab):
    """Checkpoints of an earlier run on another host, with the same number too, while the job runs and after it has ended, from any host."""
    lab = started(make_lab(3))
    a, b, c = lab.hosts
    a.detach("sleep", "1000", name="job")
    first = a.checkpoint("job").read_bytes()
    end(a, "job")
    b.detach("sleep", "1001", name="job")
    for number in (1, 2):
        b.checkpoint("job")
    for host in lab.hosts:
        assert listed(host, "job") == ["1@a", "1", "2"]
    for host, to, seconds in ((c, "1@a", 1000), (a, "2", 1001), (a, "1@a", 1000), (b, "1", 1001), (b, "1@a", 1000), (a, "1@b", 1001)):
        host.rollback("job", "--to", to)
        assert runs(c) == [(f"sleep {seconds}", "b")]
    b.rollback("job", "--to", "1@a")
    c.rollback("job")
    assert runs(c) == [("sleep 1001", "b")]
    for to, host in (("3", "any host"), ("2@a", "host a"), ("1@x", "host x")):
        done = c.ctl("rollback", "--to", to, "job", check=False)
        assert done.returncode == 1 and f"there is no checkpoint {to[0]} of it on {host};" in done.stderr and done.stderr.count("\n") == 1, done.stderr
    a.ctl("migrate", "job", "c")
    a.rollback("job", "--to", "1@a")
    assert runs(c) == [("sleep 1000", "c")]
    end(a, "job")
    assert listed(a, "job") == ["1@a", "1", "2"]
    for host, options, seconds, where in ((c, ("--to", "1@a"), 1000, "a"), (a, ("--to", "1"), 1001, "b"), (c, (), 1001, "b"), (b, ("--to", "1@a", "--on", "a=c"), 1000, "c")):
        host.rollback("job", *options)
        assert runs(c) == [(f"sleep {seconds}", where)]
        end(a, "job")
    assert "no checkpoint of one on any host" in c.ctl("rollback", "no-such-job", check=False).stderr
    assert (a.state / "pbeam" / "job" / "1.ckpt").read_bytes() == first
    assert not [path for host in lab.hosts for path in host.state.rglob("*.copy")]


def test_not_as_things_are(make_lab):
    """In parentheses: a cut of an earlier run while another runs, and the checkpoint of a subtree that is now on another host. Each can be used once the obstacle is gone."""
    lab = started(make_lab(3))
    a, b, c = lab.hosts
    pair = Pair(a, b)
    pair.until_counts()
    a.checkpoint("pair")
    a.ctl("kill", "-s", "KILL", pair.child)  # its parent does not survive that
    pair.job.wait(20)
    vpid, out = c.detach("sh", "-c", "sleep 1000 & echo $!; wait", name="pair")
    c.wait_until(out.read_text, what="the child")
    theirs = c.checkpoint("pair")
    before = theirs.read_bytes()
    assert listed(c, "pair") == ["(1)", "1"]
    done = c.ctl("rollback", "--to", "1@a", "pair", check=False)
    assert done.returncode == 1 and f"of an earlier run; end this one first: pbeamctl kill -s KILL {vpid}" in done.stderr
    child = out.read_text().strip()
    c.checkpoint(child)
    assert listed(a, child) == ["1"]
    a.ctl("migrate", "pair", "b")
    assert listed(a, child) == ["(1)"]
    done = a.ctl("rollback", child, "--to", "1", check=False)
    assert done.returncode == 1 and "is on host c and the process on b; move it there first" in done.stderr
    a.ctl("migrate", "pair", "c")
    a.rollback(child, "--to", "1")
    for number in (vpid, child):
        c.ctl("kill", "-s", "KILL", number)
    a.wait_until(lambda: not a.vpids(), what="the end")
    assert listed(c, "pair") == ["1@a", "1"]
    c.rollback("pair", "--to", "1@a")
    assert pair.where() == ("a", "b")
    assert theirs.read_bytes() == before
    pair.home.file("go")
    a.wait_until(lambda: not a.vpids(), 30, "both to end")
