"""The runtime directory is removed while jobs run, as systemd does at the last logout: they are found again."""
import os
import pathlib
import shutil
import signal
import time

import pytest
from programs import COUNT, counts

pytestmark = pytest.mark.timeout(60)


def all_works(host, vpid, out):
    # In the moment of the removal pbeamd may not start.
    host.wait_until(lambda: host.ctl("ps", check=False).returncode == 0 and vpid in host.vpids(), 10, "the job to be found")
    counts(host, out)
    host.checkpoint("count")
    counts(host, out)
    refused = host.run(["scip", "run", "-d", "--name", "count", "--", "true"], check=False)
    assert refused.returncode != 0 and "count" in refused.stderr
    host.rollback("count")
    counts(host, out)
    for pid in host.pids_of("pbeamd"):
        os.kill(pid, signal.SIGKILL)
    assert vpid in host.vpids()


def remove(path):
    """Removes the directory as a logout does, also while a keeper puts its files back."""
    while path.exists():
        try:
            shutil.rmtree(path)
            return
        except OSError:
            pass


def refuge(host):
    return next((host.state / "pbeam" / ".run").iterdir())


@pytest.mark.parametrize("times", [1, 3])
def test_removed_and_made_again(host, times):
    vpid, out = host.detach(*COUNT, name="count")
    for i in range(times):
        if i == 0:
            remove(host.runtime / "pbeam")
        else:  # where the job is put back meanwhile
            shutil.rmtree(refuge(host), ignore_errors=True)
        all_works(host, vpid, out)
    other, _ = host.detach("sleep", "100", name="other")
    assert {vpid, other} <= set(host.vpids())
    host.ctl("kill", "-s", "KILL", "count")
    host.ctl("kill", "-s", "KILL", "other")
    host.wait_until(lambda: not host.vpids(), 10, "the jobs to end")
    host.wait_until(lambda: not list(refuge(host).glob("tables/*")), 10, "no link to be left")


def test_gone_for_good(host):
    """Without a session's directory the jobs are found in the state directory, also in the next session."""
    session = host.top / "session"
    session.mkdir(mode=0o700)
    host.own(session)
    host.runtime = session / "user"
    host.env["XDG_RUNTIME_DIR"] = str(host.runtime)
    (session / "user").mkdir(mode=0o700)
    host.own(session / "user")
    vpid, out = host.detach(*COUNT, name="count")
    for pid in host.pids_of("pbeamd"):
        os.kill(pid, signal.SIGSTOP)
    shutil.rmtree(session / "user")
    session.chmod(0o555)  # as /run/user is for users
    for pid in host.pids_of("pbeamd"):
        os.kill(pid, signal.SIGCONT)
    all_works(host, vpid, out)
    assert list(refuge(host).glob("tables/*"))
    env = host.env.pop("XDG_RUNTIME_DIR")
    assert vpid in host.vpids()
    # The next session has a directory of the same name.
    host.env["XDG_RUNTIME_DIR"] = env
    session.chmod(0o700)
    (session / "user").mkdir(mode=0o700)
    host.own(session / "user")
    session.chmod(0o555)
    all_works(host, vpid, out)
    other, _ = host.detach("sleep", "100", name="other")
    assert {vpid, other} <= set(host.vpids())
    host.ctl("kill", "-s", "KILL", "count")
    host.ctl("kill", "-s", "KILL", "other")
    host.wait_until(lambda: not host.vpids(), 10, "the jobs to end")
    host.wait_until(lambda: not list(refuge(host).glob("tables/*")), 10, "no link to be left")


def test_without_a_session(host):
    """Others can make /tmp/pbeam-UID; it is not used."""
    del host.env["XDG_RUNTIME_DIR"]
    vpid, out = host.detach(*COUNT, name="count")
    uid = host.user.pw_uid if host.user else os.getuid()
    assert not pathlib.Path(f"/tmp/pbeam-{uid}").exists()
    assert list(refuge(host).glob("names.*")) and refuge(host).stat().st_mode & 0o777 == 0o700
    all_works(host, vpid, out)
    host.ctl("kill", "-s", "KILL", "count")
    host.wait_until(lambda: not host.vpids(), 10, "the job to end")


def switches(pid):
    return int([line.split()[1] for line in open(f"/proc/{pid}/status") if line.startswith("voluntary_ctxt")][0])


def test_nothing_wakes_afterwards(host):
    vpid, out = host.detach("sleep", "1000", name="count")
    remove(host.runtime / "pbeam")
    host.wait_until(lambda: vpid in host.vpids(), 10, "the job to be found")
    keeper = host.pids_of("scip-keeper")[0] if host.pids_of("scip-keeper") else host.named("scip-keeper")[0]
    time.sleep(6)
    for pid in host.pids_of("pbeamd"):
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    before = switches(keeper)
    time.sleep(2)
    assert switches(keeper) == before
    host.ctl("kill", "-s", "KILL", "count")
