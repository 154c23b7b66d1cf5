"""Programs of two versions side by side. PBEAM_TEST_TABLE_VERSION makes the programs those of another version: their name table has
that number, and they see the other one as a later or earlier version does."""
import os
import signal

import pytest
from programs import COUNT, counts

pytestmark = pytest.mark.timeout(60)

OTHER = {"PBEAM_TEST_TABLE_VERSION": "14"}


def end_daemon(host):
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
