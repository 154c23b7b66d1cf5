"""A migration that fails, or whose parts are killed, at each of its steps: the program ends up in exactly one place."""
import os
import signal

import pytest

COUNTER = """import os, time
out = open('out', 'w', buffering=1)
for i in range(100000):
    out.write(f'{os.getpid()} {i}\\n')
    time.sleep(.02)
"""


def count(host):
    return len((host.home / "out").read_text().splitlines())


def running(host):
    """The real numbers under which the program runs, wherever that is, stubs left out: it keeps the environment of its birth."""
    return [pid for pid, line in host.processes().items() if "range(100000)" in line and line.startswith("python3")]


def check_one_place(lab, vpid, job):
    a, b = lab.hosts
    before = count(a)
    a.wait_until(lambda: count(a) > before + 5, 30, "the program to go on")
    a.wait_until(lambda: len(running(a)) == 1, 20, "what was made there in vain to be gone")  # held, it never runs
    spaces = [os.readlink(f"/proc/{pid}/ns/net") for pid in running(a)]
    place, = [host.name for host in (a, b) if os.readlink(f"/proc/{host.space.pid}/ns/net") in spaces]
    lines = (a.home / "out").read_text().splitlines()[:-1]
    assert lines == [f"{vpid} {i}" for i in range(len(lines))]
    os.kill(vpid, signal.SIGKILL)
    assert job.wait(30) == 128 + signal.SIGKILL
    a.wait_until(lambda: not running(a), 30, "the program to be gone")
    return place


def start(lab, env=None):
    a = lab.hosts[0]
    job = a.start(["scip", "run", "--", "python3", "-u", "-c", COUNTER], "counter", env=env)
    a.wait_until(lambda: (a.home / "out").exists() and count(a) > 3, 20, "the program to count")
    return job, int((a.home / "out").read_text().split()[0])


@pytest.mark.parametrize("action", ["fail", "kill"])
@pytest.mark.parametrize("point,moved", [("migrate-before-rounds", False), ("migrate-after-rounds", False), ("migrate-frozen", False),
                                         ("migrate-before-state", False), ("migrate-held", False), ("migrate-before-commit", False), ("migrate-committed", True)])
def test_source(make_lab, point, moved, action):
    lab = make_lab(2).start()
    job, vpid = start(lab, {"PBEAM_FAULT": f"{point}:{action}"})
    done = lab.hosts[0].run(["pbeamctl", "migrate", vpid, "b"], check=False)
    assert (done.returncode == 0) == moved, done.stderr
    assert check_one_place(lab, vpid, job) == ("b" if moved else "a")


@pytest.mark.parametrize("action", ["fail", "kill"])
@pytest.mark.parametrize("point", ["migrate-target-state", "migrate-target-held", "restore-before-run"])
def test_target(make_lab, point, action):
    lab = make_lab(2)
    lab.hosts[1].env["PBEAM_FAULT"] = f"{point}:{action}"
    lab.start()
    job, vpid = start(lab)
    assert lab.hosts[0].run(["pbeamctl", "migrate", vpid, "b"], check=False).returncode == 1
    assert check_one_place(lab, vpid, job) == "a"


@pytest.mark.parametrize("action", ["sleep", "kill"])
def test_asks_late(make_lab, action):
    """The source has lost its coordinator after the commit, and has settled what it has left, before the target asks what came of it."""
    lab = make_lab(2)
    a, b = lab.hosts
    word = b.file("fault", f"migrate-target-asks:{action}")
    b.env["PBEAM_FAULT"] = str(word)
    lab.start()
    job, vpid = start(lab, {"PBEAM_FAULT": "migrate-committed:kill"})
    a.run(["pbeamctl", "migrate", vpid, "b"])  # the source's keeper has asked by then
    if action == "sleep":
        b.wait_until(lambda: word.read_text() == "migrate-target-asks:reached", 20, "the target to miss the source")
        word.write_text("go on")
    assert check_one_place(lab, vpid, job) == "b"


def test_target_runs(make_lab):
    """The target's coordinator is killed when all is done but for saying so to its keeper; the source has removed the record, or does so now."""
    lab = make_lab(2)
    lab.hosts[1].env["PBEAM_FAULT"] = "migrate-target-runs:kill"
    lab.start()
    job, vpid = start(lab)
    lab.hosts[0].run(["pbeamctl", "migrate", vpid, "b"])
    assert check_one_place(lab, vpid, job) == "b"


def test_cancel(make_lab):
    lab = make_lab(2).start()
    a = lab.hosts[0]
    job, vpid = start(lab, {"PBEAM_FAULT": "migrate-after-rounds:sleep"})
    moving = a.start(["pbeamctl", "migrate", vpid, "b"], "moving")
    a.wait_until(lambda: any("scip receive" in line for line in lab.hosts[1].processes().values()), 20, "the migration to be at work")
    moving.process.send_signal(signal.SIGINT)
    moving.wait(20)
    assert check_one_place(lab, vpid, job) == "a"
