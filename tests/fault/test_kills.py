"""kill -9 of each part at any moment; programs that end while they are saved; concurrent requests."""
import os
import pathlib
import random
import signal
import subprocess
import time

import pytest
from harness import comm
from programs import COUNT, TREE, counted, counts

pytestmark = pytest.mark.timeout(180)
TRIES = 8

HOLD = ["python3", "-uc", """
import os, time
data = os.urandom(40 << 20)
n = 0
while True:
    print(n)
    n += 1
    time.sleep(0.02)
"""]


def started(host, argv=HOLD, name="count"):
    vpid, out = host.detach(*argv, name=name)
    host.wait_until(lambda: counted(out) > 3, what="counting")
    return vpid, out


def ended(host, name="count"):
    host.ctl("kill", "-s", "KILL", name, check=False)
    host.wait_until(lambda: not host.program_pids(), what="its end")


def whole(host):
    """Every named image verifies, and no partial one is left."""
    for path in host.state.rglob("*"):
        if path.is_file() and ".ckpt" in path.name:
            assert ".tmp-" not in path.name, path
            host.ctl("image", "verify", path)


def moments(seed):
    generator = random.Random(seed)
    return [generator.uniform(0, 0.25) for _ in range(TRIES)]


def background(host, *words):
    return host.popen(["pbeamctl", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_pbeamctl_killed(host):
    """The program runs, whether the checkpoint is completed or not."""
    vpid, out = started(host)
    for moment in moments(1):
        asked = background(host, "checkpoint", "count")
        time.sleep(moment)
        asked.kill()
        asked.communicate()
        counts(host, out)
    host.wait_until(lambda: not list(host.state.rglob("*.tmp-*")), what="temporary files to be gone")
    whole(host)
    host.checkpoint("count")
    ended(host)


def test_pbeamd_killed(host):
    """The programs go on, the request fails with a sentence or was done, the next one works."""
    vpid, out = started(host)
    for moment in moments(2):
        asked = background(host, "checkpoint", "count")
        time.sleep(moment)
        for pid in host.pids_of("pbeamd"):
            os.kill(pid, signal.SIGKILL)
        text, errors = asked.communicate(timeout=60)
        assert asked.returncode == 0 or errors.count("\n") == 1, errors
        counts(host, out)
        host.wait_until(lambda: host.ctl("checkpoint", "count", check=False).returncode == 0, what="the next checkpoint")
    host.wait_until(lambda: not list(host.state.rglob("*.tmp-*")), what="temporary files to be gone")
    whole(host)
    ended(host)


def scips(host):
    """The supervisors: the processes that trace."""
    traced = set()
    for pid in host.program_pids():
        try:
            traced.add(int(open(f"/proc/{pid}/status").read().split("TracerPid:\t")[1].split("\n")[0]))
        except OSError:
            continue
    return traced - {0}


def test_scip_killed(host):
    """Its process must not run on unsupervised; the older image restores it."""
    vpid, out = started(host)
    host.checkpoint("count")
    for moment in moments(3):
        asked = background(host, "checkpoint", "count")
        time.sleep(moment)
        programs = host.program_pids()
        for pid in scips(host):
            os.kill(pid, signal.SIGKILL)
        text, errors = asked.communicate(timeout=60)
        assert asked.returncode == 0 or errors.count("\n") == 1, errors
        host.wait_until(lambda: not [pid for pid in programs if os.path.exists(f"/proc/{pid}/exe") and pid in host.processes()], what="the process to be gone")
        whole(host)
        host.wait_until(lambda: host.ctl("rollback", "count", check=False).returncode == 0, what="the rollback")
        counts(host, out)
    ended(host)


def test_all_scips_killed_at_once(host):
    """The keeper sees its program's exit before theirs: everything is cleaned up all the same."""
    vpid, out = started(host, COUNT)
    pids = {pid: comm(pid) for pid in host.pids_of("scip")}
    keeper, = [pid for pid, name in pids.items() if name == "scip-keeper"]
    program, = host.program_pids()
    os.kill(keeper, signal.SIGSTOP)
    for pid in pids:
        if pid != keeper:
            os.kill(pid, signal.SIGKILL)
    host.wait_until(lambda: ") Z " in pathlib.Path(f"/proc/{program}/stat").read_text(), what="the program to be killed")
    os.kill(keeper, signal.SIGCONT)
    host.wait_until(lambda: not host.pids_of("scip"), what="the job's end")
    assert not list((host.runtime / "pbeam" / "scip").iterdir())


def test_keeper_killed_at_birth(host):
    """The keeper is killed before any scip has the new process: the process ends too, and the waiting caller is informed."""
    started(host, COUNT)
    image = host.checkpoint("--kill", "count")
    for words, fault in (["scip", "run", "-d", "--", *COUNT], "job-launched"), (["scip", "restore", "-d", image], "husk-launched"):
        done = host.run(words, env={"PBEAM_FAULT": f"{fault}:kill"}, check=False)
        assert done.returncode == 125 and done.stderr.count("\n") == 1 and "keeper was killed" in done.stderr, (done.returncode, done.stderr)
        host.wait_until(lambda: not host.pids_of("scip"), what="all of it to end")
    host.run(["scip", "restore", "-d", image])
    ended(host)
    host.wait_until_swept()


def test_program_killed(host):
    vpid, out = started(host)
    host.checkpoint("count")
    for moment in moments(4):
        asked = background(host, "checkpoint", "count")
        time.sleep(moment)
        host.kill_programs()
        text, errors = asked.communicate(timeout=60)
        assert asked.returncode == 0 or errors.count("\n") == 1, errors
        whole(host)
        host.rollback("count")
        counts(host, out)
    ended(host)


def test_rollback_interrupted(host):
    """Parts of a rollback are killed at any moment: the image is whole, and another rollback works."""
    vpid, out = started(host)
    host.checkpoint("count")
    generator = random.Random(5)
    for moment in moments(5):
        asked = background(host, "rollback", "count")
        time.sleep(moment)
        victims = sorted(host.pids_of("scip")) if generator.random() < 0.7 else host.pids_of("pbeamd")
        for pid in generator.sample(victims, min(1, len(victims))):
            os.kill(pid, signal.SIGKILL)
        asked.communicate(timeout=60)
        whole(host)
        host.wait_until(lambda: host.ctl("rollback", "count", check=False).returncode == 0, 30, "the next rollback")
        counts(host, out)
    ended(host)
    host.wait_until_swept()  # keepers are among the killed


def test_program_exits_meanwhile(host):
    """Programs that end during their checkpoint, and trees whose members come and go."""
    for moment in moments(6):
        host.detach("sleep", f"{moment:.3f}", name="brief")
        for _ in range(40):
            done = host.ctl("checkpoint", "brief", check=False)
            assert done.returncode == 0 or done.stderr.count("\n") == 1, done.stderr
            if done.returncode != 0:
                break
        host.wait_until(lambda: not host.program_pids(), what="its end")
    job = host.scip_run("bash", "-c", "while [ ! -e go ]; do /bin/true & /bin/true; wait; done; echo done", name="churn")
    host.wait_until(lambda: host.program_pids(), what="the loop")
    for _ in range(10):
        host.checkpoint("churn")
    host.rollback("churn")
    host.file("go")
    assert job.wait() == 0 and job.text().count("done") == 1


def test_two_at_once(host):
    """The second is refused or waits; both report correctly."""
    vpid, out = started(host)
    for _ in range(5):
        asked = [background(host, "checkpoint", "count") for _ in range(3)]
        good = 0
        for one in asked:
            text, errors = one.communicate(timeout=60)
            if one.returncode == 0:
                host.ctl("image", "verify", text.rstrip("\n"))
                good += 1
            else:
                assert errors.count("\n") == 1 and not text, errors
        assert good >= 1
    mixed = [background(host, "checkpoint", "count"), background(host, "rollback", "count"), background(host, "checkpoint", "count")]
    for one in mixed:
        text, errors = one.communicate(timeout=60)
        assert one.returncode == 0 or errors.count("\n") == 1, errors
    counts(host, out)
    whole(host)
    ended(host)


def test_names(host):
    """A name that is taken is refused."""
    started(host, COUNT)
    done = host.run(["scip", "run", "-d", "--name", "count", "--", "true"], check=False)
    assert done.returncode == 125 and "count" in done.stderr
    ended(host)


def test_tree_member_killed(host):
    """kill -9 of one member of a tree during a checkpoint; the rest goes on or ends as natively."""
    for moment in moments(7)[:4]:
        job = host.scip_run(*TREE, name="tree")
        job.wait_for("ids")
        asked = background(host, "checkpoint", "tree")
        time.sleep(moment / 3)
        pids = host.program_pids()
        os.kill(max(pids), signal.SIGKILL)
        text, errors = asked.communicate(timeout=60)
        assert asked.returncode == 0 or errors.count("\n") == 1, errors
        host.file("go")
        assert job.wait() != 0
        (host.home / "go").unlink()
