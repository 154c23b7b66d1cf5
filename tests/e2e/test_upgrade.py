"""Programs of two versions side by side. PBEAM_TEST_TABLE_VERSION makes the programs those of another version: their name table has
that number, and they see the other one as a later or earlier version does."""
import os
import signal

import pytest
from programs import COUNT, counts

pytestmark = pytest.mark.timeout(60)

OTHER = {"PBEAM_TEST_TABLE_VERSION": "14"}


def end_daemon(host):
    """Ends the pbeamd that `scip run` has started. It does not wait for it, and under load it comes late: then it would be the one that serves."""
    host.wait_until(lambda: host.pids_of("pbeamd"), what="pbeamd to be there")
    for pid in host.pids_of("pbeamd"):
        os.kill(pid, signal.SIGTERM)
    host.wait_until(lambda: not host.pids_of("pbeamd"), what="pbeamd to be gone")


def test_jobs_of_another_version(host):
    """pbeamctl and pbeamd list, save, roll back and end the jobs of another version, and names stay unique."""
    theirs, out = host.detach(*COUNT, name="theirs", env=OTHER)
    end_daemon(host)
    ours, own = host.detach(*COUNT, name="ours")
    assert {theirs, ours} <= set(host.vpids())
    assert "names.14" in os.listdir(host.runtime / "pbeam")
    taken = host.run(["scip", "run", "-d", "--name", "theirs", "--", "true"], check=False)
    assert taken.returncode == 125 and "the name theirs is in use" in taken.stderr and "under another version" in taken.stderr
    for target in ("theirs", str(theirs)):
        host.checkpoint(target)
        counts(host, out)
        host.rollback(target)
        counts(host, out)
    assert "#0" in host.ctl("stack", "theirs").stdout
    image = host.home / "theirs.ckpt"
    host.checkpoint("theirs", "--kill", "-o", str(image))
    host.wait_until(lambda: theirs not in host.vpids(), what="the job to be gone")
    again = host.run(["scip", "restore", "-d", str(image)])
    assert int(again.stdout) == theirs
    counts(host, out)
    host.ctl("kill", "-s", "KILL", "theirs")
    host.ctl("kill", "-s", "KILL", "ours")
    host.wait_until(lambda: not host.vpids(), what="both jobs to be gone")
    host.wait_until(lambda: not host.vpids() and not (host.runtime / "pbeam" / "names.14").exists(),
                    what="the table that no process uses to be removed")


def test_number_in_use_elsewhere(host):
    """A job that runs under another version is not restored a second time."""
    vpid, out = host.detach(*COUNT, name="count", env=OTHER)
    image = host.home / "count.ckpt"
    host.run(["pbeamctl", "checkpoint", "count", "-o", str(image)], env=OTHER)
    end_daemon(host)
    twice = host.run(["scip", "restore", "-d", str(image)], check=False)
    assert twice.returncode == 125 and "in use" in twice.stderr, twice.stderr
    counts(host, out)
    host.ctl("kill", "-s", "KILL", str(vpid))


# ---- pbeamctl upgrade ----


def start_family(host, **more):
    """Returns when the child is there too: an upgrade before that has one supervisor to replace."""
    vpid, out = host.detach(*FAMILY, name="family", **more)
    host.wait_until(lambda: len(host.vpids()) == 2, what="the child")
    return vpid, out


# Counts in two threads and a child; makes a new child now and then.
FAMILY = ["python3", "-uc", """
import os, threading, time
n = [0, 0]
def turn():
    while True:
        n[1] += 1
        time.sleep(0.01)
threading.Thread(target=turn, daemon=True).start()
if os.fork() == 0:
    while True:
        time.sleep(0.003)
k = 0
while True:
    print(k)
    k += 1
    if k % 10 == 0:
        pid = os.fork()
        if pid == 0:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    start = time.monotonic()
    time.sleep(0.02)
    assert time.monotonic() - start >= 0.02
"""]


def install(host, name):
    """Another version: a copy of the programs in a directory of its own. Returns the path of its pbeamctl."""
    folder = host.home / name
    host.run(["sh", "-c", 'mkdir "$1" && for p in scip pbeamd pbeamctl; do cp "$(command -v $p)" "$1"; done', "sh", str(folder)])
    return folder


def supervisors(host):
    """The program files of all keepers and scips."""
    files = set()
    for pid in host.pids_of("scip") + host.pids_of("scip-keeper"):
        try:
            files.add(os.readlink(f"/proc/{pid}/exe"))
        except OSError:
            continue
    return files


