"""`pbeamctl log` in a cluster: the checkpoints that all hosts have."""
import json

import pytest
from test_group import lose


def rows(host, what, check=True):
    """(number, hosts) of each; what was said on standard error."""
    done = host.ctl("log", "--json", what, check=check)
    return [(row["number"], *row["hosts"]) for row in json.loads(done.stdout)["checkpoints"]], done.stderr


@pytest.mark.messy
def test_of_all_hosts(make_lab):
    """By name or number, from every host, while it runs, when it has ended, and when a host is lost."""
    lab = make_lab(3).start()
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
    c.ctl("kill", "-s", "KILL", "job")
    a.wait_until(lambda: not a.vpids(), what="its end")
    for word in ("job", vpid):
        assert rows(c, word) == ([(1, "a"), (2, "b")], "")
    lose(lab, b)
    assert rows(c, "job") == ([(1, "a")], "pbeamctl: host b does not answer; its checkpoints are not shown\n")
    done = c.ctl("log", "no-such-job", check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "on any host that answers; host b does not answer" in done.stderr


def test_same_number(make_lab):
    """What has one number on two hosts and is not the same is listed twice; a cut, whose manifest is on two hosts, once."""
    lab = make_lab(2).start()
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
    for name in ("job", "other"):
        a.ctl("kill", "-s", "KILL", name)
