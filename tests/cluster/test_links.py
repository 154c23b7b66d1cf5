"""The links of a job's processes on other hosts: one connection carries them all, and a killed process of theirs is replaced."""
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

import pytest

CHILDREN = 12
# Each child adds a line to a file for each signal, and ends with its own status; the parent reports the statuses.
PROGRAM = f"""import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGUSR2])
pids = []
for i in range({CHILDREN}):
    pid = os.fork()
    if not pid:
        n = 0
        while signal.sigwait([signal.SIGUSR1, signal.SIGUSR2]) == signal.SIGUSR1:
            n += 1
            with open(f'child.{{i}}', 'w') as f: f.write(str(n))
        print('child', i, 'got', n, flush=True)
        os._exit(i + 1)
    pids.append(pid)
print('pids', *pids, flush=True)
print('ended', *(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids), flush=True)
"""


class Children:
    """PROGRAM on host `home`, whose children are spread over the other hosts."""

    def __init__(self, home, others):
        self.home, self.lines = home, []
        self.job = home.popen(["scip", "run", "--", "python3", "-c", PROGRAM], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.reader = threading.Thread(target=lambda: self.lines.extend(line.decode().split() for line in self.job.stdout))
        self.lines.append(self.job.stdout.readline().decode().split())
        self.reader.start()
        self.pids = [int(word) for word in self.lines[0][1:]]
        for i, pid in enumerate(self.pids):
            home.ctl("migrate", pid, others[i % len(others)].name)

    def said(self, word):
        return [line for line in self.lines if line[0] == word]

    def count(self, i):
        path = self.home.home / f"child.{i}"
        return int(path.read_text() or 0) if path.exists() else 0

    def signal_and_wait(self, i, n):
        """The n-th signal reaches its stub, and then child i."""
        os.kill(self.pids[i], signal.SIGUSR1)
        self.home.wait_until(lambda: self.count(i) == n, 30, f"child {i} to get signal {n}; it has {self.count(i)}")

    def end(self, signals):
        for pid in self.pids:
            os.kill(pid, signal.SIGUSR2)
        assert self.job.wait(40) == 0
        self.reader.join(10)
        assert self.said("ended") == [["ended", *(str(i + 1) for i in range(CHILDREN))]]
        assert sorted(self.said("child")) == sorted(["child", str(i), "got", str(signals)] for i in range(CHILDREN))


def test_one_connection(make_lab):
    """However many processes are elsewhere, each host has one process for the job's links, and one connection leads to each other host."""
    a, b, c = make_lab(3).start().hosts
    children = Children(a, [b, c])
    for i in range(CHILDREN):
        children.signal_and_wait(i, 1)
    for host in (a, b, c):
        assert len(host.named("scip-link")) == 1, host.name
    for host in (b, c):
        carrier = host.named("scip-link")[0]
        sockets = [os.readlink(f"/proc/{carrier}/fd/{fd}") for fd in os.listdir(f"/proc/{carrier}/fd")]
        assert sum(target.startswith("socket:") for target in sockets) == 4, "to the keeper, to the host of the stubs, and two for the loop's signals"
    children.end(1)


def test_keepers_of_orphans_sleep(make_lab):
    """Nothing wakes the keepers of a job whose first process has ended and whose last one is on another host. They end with it."""
    a, b = make_lab(2).start().hosts
    os.mkfifo(a.home / "ready")
    a.own(a.home / "ready")
    first, out = a.detach("sh", "-c", "sleep 600 & echo $!; read end < ready", name="orphan")
    orphan = int(a.wait_until(lambda: out.read_text().split(), what="the child")[0])
    a.ctl("migrate", orphan, b.name)
    (a.home / "ready").write_text("end\n")
    a.wait_until(lambda: first not in a.vpids(), what="the first process to end")
    keepers = a.named("scip-keeper") + b.named("scip-keeper")

    def woken():
        return [re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M) for pid in keepers]

    def is_still():
        before = woken()
        time.sleep(2)
        return woken() == before

    assert len(keepers) == 2
    a.wait_until(is_still, 20, "the keepers to sleep")
    a.ctl("kill", "-s", "KILL", orphan)
    for host in (a, b):
        host.wait_until(lambda host=host: not host.named("scip-keeper"), 5, f"the keeper on {host.name} to end")


@pytest.mark.messy
def test_killed(make_lab):
    """The processes of the links are killed on all hosts, again and again: each signal arrives once, and so does each child's end."""
    hosts = make_lab(3).start().hosts
    for host in hosts:
        host.expect_loss()
    children = Children(hosts[0], hosts[1:])
    over, killed = threading.Event(), []

    def disturb():
        while not over.wait(.3):
            host = hosts[len(killed) % 3]
            for pid in host.named("scip-link"):
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                except ProcessLookupError:
                    pass

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        for n in range(1, 5):
            for i in range(CHILDREN):
                children.signal_and_wait(i, n)
                time.sleep(.02)
    finally:
        over.set()
        disturber.join()
    assert len(killed) >= 3
    children.end(4)
