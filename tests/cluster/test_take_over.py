"""The central host is lost for good and another takes over; the old one returns, or does not."""
import json
import os
import shutil
import signal

import pytest
from test_hosts import kill_daemon, places, states
from test_registry import ask

pytestmark = pytest.mark.timeout(120)


def central(host):
    return [row["name"] for row in json.loads(host.ctl("hosts", "--json").stdout)["hosts"] if row["central"]]


def all_answer(hosts):
    """Waits until every two hosts have a channel: in the first second some know each other through the central host only."""
    for host in hosts:
        host.wait_until(lambda host=host: not host.ctl("ps").stderr, 20, "all hosts to answer")


def started(lab):
    lab.start()
    all_answer(lab.hosts)
    return lab


def lost(host, *others):
    for other in others:
        other.wait_until(lambda other=other: states(other)[host.name] == "lost", 10, f"{host.name} to be lost on {other.name}")


def lose(host, *others):
    """The machine is gone with everything that it runs."""
    for pid in sorted(host.processes(), reverse=True):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    lost(host, *others)


def all_follow(lab, hosts, name, up=None):
    for host in hosts:
        host.wait_until(lambda host=host: len(lab.up(host)) == (up or len(hosts)) and central(host) == [name], 20, f"all to be up on {host.name}, and {name} central")


@pytest.mark.messy
def test_three_hosts(make_lab):
    """Everything that needed the central host works again, and programs have not noticed."""
    lab = make_lab(4)
    a, b, c, d = lab.hosts
    for host in (a, b, c):
        host.start_daemon()
    all_follow(lab, (a, b, c), "a")
    all_answer((a, b, c))
    vpids = {host.name: host.detach("sleep", "1000", name=f"job-{host.name}")[0] for host in (b, c)}
    first = int(ask(c, "lease", "lease/numbers", "8192").stdout)
    done = b.ctl("hosts", "--take-over", check=False)
    assert done.returncode == 1 and "host a is the central one and it is up" in done.stderr
    assert "already" in a.ctl("hosts", "--take-over", check=False).stderr
    assert b.ctl("hosts", "--take-over", "--remove", "a", check=False).returncode == 2
    lose(a, b, c)
    done = b.ctl("hosts", "--take-over")
    assert "c goes on with it" in done.stderr and "if host a runs somewhere still" in done.stderr, done.stderr
    assert central(b) == central(c) == ["b"] and "(central)" in c.ctl("hosts").stdout
    assert int(ask(c, "lease", "lease/numbers", "8192").stdout) > first + 8192
    assert c.run(["scip", "run", "--", "echo", "alive"]).stdout == "alive\n"
    c.ctl("migrate", "job-c", "b")
    assert places(c)[vpids["c"]] == "b"
    d.start_daemon("--join", c.ip)  # any host reports which one is central
    d.wait_until(lambda: {"b", "c", "d"} <= set(lab.up(d)) and central(d) == ["b"], 15, "d to join")
    c.ctl("migrate", "job-b", "d")
    assert places(d) == {vpids["b"]: "d", vpids["c"]: "b"}


@pytest.mark.messy
def test_two_hosts(make_lab):
    """The remaining one of two continues alone, also after a restart of its daemon; what was on the lost host is rolled back there."""
    lab = started(make_lab(2))
    a, b = lab.hosts
    jobs = [host.detach("sleep", "1000", name=f"on-{host.name}", options=["--group", "g"])[0] for host in lab.hosts]
    b.ctl("checkpoint", "g")
    lose(a, b)
    kill_daemon(b)
    assert "no other one was reached" in b.ctl("hosts", "--take-over").stderr
    assert central(b) == ["b"] and states(b) == {"a": "lost", "b": "here"}
    b.ctl("rollback", "--on", "a=b", "g")
    assert places(b) == dict.fromkeys(jobs, "b")
    kill_daemon(b)
    assert central(b) == ["b"]
    b.ctl("hosts", "--remove", "a")
    assert central(b) == ["b"] and states(b) == {"b": "here"}
    assert b.run(["scip", "run", "--", "echo", "alive"]).stdout == "alive\n"


@pytest.mark.parametrize("how", ["killed", pytest.param("cut", marks=pytest.mark.long(only=True))])
def test_old_one_returns(make_lab, how):
    """It learns from any host that it has been replaced, and is an ordinary host; so does a host that was lost at the time."""
    lab = started(make_lab(4))
    a, b, c, d = lab.hosts
    vpid, _ = a.detach("sleep", "1000", name="job-a")
    ask(b, "set", "before", "1", "0")  # the writer knows the new central host
    for host in (a, d):
        host.cut() if how == "cut" else kill_daemon(host)
        lost(host, b, c)
    done = c.ctl("hosts", "--take-over")
    assert "b goes on with it" in done.stderr and "no answer from d" in done.stderr
    ask(b, "set", "after", "2", "0")
    if how == "cut":
        ask(a, "set", "forgotten", "3", "0")
        for host in (a, d):
            host.mend()
    a.ctl("hosts")
    d.ctl("hosts")
    all_follow(lab, lab.hosts, "c")
    for host in (a, d):
        host.wait_until(lambda host=host: ask(host, "get", "after", check=False).stdout.endswith(" 2\n"), 10, "the registry of c")
        assert ask(host, "get", "before").stdout.endswith(" 1\n") and ask(host, "get", "forgotten", check=False).returncode == 1
    log = (a.daemon.errors() if how == "cut" else "") + (a.runtime / "pbeam/log").read_text()
    assert "host c has taken over: this host is not the central one any more" in log
    assert "host c has taken over" in a.ctl("hosts").stderr
    for host in (a, b):
        kill_daemon(host)
        all_follow(lab, [host], "c", 4)
    assert places(a) == {vpid: "a"}
    a.ctl("migrate", "job-a", "d")
    a.ctl("kill", "-s", "KILL", "job-a")


