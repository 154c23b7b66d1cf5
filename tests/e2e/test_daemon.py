"""pbeamd: start on demand, discovery of running programs, exit when idle; messages of the commands."""
import os
import signal
import socket
import subprocess
import time

import pytest
from programs import COUNT, counts

pytestmark = pytest.mark.timeout(60)


def test_started_on_demand_and_found_again(host):
    """When pbeamd is killed the programs go on, and the next command finds them."""
    vpid, out = host.detach(*COUNT, name="count")
    assert vpid in host.vpids()
    for _ in range(3):
        for pid in host.pids_of("pbeamd"):
            os.kill(pid, signal.SIGKILL)
        host.wait_until(lambda: not host.pids_of("pbeamd"), what="pbeamd to be gone")
        counts(host, out)
        assert vpid in host.vpids()
        host.checkpoint("count")
        host.rollback("count")
        counts(host, out)
    host.ctl("kill", "-s", "KILL", "count")


def test_socket_of_a_reused_number(host):
    """The socket of a killed scip is removed, also if another program has its number by now; that of a living one stays."""
    vpid, out = host.detach(*COUNT, name="count")
    folder = host.runtime / "pbeam" / "scip"
    living = set(folder.iterdir())
    other = host.popen(["sleep", "100"])
    left = folder / str(other.pid)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(left))
    host.own(left)
    host.ps()
    host.wait_until(lambda: not left.exists(), what="the socket to be removed")
    assert living <= set(folder.iterdir())
    counts(host, out)
    other.kill()
    other.wait()
    host.ctl("kill", "-s", "KILL", "count")


def test_few_descriptors(host):
    """Commands that have no descriptor left for /proc forget no job."""
    vpid, out = host.detach(*COUNT, name="count")
    # One may be starting just now.
    host.wait_until(lambda: not [os.kill(pid, signal.SIGKILL) for pid in host.pids_of("pbeamd")], what="pbeamd to be gone")
    for descriptors in range(3, 16):
        host.run(["prlimit", f"--nofile={descriptors}", "pbeamctl", "ps"], check=False)
        host.run(["prlimit", f"--nofile={descriptors}", "scip", "run", "--", "true"], check=False)
    for pid in host.pids_of("pbeamd"):
        os.kill(pid, signal.SIGKILL)
    assert vpid in host.vpids()
    counts(host, out)
    host.checkpoint("count")
    host.ctl("kill", "-s", "KILL", "count")


CROWD = """
import socket, sys, time
crowd = []
for _ in range(60):
    s = socket.socket(socket.AF_UNIX)
    s.connect(sys.argv[1])
    crowd.append(s)
print("crowded", flush=True)
sys.stdin.read()
"""


def processor_time(pid):
    """User and system time in seconds."""
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_no_descriptor_left(host):
    """Clients that come when pbeamd has no descriptor left are told so. It does not spin, and serves again when there are some."""
    daemon = host.start(["prlimit", "--nofile=32:32", "pbeamd"], "daemon")
    host.wait_until(lambda: "pbeamd: ready" in daemon.errors(), what="pbeamd: ready")
    crowd = host.popen(["python3", "-c", CROWD, host.runtime / "pbeam" / "daemon"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert crowd.stdout.readline() == b"crowded\n"
    refused = host.ctl("ps", check=False)
    assert refused.returncode != 0
    assert "pbeamd has no descriptor left (its limit is 32)" in refused.stderr
    pid = host.pids_of("pbeamd")[0]
    before = processor_time(pid)
    time.sleep(2)
    assert processor_time(pid) - before < 0.2
    assert len(daemon.errors().splitlines()) < 10, daemon.errors()
    crowd.stdin.close()
    crowd.wait()
    host.wait_until(lambda: host.ctl("ps", check=False).returncode == 0, what="pbeamd to serve again")
    assert "connections are accepted again" in daemon.errors()
    daemon.process.terminate()
    daemon.wait()


def test_another_pid_namespace(host):
    """Its processes have other numbers: the table is refused there, and nothing is forgotten."""
    vpid, out = host.detach(*COUNT, name="count")
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    refused = host.run([*inside, "scip", "run", "--", "true"], check=False)
    assert refused.returncode != 0
    assert "of another pid namespace and in use by programs that run; end them, or set XDG_RUNTIME_DIR" in refused.stderr
    assert vpid in host.vpids()
    counts(host, out)
    own = host.file("elsewhere")
    own.unlink()
    host.run(["mkdir", "-m", "700", own])
    host.run([*inside, "scip", "run", "--", "true"], env={"XDG_RUNTIME_DIR": str(own)})
    assert vpid in host.vpids()
    host.ctl("kill", "-s", "KILL", "count")


def test_in_the_foreground(host):
    job = host.start(["pbeamd"], "daemon")
    host.wait_until(lambda: "pbeamd: ready" in job.errors(), what="pbeamd: ready")
    assert host.ps() is not None
    job.process.terminate()
    job.wait()


def test_several_on_one_machine(host, root_host):
    vpid, out = host.detach(*COUNT, name="count")
    assert root_host.vpids() == [] and vpid in host.vpids()
    host.ctl("kill", "-s", "KILL", "count")


def test_ps(host):
    vpid, out = host.detach("sh", "-c", "sleep 50 & wait", name="pair")
    host.wait_until(lambda: len(host.vpids()) == 2, what="both")
    text = host.ctl("ps").stdout
    assert str(vpid) in text and "pair" in text and "sleep" in text
    rows = host.ps()
    rows = rows.get("processes", rows) if isinstance(rows, dict) else rows
    for row in rows:
        assert {"vpid", "parent", "host", "state", "threads", "memory", "name"} <= set(row), row
    host.ctl("kill", "-s", "KILL", "pair")
    host.wait_until(lambda: vpid not in host.vpids(), what="its end")
    for other in host.vpids():
        host.ctl("kill", "-s", "KILL", str(other))


@pytest.mark.parametrize("words, status", [
    (["checkpoint", "999999"], 1), (["rollback", "no-such-name"], 1), (["log", "no-such-name"], 1), (["kill", "999999"], 1),
    (["attach", "999999"], 1), (["stack", "999999"], 1), (["image", "verify", "/nonexistent"], 1), (["image", "show", "/etc/passwd"], 1),
    (["frobnicate"], 2), (["checkpoint"], 2), (["ps", "--nonsense"], 2), (["image"], 2), ([], 2), (["kill", "-s", "NONSENSE", "1"], 2),
])
def test_refusals(host, words, status):
    """One sentence on standard error, nothing on standard output."""
    done = host.ctl(*words, check=False)
    assert done.returncode == status, (done.returncode, done.stderr)
    assert done.stderr.startswith("pbeamctl") or status == 2
    assert done.stderr and not done.stdout
    if status == 1:
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["ps", "checkpoint", "log", "rollback", "kill", "attach", "stack", "image", "doctor"])
def test_help(host, command):
    done = host.ctl(command, "--help")
    assert command in done.stdout
    assert command in host.ctl("--help").stdout


@pytest.mark.parametrize("command", ["scip", "pbeamd", "pbeamctl"])
def test_help_and_version(host, command):
    assert command in host.run([command, "--help"]).stdout
    assert host.run([command, "--version"]).stdout


def test_man_pages(stage):
    pages = {path.name.split(".")[0] for path in (stage.top / "share" / "man").rglob("*.[18]*")}
    assert {"scip", "pbeamd", "pbeamctl"} <= pages
