"""A migration fails, or a part of it is killed, at each step: the program ends up in exactly one place."""
import json
import os
import pathlib
import shutil
import signal
import tempfile
import time

import pytest
from test_migrate import move, start_counter
from test_registry import ask

COUNTER = """import os, time
out = open('out', 'w', buffering=1)
for i in range(100000):
    out.write(f'{os.getpid()} {i}\\n')
    time.sleep(.02)
"""


def count(host):
    return len((host.home / "out").read_text().splitlines())


def running(host):
    """The real pids of the program on all hosts, without stubs: it keeps the environment of its birth."""
    return [pid for pid, line in host.processes().items() if "range(100000)" in line and line.startswith("python3")]


def no_record(host):
    """All sides have settled, so the outcome of the migration is not needed any more."""
    host.wait_until(lambda: not ask(host, "list", "migration/").stdout, 20, "the migration's record to be removed")


def kill_named(host, name):
    found = host.named(name)
    assert found
    for pid in found:
        os.kill(pid, signal.SIGKILL)


def check_one_place(lab, vpid, job, born=0):
    a = lab.hosts[born]
    before = count(a)
    a.wait_until(lambda: count(a) > before + 5, 30, "the program to go on")
    a.wait_until(lambda: len(running(a)) == 1, 20, "what was made there in vain to be gone")  # held, it never runs
    spaces = [os.readlink(f"/proc/{pid}/ns/net") for pid in running(a)]
    place, = [host.name for host in lab.hosts if os.readlink(f"/proc/{host.space.pid}/ns/net") in spaces]
    lines = (a.home / "out").read_text().splitlines()[:-1]
    assert lines == [f"{vpid} {i}" for i in range(len(lines))]
    no_record(a)
    if born:
        a.ctl("kill", "-s", "KILL", vpid)
    else:
        os.kill(vpid, signal.SIGKILL)
    assert job.wait(30) == 128 + signal.SIGKILL
    a.wait_until(lambda: not running(a), 30, "the program to be gone")
    return place


def start(lab, env=None, born=0):
    a = lab.hosts[born]
    job = a.start(["scip", "run", "--", "python3", "-u", "-c", COUNTER], "counter", env=env)
    a.wait_until(lambda: (a.home / "out").exists() and count(a) > 3, 20, "the program to count")
    return job, int((a.home / "out").read_text().split()[0])


@pytest.mark.parametrize("action", ["fail", "kill"])
@pytest.mark.parametrize("point,moved", [("migrate-before-rounds", False), ("migrate-after-rounds", False), ("migrate-frozen", False),
                                         ("migrate-before-state", False), ("migrate-held", False), ("migrate-asked", False), ("migrate-before-commit", False), ("migrate-committed", True), ("migrate-runs", True), ("migrate-withdrawn", True)])
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


@pytest.mark.parametrize("action", ["fail", "kill"])
def test_committed_target(make_lab, action):
    """A failure on the target after the commit stops no process: there is no other copy."""
    lab = make_lab(2)
    lab.hosts[1].env["PBEAM_FAULT"] = f"restore-adopted:{action}"
    lab.start()
    job, vpid = start(lab)
    assert lab.hosts[0].run(["pbeamctl", "migrate", vpid, "b"], check=False).returncode == 0
    assert check_one_place(lab, vpid, job) == "b"

AT_SOURCE = ["migrate-before-rounds", "migrate-round", "migrate-after-rounds", "migrate-frozen", "migrate-before-state", "migrate-held", "migrate-asked", "migrate-before-commit"]
SAID = ["migrate-held", "migrate-asked", "migrate-before-commit"]  # the target has reported that it has everything: its end may be noticed before the commit or after
AT_TARGET = ["migrate-target-state", "restore-before-run", "migrate-target-held"]


def test_on_the_way_home(make_lab):
    """A coordinator is killed while the stub is being filled: it is a stub again, and its parent has seen nothing."""
    lab = make_lab(2)
    words = {host: host.file("fault") for host in lab.hosts}
    for host, word in words.items():
        host.env["PBEAM_FAULT"] = str(word)
    lab.start()
    a, b = lab.hosts
    job, vpid = start(lab)
    a.ctl("migrate", vpid, "b")
    for at, points in ((b, AT_SOURCE), (a, AT_TARGET)):
        for point in points:
            for victim in (a, b):
                words[at].write_text(f"{point}:sleep")
                moving = a.start(["pbeamctl", "migrate", str(vpid), "a"], "moving")
                a.wait_until(lambda: words[at].read_text() == f"{point}:reached", 20, f"the migration to be at {point}")
                kill_named(victim, "scip-coordinate")
                words[at].write_text("")
                came = moving.wait(30) == 0
                assert not came or (victim is a and point in SAID), (point, victim.name, moving.text(), moving.errors())
                before = count(a)
                a.wait_until(lambda: count(a) > before + 5, 30, f"the program to go on, {victim.name} killed at {point}")
                no_record(a)
                if came:
                    a.ctl("migrate", vpid, "b")
    assert [row["host"] for row in a.ps()["processes"]] == ["b"]
    a.ctl("migrate", vpid, "a")
    assert check_one_place(lab, vpid, job) == "a"


