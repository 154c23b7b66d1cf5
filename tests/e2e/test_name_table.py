"""The name table under a holder of its lock that is stopped."""
import os
import signal
import subprocess
import time

import pytest
from programs import COUNT, counts

pytestmark = pytest.mark.timeout(100)
FORKING = ("bash", "-c", "while :; do /bin/true; n=$((n+1)); echo $n; sleep 0.05; done")


def test_stopped_holder(host):
    """Commands fail with one sentence that names the holder; when it continues everything goes on, and nothing is lost."""
    vpid, out = host.detach(*COUNT, name="count")
    forking, lines = host.detach(*FORKING, name="forking")
    host.ps()
    holder = host.popen([host.stage.tools / "hold_table"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pid = int(holder.stdout.readline())
    os.kill(pid, signal.SIGSTOP)
    sentence = f"the name table is locked by process {pid}, which is stopped; continue it (kill -CONT {pid})"
    for command in (["pbeamctl", "ps"], ["pbeamctl", "checkpoint", "count"], ["pbeamctl", "kill", "count"],
                    ["pbeamctl", "rollback", "count"], ["scip", "run", "--", "true"]):
        begun = time.monotonic()
        done = host.run(command, check=False)
        assert done.returncode not in (0, 3), command
        assert done.stderr.count("\n") == 1 and sentence in done.stderr, (command, done.stderr)
        assert time.monotonic() - begun < 15, command
    counts(host, out)
    os.kill(pid, signal.SIGCONT)
    holder.communicate(timeout=10)
    counts(host, out)
    before = len(lines.read_text().splitlines())
    host.wait_until(lambda: len(lines.read_text().splitlines()) > before + 3, what="the other program to fork again")
    assert {vpid, forking} <= set(host.vpids())
    host.checkpoint("count")
    host.rollback("count")
    for name in ("count", "forking"):
        host.ctl("kill", "-s", "KILL", name)
