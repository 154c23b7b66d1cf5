"""A target with a memory control group, as in a batch system or a container: what does not fit is refused before it is sent. If the kernel kills a process of the target all the same the program runs in exactly one place."""
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
from test_migrate_faults import check_one_place, count

MIB = 1 << 20
PROGRAM = f"""import os, time
data = os.urandom({80 * MIB})
out = open('out', 'w', buffering=1)
for i in range(100000):
    out.write(f'{{os.getpid()}} {{i}}\\n')
    time.sleep(.02)
"""
BALLOON = """import os, sys
open(sys.argv[1], 'w').write(str(os.getpid()))
data = bytearray(int(sys.argv[2]))
sys.stdin.read()
"""


class Group:
    """A memory control group (version 1 or 2) below the tests' own."""

    def __init__(self, host):
        top = pathlib.Path("/sys/fs/cgroup")
        legacy = (top / "memory/cgroup.procs").exists()
        self.names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control") if legacy else ("memory.max", "memory.current", "memory.events")
        top = top / "memory" if legacy else top
        self.path = top / f"pbeam-test-{os.getpid()}-{host.top.name}"
        try:
            if not legacy:
                (top / "cgroup.subtree_control").write_text("+memory")
            self.path.mkdir()
            (self.path / self.names[0]).read_text()
        except OSError as error:
            pytest.skip(f"needs to make a control group for memory ({error})")
        for pid in host.named("pbeamd"):
            (self.path / "cgroup.procs").write_text(str(pid))
            pathlib.Path(f"/proc/{pid}/oom_score_adj").write_text("1000")  # before the tests' own

    def limit(self, size):
        (self.path / self.names[0]).write_text(str(size))

    def usage(self):
        return int((self.path / self.names[1]).read_text())

    def killed(self):
        """The number of processes that the kernel has killed in it."""
        return int((self.path / self.names[2]).read_text().split("oom_kill ")[1].split()[0])

    def remove(self):
        """Removes the group once its processes have ended."""
        for _ in range(200):
            try:
                self.path.rmdir()
                return
            except OSError:
                time.sleep(.05)
        raise AssertionError((self.path / "cgroup.procs").read_text())


@pytest.fixture
def group_of():
    """group_of(host) makes one and puts the host's daemon into it; it is removed after the lab, of which this is to be asked for before."""
    made = []

    def make(host):
        made.append(Group(host))
        return made[-1]

    yield make
    for group in made:
        group.remove()


@pytest.mark.messy
@pytest.mark.parametrize("point,more", [("migrate-before-rounds", -20 * MIB), ("migrate-frozen", 20 * MIB)])
def test_memory_full(group_of, make_lab, point, more):
    lab = make_lab(2)
    a, b = lab.hosts
    word = a.file("fault")
    a.env["PBEAM_FAULT"] = str(word)
    lab.start()
    group = group_of(b)
    job = a.start(["scip", "run", "--", "python3", "-u", "-c", PROGRAM], "counter")
    a.wait_until(lambda: (a.home / "out").exists() and count(a) > 3, 20, "the program to count")
    vpid = int((a.home / "out").read_text().split()[0])
    group.limit(80 * MIB)
    b.wait_until(lambda: json.loads(a.ctl("hosts", "--json").stdout)["hosts"][1]["memory"] == 80 * MIB, 20, "the others to know")
    refused = a.ctl("migrate", vpid, "b", check=False)
    assert refused.returncode == 1 and "MiB of memory, and" in refused.stderr and "are free" in refused.stderr, refused.stderr
    group.limit(300 * MIB)
    word.write_text(f"{point}:sleep")
    moving = a.start(["pbeamctl", "migrate", vpid, "b"], "moving")
    killed = group.killed()
    a.wait_until(lambda: word.read_text() == f"{point}:reached", 20, f"the migration to be there ({killed} killed)")
    balloon = subprocess.Popen([sys.executable, "-c", BALLOON, group.path / "cgroup.procs", str(300 * MIB - group.usage() + more)], stdin=subprocess.PIPE)
    b.wait_until(lambda: group.killed() if more > 0 else group.usage() > 280 * MIB, 20, "it to be full")
    if more > 0:  # what has moved is not to be killed afterwards
        balloon.kill()
    word.write_text("")
    status = moving.wait(60)
    balloon.kill()
    balloon.wait()
    assert group.killed() > 0 and moving.errors().count("\n") == 1, moving.errors()
    assert check_one_place(lab, vpid, job) == ("a" if status else "b")  # it may have been the balloon


def test_no_room_for_a_rollback(group_of, host):
    """The old and the new processes exist at once: a lack of memory is found out before anything changes. --replace ends the old ones first."""
    host.detach("python3", "-u", "-c", PROGRAM, name="counter", env={"PBEAM_LOG": "info"})
    host.wait_until(lambda: (host.home / "out").exists() and count(host) > 3, 20, "the program to count")
    host.checkpoint("counter")
    group = group_of(host)
    for pid in host.processes():
        (group.path / "cgroup.procs").write_text(str(pid))
    group.limit(60 * MIB)
    before = count(host)
    refused = host.ctl("rollback", "counter", check=False)
    assert refused.returncode == 1 and "MiB are free" in refused.stderr and "--replace" in refused.stderr and refused.stderr.count("\n") == 1, refused.stderr
    host.wait_until(lambda: count(host) > before, 20, "the old program to go on")
    group.limit(400 * MIB)
    host.rollback("counter", "--replace")
    assert "the old processes end before the new ones are made: --replace" in host.log()
    before = count(host)
    host.wait_until(lambda: count(host) > before, 20, "the restored program to go on")
    host.ctl("kill", "-s", "KILL", "counter")