def test_upgrade_again_and_again(host):
    """Twenty changes between two versions: the program notices nothing, and all supervisors are of the new version."""
    vpid, out = start_family(host)
    folders = [install(host, "one"), install(host, "two")]
    counts(host, out)
    keeper = host.pids_of("scip-keeper")
    for turn in range(20):
        folder = folders[turn % 2]
        host.run([str(folder / "pbeamctl"), "upgrade", *(["family"] if turn % 3 else [])])
        counts(host, out, more=2)
    host.wait_until(lambda: supervisors(host) == {str(folder / "scip")}, what="no supervisor of the old version to be left")
    assert host.pids_of("scip-keeper") == keeper
    host.checkpoint("family")
    counts(host, out)
    host.rollback("family")
    counts(host, out)
    rows = host.ps()
    rows = rows.get("processes", rows) if isinstance(rows, dict) else rows
    os.kill(next(row["scip"] for row in rows if row["vpid"] == vpid), signal.SIGKILL)
    host.wait_until(lambda: vpid not in host.vpids(), what="the program to end with its supervisor")
    for left in host.vpids():
        host.ctl("kill", "-s", "KILL", str(left))


def test_upgrade_on_a_terminal(host):
    """The console, a program of the old version, goes on with the new keeper: keys, output, Ctrl-C, the end."""
    child = host.python_prompt()
    folder = install(host, "new")
    host.run([str(folder / "pbeamctl"), "upgrade", "prompt"])
    child.sendline("x + 1")
    child.expect("42")
    child.expect(">>> ")
    child.sendline("while True: pass")
    child.expect("pass")
    child.sendline("")
    child.sendintr()
    child.expect("KeyboardInterrupt")
    host.run([str(folder / "pbeamctl"), "upgrade"])
    assert child.end("exit(5)") == 5


@pytest.mark.parametrize("point", ["succeed-keeper", "succeed-scip", "upgrade-process"])
def test_upgrade_fails(host, point):
    """The new keeper or scip cannot go on: the old one does, and another attempt works."""
    fault = host.file("fault")
    vpid, out = start_family(host, env={"PBEAM_FAULT": str(fault)})
    folder = install(host, "new")
    fault.write_text(f"{point}:fail\n")
    done = host.run([str(folder / "pbeamctl"), "upgrade", "family"], check=False)
    if point == "succeed-keeper":
        assert done.returncode == 1 and point in done.stderr and str(folder / "scip") not in supervisors(host), done
    counts(host, out)
    fault.write_text("")
    host.run([str(folder / "pbeamctl"), "upgrade", "family"])
    host.wait_until(lambda: supervisors(host) == {str(folder / "scip")}, what="no supervisor of the old version to be left")
    counts(host, out)
    host.checkpoint("family")
    host.rollback("family")
    counts(host, out)
    for left in host.vpids():
        host.ctl("kill", "-s", "KILL", str(left))


def test_upgrade_coordinator_killed(host):
    """Some supervisors are of the old version then; the job works, and the next attempt replaces the others."""
    fault = host.file("fault")
    vpid, out = start_family(host, env={"PBEAM_FAULT": str(fault)})
    folder = install(host, "new")
    fault.write_text("upgrade-process:kill:2\n")
    done = host.run([str(folder / "pbeamctl"), "upgrade", "family"], check=False)
    assert done.returncode == 1 and "killed" in done.stderr
    fault.write_text("")
    counts(host, out)
    host.checkpoint("family")
    host.rollback("family")
    counts(host, out)
    host.run([str(folder / "pbeamctl"), "upgrade", "family"])
    host.wait_until(lambda: supervisors(host) == {str(folder / "scip")}, what="no supervisor of the old version to be left")
    counts(host, out)
    for left in host.vpids():
        host.ctl("kill", "-s", "KILL", str(left))


def test_not_a_successor(host):
    """A program that cannot take over is not executed."""
    vpid, out = host.detach(*COUNT, name="count")
    folder = install(host, "new")
    (folder / "scip").unlink()
    for text in ("exit 0", "exit 1", "echo scip; exit 0"):
        fake = host.file("new/scip", f"#!/bin/sh\n{text}\n".encode())
        fake.chmod(0o755)
        done = host.run([str(folder / "pbeamctl"), "upgrade", "count"], check=False)
        assert done.returncode == 1 and "cannot take over" in done.stderr, done
        counts(host, out)
    theirs, _ = host.detach(*COUNT, name="theirs", env=OTHER)
    refused = host.ctl("upgrade", "theirs", check=False)
    assert refused.returncode == 1 and "name table of another version" in refused.stderr, refused
    host.ctl("kill", "-s", "KILL", "theirs")
    host.ctl("kill", "-s", "KILL", "count")
