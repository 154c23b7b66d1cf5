"""A part of a job is rolled back under its living parent while a scip or the coordinator is killed: the parent sees no end of the child unless its own scip, or that of the child in use, was killed. Nothing is left over, and an older image restores."""
import os
import random
import signal
import subprocess
import time

import pytest
from programs import COUNTER, numbers

pytestmark = pytest.mark.timeout(180)
BEFORE_COMMIT = ["restore-checked", "restore-frozen", "restore-made-objects", "restore-made-tree", "restore-before-run", "restore-before-commit"]
POINTS = [*BEFORE_COMMIT, "restore-condemned", "restore-adopted"]
ROUNDS = int(os.environ.get("PBEAM_FAULT_ROUNDS", "20"))

# Has one counter for each name, waits for them in either of two ways, and reports their signals and statuses.
PARENT = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
for name in sys.argv[2:]:
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open("/dev/null", os.O_WRONLY), 1)  # else its rollback puts back what we have said meanwhile
        os.execvp("python3", ["python3", "counter.py", name])
    print("child", name, pid, flush=True)
print("all", flush=True)
while True:
    if sys.argv[1] == "signal":
        signal.sigwaitinfo({signal.SIGCHLD})
    try:
        while (told := os.waitpid(-1, os.WNOHANG if sys.argv[1] == "signal" else 0))[0]:
            print("ended", told[0], os.waitstatus_to_exitcode(told[1]), flush=True)
    except ChildProcessError:
        break
print("last line", flush=True)
sys.exit(7)
"""


def proc(pid, name):
    try:
        return open(f"/proc/{pid}/{name}").read()
    except OSError:
        return ""


def field(pid, name):
    """A field of /proc/PID/status; 0 once the process has ended."""
    text = proc(pid, "status")
    return int(text.split(f"{name}:\t")[1].split("\n")[0]) if text else 0


class Family:
    """The job: a parent and its children, by name."""

    def __init__(self, host, names, how="wait", env=None):
        self.host = host
        for name in names:
            host.file(name)
        host.file("parent.py", PARENT)
        host.file("counter.py", COUNTER)
        self.job = host.scip_run("python3", "parent.py", how, *names, name="family", env=env)
        self.job.wait_for("all")
        self.vpids = {line.split()[1]: int(line.split()[2]) for line in self.job.lines() if line.startswith("child")}
        self.files = {name: host.home / name for name in names}
        for name in names:
            self.goes_on(name)
        self.ended = set()

    def count(self, name):
        """The child's progress; its numbers never change, and it counts without gaps."""
        path = self.files[name]
        return numbers(path)[1] if path.exists() else 0

    def goes_on(self, name):
        before = self.count(name)
        self.host.wait_until(lambda: self.count(name) > before + 3, what=f"{name} to go on")

    def heard(self, name):
        return [int(line.split()[2]) for line in self.job.lines() if line.startswith(f"ended {self.vpids[name]} ")]

    def numbers(self):
        """The real pids: the parent, the children by name, the parent's scip."""
        rows = self.host.ps()["processes"]
        real = {name: row["pid"] for row in rows for name, vpid in self.vpids.items() if row["vpid"] == vpid}
        parent, = [row for row in rows if row["vpid"] not in self.vpids.values()]
        return {"parent": parent["pid"], **real}, parent["scip"]

    def alive(self):
        return self.job.process.poll() is None

    def settle(self, name):
        """After a disturbed rollback of this child: it goes on, or its end is seen, once."""
        before = self.count(name)
        self.host.wait_until(lambda: self.heard(name) or self.count(name) > before + 3, what=f"{name} to go on, or its end to be heard")
        if self.heard(name):
            assert self.heard(name) == [-signal.SIGKILL], self.job.text()
            self.ended.add(name)

    def finish(self):
        """The others end one after another; the parent has seen one end for each, and nothing else."""
        for name in set(self.vpids) - self.ended:
            self.goes_on(name)
            self.host.ctl("kill", "-s", "TERM", self.vpids[name])
            self.job.host.wait_until(lambda one=name: self.heard(one), what=f"the end of {name} to be heard")
        assert self.job.wait() == 7, (self.job.text(), self.job.errors())
        lines = self.job.lines()
        told = [line for line in lines if not line.startswith("child")]
        assert told[0] == "all" and told[-1] == "last line" and len(told) == len(self.vpids) + 2, self.job.text()
        for name in self.vpids:
            assert self.heard(name) == [-signal.SIGKILL if name in self.ended else -signal.SIGTERM], (name, self.job.text())


def free(host):
    """The job's name can be taken again."""
    host.wait_until(lambda: not host.ps()["processes"], what="the job to be over")


def restores(family, image):
    """The older image of the whole job is intact, and all processes continue from it."""
    host = family.host
    host.ctl("image", "verify", image)
    job = host.start(["scip", "restore", image], "again")
    # The files are as the image has them once no process is held any more.
    host.wait_until(lambda: (rows := host.ps()["processes"]) and {*family.vpids.values()} <= {row["vpid"] for row in rows if row["state"] != "frozen"},
                    what="the job to be restored")
    for name in family.vpids:
        family.goes_on(name)
    kill(family.numbers()[0].values())
    assert job.wait() == 128 + signal.SIGKILL
    free(host)