FAMILY = """import os, time
for n in range(3):
    if os.fork() == 0:
        break
    n = 3
out = open(f'out{n}', 'w', buffering=1)
for i in range(100000):
    out.write(f'{i}\\n')
    time.sleep(.02)
"""


@pytest.mark.parametrize("action", ["fail", "kill"])
def test_some_let_go(make_lab, action):
    """The target's coordinator is killed, or cannot reach one process, after it has released others: all run."""
    lab = make_lab(2)
    a, b = lab.hosts
    b.env["PBEAM_FAULT"] = f"restore-let-go:{action}:2"
    lab.start()
    job = a.start(["scip", "run", "--name", "family", "--", "python3", "-u", "-c", FAMILY], "family")

    def counts():
        return [len((a.home / f"out{n}").read_text().splitlines()) for n in range(4)]

    a.wait_until(lambda: all((a.home / f"out{n}").exists() for n in range(4)) and min(counts()) > 2, 20, "all to count")
    a.run(["pbeamctl", "migrate", "family", "b"])
    before = counts()
    a.wait_until(lambda: all(now > then + 3 for now, then in zip(counts(), before)), 30, "all to go on")
    assert {row["host"] for row in a.ps()["processes"] if row["state"] != "ended"} >= {"b"}
    no_record(a)
    for row in b.ps()["processes"]:
        b.ctl("kill", "-s", "KILL", row["vpid"], check=False)
    job.wait(30)
    a.wait_until(lambda: not a.vpids(), 20, "all to be gone")


@pytest.mark.parametrize("victim", ["scip-coordinate", "scip-keeper"])
@pytest.mark.parametrize("point", ["migrate-committed", "migrate-withdrawn"])
def test_moved_on(make_lab, point, victim):
    """A process moves on, and the coordinator or its keeper is killed after the commit: a signal that came meanwhile is not lost, and home does not report an exit."""
    lab = make_lab(3)
    a, b, c = lab.hosts
    word = b.file("fault")
    b.env["PBEAM_FAULT"] = str(word)
    lab.start()
    job, vpid = start_counter(a, 2000)
    move(a, vpid, b)
    word.write_text(f"{point}:sleep")
    moving = a.start(["pbeamctl", "migrate", str(vpid), "c"], "moving")
    a.wait_until(lambda: word.read_text() == f"{point}:reached", 20, "the migration to be committed")
    os.kill(vpid, signal.SIGUSR1)  # the stub
    time.sleep(.3)
    kill_named(b, victim)
    word.write_text("")
    assert moving.wait(30) == 0 or victim == "scip-keeper", moving.errors()
    a.wait_until(lambda: (a.home / "out").read_text().count("signal") == 1, 10, "the signal")
    before = (a.home / "out").read_text().count("\n")
    a.wait_until(lambda: (a.home / "out").read_text().count("\n") > before + 20, 10, "it to go on")
    no_record(a)
    assert job.process.poll() is None and [row["host"] for row in a.ps()["processes"]] == ["c"]
    os.kill(vpid, signal.SIGKILL)
    assert job.wait(20) == 128 + signal.SIGKILL
    b.wait_until_swept()


@pytest.mark.parametrize("point,moved,killed", [("registry-before-commit", False, ""), ("registry-committed", True, ""), ("registry-committed", True, "source"), ("registry-committed", True, "target")])
def test_central_lost(make_lab, point, moved, killed):
    """The central host is lost in the moment of the commit: neither side runs until the outcome is known, also if a coordinator is killed meanwhile."""
    lab = make_lab(3)
    a, b, c = lab.hosts
    word = a.file("fault", f"{point}:kill")
    a.env["PBEAM_FAULT"] = str(word)
    lab.start()
    job, vpid = start(lab, born=1)
    moving = b.start(["pbeamctl", "migrate", vpid, "c"], "moving")
    b.wait_until(lambda: "known to the central host alone" in moving.errors(), 20, "the user to be told")
    assert {row["name"]: row["state"] for row in json.loads(b.ctl("hosts", "--json").stdout)["hosts"]}["a"] == "lost"
    assert f"vpid {vpid} on host b: frozen until this host reports whether it has moved" in b.ctl("hosts").stdout
    if killed:
        kill_named(b if killed == "source" else c, "scip-coordinate")
    before = count(b)
    shown = b.ctl("ps")
    assert " undecided " in shown.stdout and "is frozen until the central host answers" in shown.stderr
    assert count(b) == before and moving.process.poll() is None
    word.write_text("")
    a.ctl("hosts")
    assert moving.wait(40) == (0 if moved else 1), moving.errors()
    assert check_one_place(lab, vpid, job, 1) == ("c" if moved else "b")


