"""Hosts of a cluster: joining, loss, return; requests over hosts; daemons that are killed."""
import json
import os
import signal
import time

import pytest
from harness import comm

pytestmark = pytest.mark.timeout(120)

WAITS = """
import os, signal
print(os.getpid(), flush=True)
signals = {signal.SIGUSR1, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
while True:
    info = signal.sigwaitinfo(signals)
    print(info.si_signo, info.si_pid, flush=True)
    if info.si_signo == signal.SIGTERM:
        break
"""


def states(host):
    return {row["name"]: row["state"] for row in json.loads(host.ctl("hosts", "--json").stdout)["hosts"]}


def places(host):
    return {row["vpid"]: row["host"] for row in host.ps()["processes"]}


def daemon_pids(host):
    return [pid for pid in host.pids_of("pbeamd") if comm(pid) not in ("", "pbeam-channel")]


def kill_daemon(host):
    for pid in daemon_pids(host):
        os.kill(pid, signal.SIGKILL)
    host.wait_until(lambda: not daemon_pids(host), what="pbeamd to be gone")


def ended(host, vpid):
    host.wait_until(lambda: vpid not in host.vpids(), what=f"vpid {vpid} to end")


def test_hosts(make_lab):
    lab = make_lab(3).start()
    for host in lab.hosts:
        rows = json.loads(host.ctl("hosts", "--json").stdout)["hosts"]
        assert [row["name"] for row in rows if row["state"] == "here"] == [host.name]
        assert {row["name"] for row in rows} == {"a", "b", "c"}
        assert [row["name"] for row in rows if row["central"]] == ["a"]
        for row in rows:
            assert row["cpus"] > 0 and row["memory"] > row["memory_free"] > 0 and row["kernel"] and row["port"] == 7113, row
            assert f"pbeamd {row['version']}\n" == host.run(["pbeamd", "--version"]).stdout
    assert "c " in lab.hosts[0].ctl("hosts").stdout


def test_alone(host):
    rows = json.loads(host.ctl("hosts", "--json").stdout)["hosts"]
    assert len(rows) == 1 and rows[0]["state"] == "here"
    done = host.run([host.stage.tools / "registry", "get", "x"], check=False)
    assert done.returncode == 1 and "in no cluster" in done.stderr
    done = host.run([host.stage.tools / "channel", "talk", "b", "x"], check=False)
    assert done.returncode == 1 and "in no cluster" in done.stderr
    assert "in no cluster" in host.ctl("hosts", "--remove", "b", check=False).stderr


def test_cut_and_mended(make_lab):
    """Both sides notice a cut link within seconds and connect again when it is mended."""
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    c.cut()
    start = time.monotonic()
    a.wait_until(lambda: states(a)["c"] == "lost", 10, "c to be lost")
    assert time.monotonic() - start < 6
    b.wait_until(lambda: states(b)["c"] == "lost", 5, "c to be lost on b")
    c.wait_until(lambda: states(c)["a"] == states(c)["b"] == "lost", 5, "the others to be lost on c")
    assert states(a)["b"] == "up"
    assert "host c is lost" in a.daemon.errors()
    c.mend()
    for host in lab.hosts:
        host.wait_until(lambda host=host: len(lab.up(host)) == 3, 15, "all to be back")


def test_daemons_killed(make_lab):
    """Each daemon is killed, the central one too: programs go on, and the next command finds them."""
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    started = {host.name: host.detach("sleep", "100", name=f"job-{host.name}")[0] for host in lab.hosts}
    for victim in (b, a, c, a):
        kill_daemon(victim)
        assert started[victim.name] in victim.vpids()  # starts it again, in the cluster
        for host in lab.hosts:
            host.wait_until(lambda host=host: len(lab.up(host)) == 3, 15, f"all to be up on {host.name} after {victim.name}'s daemon was killed")
        for host in lab.hosts:
            host.wait_until(lambda host=host: places(host) == {vpid: name for name, vpid in started.items()}, 10, "all processes")
    for name, vpid in started.items():
        b.ctl("kill", "-s", "KILL", f"job-{name}")
        ended(c, vpid)


def test_removed(make_lab):
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    assert "c is up" in b.ctl("hosts", "--remove", "c", check=False).stderr
    assert "this is it" in b.ctl("hosts", "--remove", "b", check=False).stderr
    assert "no host x" in b.ctl("hosts", "--remove", "x", check=False).stderr
    kill_daemon(c)
    for host in (a, b):
        host.wait_until(lambda host=host: states(host)["c"] == "lost", 8, "c to be lost")
    b.ctl("hosts", "--remove", "c")
    for host in (a, b):
        host.wait_until(lambda host=host: "c" not in states(host), 8, "c to be forgotten")
    c.ctl("hosts")
    c.wait_until(lambda: len(lab.up(c)) == 3, 15, "c to be back")


