"""The work of a checkpoint grows with the number of descriptors or processes, not faster: system calls are counted for n and 2n."""
import os
import signal
import subprocess
import time

import pytest

# Each makes n descriptors, or what belongs to them, and says when it is done.
PROGRAM = """
import os, select, socket, sys, time
kind, n = sys.argv[1], int(sys.argv[2])
keep = []
if kind == "pipes":
    for i in range(n // 2):
        os.pipe()
elif kind == "unix":
    for i in range(n // 2):
        keep += socket.socketpair()
elif kind == "eventfds":
    for i in range(n):
        os.eventfd(i)
elif kind == "watched":
    watch = select.epoll()
    for i in range(n):
        watch.register(os.eventfd(0), select.EPOLLIN)
elif kind == "processes":
    for i in range(n):
        if os.fork() == 0:
            while True:
                time.sleep(1000)
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""


def counted(host, action):
    """The system calls of the coordinator, which the keeper forks, while the action runs: {name: calls}."""
    # A scip has its keeper's name for a moment.
    keeper = host.wait_until(lambda: (lambda found: found[0] if len(found) == 1 else None)(host.named("scip-keeper")), 10, "one keeper")
    out = host.top / f"calls-{time.monotonic_ns()}"
    tracer = subprocess.Popen(["strace", "-f", "-qq", "-o", out, "-p", str(keeper)], stderr=subprocess.DEVNULL)
    try:
        host.wait_until(lambda: f"TracerPid:\t{tracer.pid}\n" in open(f"/proc/{keeper}/status").read(), 10, "strace")
        action()
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait(30)
    calls, coordinator = {}, {}
    for line in out.read_text(errors="replace").splitlines():
        pid, _, call = line.partition(" ")
        name = call.strip().split("(", 1)[0]
        if "(" in call and "<..." not in name:  # the second half of an interrupted line
            calls.setdefault(pid, {}).setdefault(name, 0)
            calls[pid][name] += 1
    for pid, names in calls.items():
        if int(pid) != keeper and sum(names.values()) > sum(coordinator.values()):
            coordinator = names
    return coordinator


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind, n", [("pipes", 200), ("unix", 100), ("eventfds", 100), ("watched", 100), ("processes", 20)])
def test_work_is_linear(host, kind, n):
    saved = []
    for size in (n, 2 * n):
        job = host.scip_run("python3", "-c", PROGRAM, kind, size, name=f"{kind}-{size}")
        job.wait_for("ready")
        saved.append(counted(host, lambda: host.checkpoint(f"{kind}-{size}")))
        host.kill_programs()
        job.wait()
        host.wait_until(lambda: not host.vpids(), 20, "the end of the job")
    # A restore cannot be counted so: strace would follow the keeper's new processes, and no scip could trace them.
    once, twice = saved
    assert sum(once.values()) > n, f"too few calls for {n} {kind}: {once}"
    # The part that does not depend on n lowers the ratio; n log n calls of kcmp raise it a little.
    assert sum(twice.values()) < 2.2 * sum(once.values()), f"{once}\n{twice}"
    assert twice.get("kcmp", 0) <= 2.5 * once.get("kcmp", 0) + 50, f"{once}\n{twice}"
