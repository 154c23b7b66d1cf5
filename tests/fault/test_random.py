"""kill -9 of any part at any moment of any command. Afterwards the command has succeeded or printed one sentence with a non-zero status; the program counts on without gap or repetition if only helpers were killed; the images are whole, and the last one restores it. PBEAM_FAULT_ROUNDS=300 makes it long, PBEAM_FAULT_SEED repeats a run."""
import os
import random
import signal
import subprocess
import time

import pytest
from harness import comm
from programs import COUNT, counted, counts

ROUNDS = int(os.environ.get("PBEAM_FAULT_ROUNDS", "20"))
OPERATIONS = ["checkpoint", "rollback", "restore", "run", "attach"]
HARMLESS = {"pbeamd", "pbeamctl", "coordinator"}  # to a program that is not being replaced


def parts(host, command):
    """The candidates to be killed, by kind."""
    found = {"pbeamctl": [command.pid] if command.poll() is None else [], "program": host.program_pids(), "pbeamd": host.pids_of("pbeamd")}
    for pid in host.pids_of("scip"):
        kind = {"scip-coordinate": "coordinator", "scip-keeper": "keeper"}.get(comm(pid), "scip")
        if pid != command.pid:
            found.setdefault(kind, []).append(pid)
    return found


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def running(host):
    """The job's vpid if it runs."""
    return [row["vpid"] for row in host.ps()["processes"] if row["job_name"] == "count"]


class Round:
    def __init__(self, host, generator, out):
        self.host, self.out = host, out
        self.operation = generator.choice(OPERATIONS)
        self.kind = generator.choice(["scip", "scip", "coordinator", "pbeamd", "pbeamctl", "program", "keeper"])
        self.delay = 0.12 * generator.random() ** 2

    def begin(self):
        """Starts the command in the background."""
        words = {"checkpoint": ["pbeamctl", "checkpoint", "count"], "rollback": ["pbeamctl", "rollback", "count"],
                 "restore": ["pbeamctl", "rollback", "count"], "attach": ["pbeamctl", "attach", "count"],
                 "run": ["scip", "run", "-d", "--name", "other", "--", "sleep", "1000"]}[self.operation]
        if self.operation == "restore":
            self.host.ctl("kill", "-s", "KILL", "count")
            self.host.wait_until(lambda: not self.host.program_pids(), what="its end")
        return self.host.popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def told(self, command):
        """It ends and reports its result. attach lasts as long as the program."""
        try:
            out, errors = command.communicate(timeout=2 if self.operation == "attach" else 60)
        except subprocess.TimeoutExpired:
            assert self.operation == "attach"
            command.kill()
            command.communicate()
            return
        if command.returncode != -signal.SIGKILL and self.operation != "attach":
            assert command.returncode == 0 or errors.count("\n") == 1, (self, command.returncode, out, errors)

    def settle(self):
        """The program counts on, unless it was replaced or killed itself; then its image restores it."""
        host = self.host
        for path in host.state.rglob("*.ckpt"):
            done = host.ctl("image", "verify", path, check=False)
            # A checkpoint goes on without its pbeamctl, and removes the oldest one.
            assert done.returncode == 0 or not path.exists(), done.stderr
        if self.kind in HARMLESS and self.operation not in ("rollback", "restore"):
            assert running(host), self
            counts(host, self.out)
            return
        host.wait_until(lambda: host.ctl("rollback", "count", check=False).returncode == 0, 30, "the rollback")
        counts(host, self.out)

    def __repr__(self):
        return f"{self.operation}, {self.kind} after {self.delay:.4f} s"


@pytest.mark.timeout(120 + 20 * ROUNDS)
def test_random(host):
    seed = int(os.environ.get("PBEAM_FAULT_SEED", time.time_ns() % 1000000))
    print(f"PBEAM_FAULT_SEED={seed}")
    generator = random.Random(seed)
    vpid, out = host.detach(*COUNT, name="count")
    host.wait_until(lambda: counted(out) > 3, what="counting")
    host.checkpoint("count")
    for _ in range(ROUNDS):
        one = Round(host, generator, out)
        print(one, flush=True)
        began = one.begin()
        time.sleep(one.delay)
        there = sorted(parts(host, began).get(one.kind, []))
        if there:
            kill(generator.choice(there))
        one.told(began)
        one.settle()
        host.ctl("kill", "-s", "KILL", "other", check=False)
    host.checkpoint("count")  # removes what those have left that were killed
    host.wait_until(lambda: not list(host.state.rglob("*.tmp-*")), what="temporary files to be gone")
    host.ctl("kill", "-s", "KILL", "count")
    host.wait_until(lambda: not host.program_pids(), what="its end")
    host.wait_until_swept()