def test_names_are_unique(make_lab):
    """A host with the name of a present host is refused, with the reason."""
    lab = make_lab(3)
    for host in lab.hosts[:2]:
        host.start_daemon()
    a, b, c = lab.hosts
    a.wait_until(lambda: len(lab.up(a)) == 2, 15, "b")
    c.start_daemon("--host-name", "b")
    for host in (a, c):
        host.wait_until(lambda host=host: "another host is called b" in host.daemon.errors(), 10, "the refusal in the log")
    assert len(lab.up(a)) == 2


def test_requests_over_hosts(make_lab):
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    vpid, _ = a.detach("sleep", "100", name="sleeper")
    for host in lab.hosts:
        assert places(host) == {vpid: "a"}
    for word in ("sleeper", str(vpid)):
        assert "nanosleep" in c.ctl("stack", word).stdout
        path = b.ctl("checkpoint", word).stdout.strip()
        assert path.startswith(str(a.state)), path
        assert path in c.ctl("log", word).stdout
        b.ctl("rollback", word)
        assert places(c)[vpid] == "a"
    done = b.ctl("kill", "no-such-job", check=False)
    assert done.returncode == 1 and "no job of that name on any host" in done.stderr
    c.ctl("kill", "-s", "KILL", "sleeper")
    ended(b, vpid)


def test_numbers_are_unique(make_lab):
    """However many processes are born on whichever host, no two have the same number."""
    lab = make_lab(3).start()
    script = "for i in $(seq 60); do sh -c 'echo $$'; done"
    jobs = [host.scip_run("sh", "-c", script) for host in lab.hosts]
    numbers = []
    for job in jobs:
        assert job.wait() == 0, job.errors()
        numbers += job.text().split()
    assert len(numbers) == 180 and len(set(numbers)) == 180


def test_signals_over_hosts(make_lab):
    """kill() and its relatives find a process on another host, and signal no other."""
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    job = a.scip_run("python3", "-c", WAITS)
    a.wait_until(lambda: job.text(), what="its number")
    vpid = int(job.text())
    script = f"""
import ctypes, os, signal
me = os.getpid()
os.kill({vpid}, 0)
os.kill({vpid}, signal.SIGUSR1)
print(me, os.getpgid({vpid}), os.getsid({vpid}), os.getpriority(os.PRIO_PROCESS, {vpid}))
before, own = os.getpriority(os.PRIO_PROCESS, {vpid}), os.getpriority(os.PRIO_PROCESS, 0)
os.setpriority(os.PRIO_PROCESS, {vpid}, before + 2)
assert os.getpriority(os.PRIO_PROCESS, {vpid}) == before + 2 and os.getpriority(os.PRIO_PROCESS, 0) == own
assert os.sched_getscheduler({vpid}) == os.SCHED_OTHER
libc = ctypes.CDLL(None)
assert libc.syscall(200, {vpid}, 0) == 0  # tkill
"""
    senders = []
    for host in (b, c, a):
        words = host.run(["scip", "run", "--", "python3", "-c", script]).stdout.split()
        senders.append(words[0])
        assert int(words[1]) == vpid and int(words[3]) == 2 * len(senders) - 2, words
    b.run(["scip", "run", "--", "python3", "-c", f"import os; os.kill({vpid}, 15)"])
    assert job.wait() == 0
    lines = job.lines()[1:]
    assert [line.split()[0] for line in lines] == ["10", "10", "10", "15"]
    assert [line.split()[1] for line in lines[:2]] == senders[:2]
    gone = b.run(["scip", "run", "--", "python3", "-c", f"import os; os.kill({vpid}, 0)"], check=False)
    assert "ProcessLookupError" in gone.stderr


def test_signals_to_a_lost_host(make_lab):
    """A process on an unreachable host has not ended: the error is not ESRCH."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    job = b.scip_run("python3", "-c", WAITS)
    b.wait_until(lambda: job.text(), what="its number")
    b.cut()
    a.wait_until(lambda: states(a)["b"] == "lost", 10, "b to be lost")
    done = a.run(["scip", "run", "--", "python3", "-c", f"import os; os.kill({int(job.text())}, 0)"], check=False)
    assert "OSError: [Errno 113]" in done.stderr, done.stderr
    assert "which is lost" in a.ctl("kill", job.text().strip(), check=False).stderr
    b.mend()
    a.wait_until(lambda: len(lab.up(a)) == 2, 15, "b to be back")
    a.ctl("kill", job.text().strip())
    assert job.wait() == 0