@pytest.mark.parametrize("point", ["take-over", "taken-over"])
def test_killed_meanwhile(make_lab, point):
    """The daemon that takes over is killed before or after the change is durable: nothing has happened, or everything."""
    lab = make_lab(3)
    a, b, c = lab.hosts
    word = b.file("fault", f"{point}:kill")
    b.env["PBEAM_FAULT"] = str(word)
    started(lab)
    kill_daemon(a)
    lost(a, b, c)
    assert b.ctl("hosts", "--take-over", check=False).returncode == 1
    word.write_text("")
    b.ctl("hosts")
    if point == "take-over":
        a.ctl("hosts")
    all_follow(lab, lab.hosts[point == "taken-over":], "a" if point == "take-over" else "b")


@pytest.mark.long(only=True)
def test_new_machine(make_lab):
    """A machine with the name and address of the lost host, but not its state, is not central; it can join. A host that has joined does not start another cluster by mistake."""
    lab = started(make_lab(3))
    a, b, c = lab.hosts
    lose(a, b, c)
    b.ctl("hosts", "--take-over")
    shutil.rmtree(a.state / "pbeam/.cluster")
    a.start_daemon()
    a.wait_until(lambda: "(c) is turned away: it is of another cluster" in a.daemon.errors(), 15, "it to be refused")
    assert central(b) == central(c) == ["b"] and states(b)["a"] == "lost"
    kill_daemon(a)
    shutil.rmtree(a.state / "pbeam/.cluster")
    b.ctl("hosts", "--remove", "a")
    a.start_daemon("--join", b.ip)
    all_follow(lab, lab.hosts, "b")
    kill_daemon(c)
    done = c.run(["pbeamd", "--listen", c.ip, "--cluster-key", lab.key_of(c), "--host-name", "c"], check=False)
    assert done.returncode == 1 and "this host has joined a cluster, the central host of which is b" in done.stderr


@pytest.mark.long(only=True)
def test_newest_copy(make_lab):
    """The host that takes over gets changes that it missed from a host that has them."""
    lab = started(make_lab(3))
    a, b, c = lab.hosts
    b.cut()
    lost(b, a, c)
    ask(c, "set", "late", "1", "0")
    kill_daemon(a)
    lost(a, c)
    b.mend()
    b.wait_until(lambda: not [line for line in b.ctl("ps").stderr.splitlines() if "host c" in line], 20, "c to answer")
    b.ctl("hosts", "--take-over")
    all_follow(lab, (b, c), "b")
    for host in (b, c):
        assert ask(host, "get", "late").stdout.endswith(" 1\n")


@pytest.mark.long(only=True)
def test_two_at_once(make_lab):
    """Two hosts take over on the two sides of a cut link: the one with the later name stays central. When it is lost the first takes over again."""
    lab = started(make_lab(4))
    a, b, c, d = lab.hosts
    a.cut()
    b.cut()
    lost(a, b, c, d)
    lost(b, c, d)
    for host in (b, c):
        host.ctl("hosts", "--take-over")
    ask(b, "set", "of-b", "1", "0")
    ask(d, "set", "of-d", "1", "0")
    b.mend()
    all_follow(lab, (b, c, d), "c")
    a.mend()
    all_follow(lab, lab.hosts, "c")
    for host in lab.hosts:
        host.wait_until(lambda host=host: ask(host, "get", "of-d", check=False).stdout, 10, "the registry of c")
        assert not ask(host, "get", "of-b", check=False).stdout
    for host in (c, d, b):
        kill_daemon(host)
    for host in lab.hosts:
        host.ctl("hosts")
    all_follow(lab, lab.hosts, "c")
    kill_daemon(c)
    lost(c, a)
    a.ctl("hosts", "--take-over")
    all_follow(lab, (a, b, d), "a")
    c.ctl("hosts")
    all_follow(lab, lab.hosts, "a")


@pytest.mark.messy
@pytest.mark.parametrize("point", ["registry-committed", pytest.param("registry-before-commit", marks=pytest.mark.long(only=True))])
def test_undecided(make_lab, point):
    """A program that waits for the outcome of its migration gets it from the new central host."""
    lab = make_lab(3)
    a, b, c = lab.hosts
    a.env["PBEAM_FAULT"] = str(a.file("fault", f"{point}:kill"))
    started(lab)
    vpid, _ = b.detach("sleep", "1000", name="job")
    moving = b.start(["pbeamctl", "migrate", vpid, "c"], "moving")
    b.wait_until(lambda: "known to the central host alone" in moving.errors(), 20, "the user to be told")
    lost(a, b, c)
    c.ctl("hosts", "--take-over")
    moved = moving.wait(40) == 0
    b.wait_until(lambda: places(b) == {vpid: "c" if moved else "b"}, 20, "it to be in one place")
    c.wait_until(lambda: "migration/" not in ask(c, "list", "migration/").stdout, 20, "the record to go")
    b.ctl("kill", "-s", "KILL", "job")
    b.wait_until(lambda: not b.vpids(), 20, "it to end")