def test_just_started(make_lab):
    """A migration requested while the program starts is carried out as soon as it runs."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    for n in range(6):
        job = a.start(["scip", "run", "--name", f"new{n}", "--", "sh", "-c", "while :; do sleep .1; done"], f"new{n}")
        while True:
            done = a.ctl("migrate", f"new{n}", "b", check=False)
            if done.returncode == 0:
                break
            assert "no job of that name" in done.stderr, done.stderr
        a.ctl("kill", "-s", "KILL", f"new{n}")
        assert job.wait(20) == 128 + signal.SIGKILL


@pytest.mark.parametrize("action", ["sleep", "kill"])
def test_asks_late(make_lab, action):
    """The source has lost its coordinator after the commit, and has settled, before the target asks for the outcome."""
    lab = make_lab(2)
    a, b = lab.hosts
    word = b.file("fault", f"migrate-target-asks:{action}")
    b.env["PBEAM_FAULT"] = str(word)
    lab.start()
    job, vpid = start(lab, {"PBEAM_FAULT": "migrate-committed:kill"})
    a.run(["pbeamctl", "migrate", vpid, "b"])  # the source's keeper has sent its request by then
    if action == "sleep":
        b.wait_until(lambda: word.read_text() == "migrate-target-asks:reached", 20, "the target to miss the source")
        word.write_text("go on")
    assert check_one_place(lab, vpid, job) == "b"


def test_target_runs(make_lab):
    """The target's coordinator is killed just before it reports to its keeper; the source has removed the record, or does so now."""
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


def test_given_up_too_late(make_lab):
    """The caller of the migration is killed after the commit: the migration is completed and the stub made."""
    lab = make_lab(2)
    a = lab.hosts[0]
    word = a.file("fault", "migrate-committed:sleep")
    lab.start()
    job, vpid = start(lab, {"PBEAM_FAULT": str(word)})
    moving = a.start(["pbeamctl", "migrate", vpid, "b"], "moving")
    a.wait_until(lambda: word.read_text() == "migrate-committed:reached", 20, "the migration to be committed")
    moving.process.kill()
    time.sleep(.2)
    word.write_text("")
    assert check_one_place(lab, vpid, job) == "b"
    assert "leaves no stub" not in a.log()


@pytest.mark.parametrize("full", ["state", "run"])
def test_disk_full(make_lab, full):
    """No room on the target for files, or for anything: refused with the reason, nothing stays there, and with room the program moves."""
    place = pathlib.Path(tempfile.mkdtemp(prefix="pbeam-full-"))
    place.chmod(0o755)
    try:
        lab = make_lab(2, private=(place,))
        a, b = lab.hosts
        folder = {"state": b.state, "run": b.runtime}[full]
        owner = f",uid={b.user.pw_uid},gid={b.user.pw_gid}" if b.user else ""
        b.space.do("mount", "-t", "tmpfs", "-o", f"mode=700,size=64m{owner}", "tmpfs", str(folder))
        lab.start()
        (a.files(place) / "large").write_bytes(os.urandom(3 << 20))
        a.own(a.files(place) / "large")
        job = a.start(["scip", "run", "--name", "reader", "--", "sh", "-c", f"exec 5<{place}/large; i=0; while :; do i=$((i+1)); echo $i; sleep .05; done"], "reader")
        a.wait_until(lambda: len(job.lines()) > 3, 20, "it to count")
        b.run(["sh", "-c", f"cat /dev/zero >{folder}/filler 2>/dev/null; truncate -s -{1 << 20} {folder}/filler"] if full == "state" else ["sh", "-c", f"cat /dev/zero >{folder}/filler 2>/dev/null; :"], check=False)
        done = a.ctl("migrate", "reader", "b", check=False)
        assert done.returncode == 1 and "No space left" in done.stderr and done.stderr.count("\n") == 1, done.stderr
        before = len(job.lines())
        a.wait_until(lambda: len(job.lines()) > before + 3, 20, "it to go on")
        assert [row["host"] for row in a.ps()["processes"]].count("b") == 0
        b.run(["rm", f"{folder}/filler"])
        a.ctl("migrate", "reader", "b")
        before = len(job.lines())
        a.wait_until(lambda: len(job.lines()) > before + 3, 20, "it to go on")
        a.ctl("kill", "-s", "KILL", "reader")
        assert job.wait(20) == 128 + signal.SIGKILL
        numbers = [int(line) for line in job.lines()]
        assert numbers == list(range(1, len(numbers) + 1))
    finally:
        shutil.rmtree(place, ignore_errors=True)