def children(pid):
    try:
        return [int(word) for task in os.listdir(f"/proc/{pid}/task") for word in proc(pid, f"task/{task}/children").split()]
    except OSError:
        return []


def victims(kind, before, scip):
    """The processes to choose from. `before`: the programs before the rollback, and the scip of their parent."""
    named = {pid: proc(pid, "comm").strip() for pid in children(field(scip, "PPid"))}
    scips = [pid for pid, name in named.items() if name == "scip"]
    traced = {field(pid, "TracerPid"): pid for pid in [before["parent"], *children(before["parent"])]}
    return {
        "any": scips,
        "coordinator": [pid for pid, name in named.items() if name == "scip-coordinate"],
        "idle": [pid for pid in scips if pid not in traced],
        "new": [tracer for tracer, pid in traced.items() if tracer and pid not in before.values()],
        **{name: [tracer for tracer, pid in traced.items() if tracer and pid == real] for name, real in before.items()},
    }.get(kind, [])


def kill(pids):
    """Returns those that existed."""
    there = set()
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            there.add(pid)
        except ProcessLookupError:
            pass
    return there


def roll_back(family, name):
    return family.host.popen(["pbeamctl", "rollback", family.vpids[name]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)


def told(asked):
    """The command succeeded, or printed one sentence."""
    out, errors = asked.communicate(timeout=60)
    assert asked.returncode == 0 or (asked.returncode == 1 and errors.count("\n") == 1), (asked.returncode, out, errors)
    print(errors, end="", flush=True)
    return asked.returncode == 0


def clear_away(family):
    """The parent was killed with its scip: the console reports it, and its children went on."""
    assert family.job.wait() == 128 + signal.SIGKILL, (family.job.text(), family.job.errors())
    family.host.wait_until(lambda: not kill(family.host.program_pids()) and not family.host.program_pids(), what="the rest to end")
    free(family.host)


@pytest.mark.parametrize("kind", ["coordinator", "parent", "idle", "new", "beside", "child", "new coordinator"])
def test_at_points(host, kind):
    """One child for each fault point, all in one job unless its first process is killed. Before the commit the old child goes on, after it the new one."""
    fault, names = host.file("fault"), [*POINTS, "beside"]
    family = None
    for name in POINTS:
        if not family or not family.alive():
            family = Family(host, names, env={"PBEAM_FAULT": str(fault)})
            whole = host.checkpoint("family")
        before, scip = family.numbers()
        image = host.checkpoint(family.vpids[name])
        fault.write_text(f"{name}:sleep\n")
        asked = roll_back(family, name)
        host.wait_until(lambda: fault.read_text() == f"{name}:reached" or asked.poll() is not None, what=f"the rollback to be at {name}")
        killed = kill([pid for one in kind.split() for pid in victims(name if one == "child" else one, before, scip)])
        host.wait_until(lambda pids=killed: not any(field(pid, "PPid") for pid in pids), what="the killed ones' end")
        if kind == "child" and name == "restore-checked":  # the parent is not frozen yet
            host.wait_until(lambda one=name: family.heard(one), what="its end to be heard")
        fault.write_text("")
        done = told(asked)
        host.ctl("image", "verify", image)
        if kind == "parent":
            clear_away(family)
            continue
        family.settle(name)
        committed = name not in BEFORE_COMMIT
        assert (name in family.ended) == (kind.startswith("new") if committed else kind == "child")
        assert done == (kind in ("idle", "beside") or committed or (kind.startswith("new") and not killed))
        if kind == "beside" and "beside" not in family.ended:
            family.settle("beside")
            assert "beside" in family.ended
    if family.alive():
        family.finish()
    restores(family, whole)


@pytest.mark.timeout(120 + 20 * ROUNDS)
def test_at_random(host):
    """Any scip, or the coordinator, at any moment."""
    seed = int(os.environ.get("PBEAM_FAULT_SEED", time.time_ns() % 1000000))
    print(f"PBEAM_FAULT_SEED={seed}")
    generator = random.Random(seed)
    names = [f"child{n}" for n in range(4)]
    family = None
    for _ in range(ROUNDS):
        if not family:
            family = Family(host, names, generator.choice(["wait", "signal"]))
            whole = host.checkpoint("family")
        name, other = generator.sample(sorted(set(names) - family.ended), 2)
        host.checkpoint(family.vpids[name])
        before, scip = family.numbers()
        killed = set()
        kinds = generator.choices(["coordinator", "idle", "new", "any", name, other, "parent"], [4, 1, 4, 2, 2, 1, 1], k=generator.choice([1, 1, 2]))
        asked = roll_back(family, name)
        while asked.poll() is None and not victims("coordinator", before, scip):
            pass
        time.sleep(0.06 * generator.random() ** 2)
        for kind in kinds:
            found = sorted(victims(kind, before, scip))
            killed |= kill(generator.sample(found, min(1, len(found))))
        print(name, other, kinds, told(asked), flush=True)
        if scip in killed:
            clear_away(family)
        else:
            for one in sorted(set(names) - family.ended):
                family.settle(one)
            if len(family.ended) < 3:
                continue
            family.finish()
        restores(family, whole)
        family = None
    if family:
        family.finish()
