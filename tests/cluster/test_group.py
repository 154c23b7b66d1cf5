"""A group of jobs on several hosts: one consistent cut, and its rollback."""
import contextlib
import os
import pathlib
import signal
import subprocess
import time

import pytest

from test_reconnect import end_cluster

COUNTER = """import sys, time
i = 0
while True:
    print(i, flush=True)
    i += 1
    time.sleep(.02)
"""


def last(job):
    return int(job.text()[:job.text().rfind("\n")].split()[-1])


def count(host, name, group="g"):
    # Through a pipe, so that earlier output stays: a file would be reset by the rollback.
    job = host.start(["bash", "-o", "pipefail", "-c", 'scip run --name "$1" --group "$2" -- python3 -u -c "$3" | cat', "bash", name, group, COUNTER], name)
    host.wait_until(lambda: len(job.lines()) > 3, 20, f"{name} to count")
    return job


def goes_back(host, job, first, before):
    """Its output after the checkpoint appears again; the checkpoint was between these two numbers."""
    lines = []

    def back():
        lines[:] = [int(line) for line in job.text()[:job.text().rfind("\n") + 1].split()][job.start - 1:]
        return any(b <= a for a, b in zip(lines, lines[1:]))

    host.wait_until(back, 20, "the program to go back")
    at = next(i for i in range(1, len(lines)) if lines[i] <= lines[i - 1])
    assert first <= lines[at] <= before + 1, lines[at - 3:at + 3]


def end_all(*pairs):
    for host, job, name in pairs:
        host.ctl("kill", "-s", "KILL", name)
        assert job.wait(20) == 128 + signal.SIGKILL


@contextlib.contextmanager
def mounted(path, size):
    """A new file system of that size at `path`."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700,uid={path.stat().st_uid}", "none", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def resize(path, size):
    subprocess.run(["mount", "-o", f"remount,size={size}", path], check=True)


def test_two_jobs(make_lab):
    """Two independent programs on two hosts: saved as one and rolled back as one, from either host."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    jobs = [count(host, f"count-{host.name}") for host in (a, b)]
    first = [last(job) for job in jobs]
    path = a.checkpoint("g")
    before = [last(job) for job in jobs]
    time.sleep(.3)
    assert sorted(os.listdir(a.state / "pbeam" / "g" / "1.parts")) == ["1.ckpt", "2.ckpt"] == sorted(os.listdir(b.state / "pbeam" / "g" / "1.parts"))
    assert path == a.state / "pbeam" / "g" / "1.ckpt"
    for command in (a, b):
        for job in jobs:
            job.start = len(job.lines())
        command.rollback("g")
        for job, *between in zip(jobs, first, before):
            goes_back(a, job, *between)
    assert [line.split()[0] for line in b.ctl("log", "g").stdout.splitlines()[1:]] == ["1"]
    end_all((a, jobs[0], "count-a"), (b, jobs[1], "count-b"))


def start_streams(lab, hosts, one, other):
    """Two programs of one group that verify every byte they exchange; their jobs."""
    jobs = []
    port = 20000 + os.getpid() % 10000
    for host, what, options in zip(hosts, ("listen", "connect"), (one, other)):
        env = {"GO": str(host.home / "go"), "ANY_NAME": "1"}
        words = ["scip", "run", "--name", what, "--group", "g", "--", lab.stage.cluster / "stream", what, hosts[0].ip, port, *options]
        jobs.append(host.start(["bash", "-o", "pipefail", "-c", '"$@" | cat', "bash", *words], what, env))
    for job in jobs:
        job.wait_for("ready")
    return jobs


@pytest.mark.parametrize("one, other", [(["how=block", "pace=500"], ["how=edge", "pace=500"]), (["how=block", "late=1"], ["how=epoll", "late=1"]), (["how=poll", "send=100000"], ["how=block"])],
                         ids=["block-edge", "full queues", "half-closed"])
def test_connection(make_lab, one, other):
    """A TCP connection between two jobs of the group: data under way is in the images. After two rollbacks every byte arrived once and in order."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    jobs = start_streams(lab, (a, b), one, other)
    time.sleep(.5)
    a.checkpoint("g")
    for command in (b, a):
        time.sleep(.5)
        command.rollback("g")
    time.sleep(.5)
    end_cluster(lab, jobs)


def lose(lab, host):
    """The host is lost for good: it sends nothing any more, and its processes end."""
    host.cut()
    for pid in sorted(host.processes(), reverse=True):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    others = [other for other in lab.hosts if other is not host]
    others[0].wait_until(lambda: host.name not in lab.up(others[0]), 20, "the host to be lost")


@pytest.mark.messy
@pytest.mark.parametrize("lost", [0, 1], ids=["leader", "other"])
def test_lost_host(make_lab, lost):
    """One of the two hosts is lost, the leader's or the other: its part continues on a third, connected as before."""
    lab = make_lab(3).start()
    spare, first, second = lab.hosts
    jobs = start_streams(lab, (first, second), ["how=block", "pace=500"], ["how=edge", "pace=500"])
    time.sleep(.3)
    first.checkpoint("g")
    gone, stays = ((first, second), (second, first))[lost]
    lose(lab, gone)
    done = stays.ctl("rollback", "g", check=False)
    assert done.returncode == 1 and f"--on {gone.name}=HOST" in done.stderr, done.stderr
    stays.ctl("rollback", "--on", f"{gone.name}={spare.name}", "g")
    rows = {row["job_name"]: row["host"] for row in spare.ps()["processes"]}
    assert rows == {("listen", "connect")[lost]: spare.name, ("connect", "listen")[lost]: stays.name}
    time.sleep(.5)
    gone.file("go")  # the name is that of the lost host's home
    stays.file("go")
    job = jobs[1 - lost]
    assert job.wait(60) == 0, job.text() + job.errors()
    spare.wait_until(lambda: not spare.vpids(), 30, "the other to end well")


@pytest.mark.messy
def test_all_on_the_lost_host(make_lab):
    """A whole group was on the central host, which is lost: the other host has a copy and continues with it."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    a.start(["scip", "run", "--name", "one", "--group", "both", "--", "python3", "-c", "out = open('count', 'w', buffering=1)\n" + COUNTER.replace("print(i, flush=True)", "out.write(f'{i}\\n')")], "one")
    out = a.home / "count"

    def counted():
        numbers = out.read_text().split() if out.exists() else []
        assert numbers == [str(i) for i in range(len(numbers))]
        return len(numbers)

    a.wait_until(lambda: counted() > 3, what="it to count")
    a.checkpoint("both")
    lose(lab, a)
    refused = b.ctl("rollback", "--on", "a=b", "both", check=False)
    assert refused.returncode == 1 and "--take-over" in refused.stderr, refused.stderr
    b.ctl("hosts", "--take-over")
    b.ctl("rollback", "--on", "a=b", "both")
    before = counted()
    b.wait_until(lambda: counted() > before, what="it to count on")
    assert [row["host"] for row in b.ps()["processes"]] == ["b"]
    b.ctl("hosts", "--remove", "a")
    b.checkpoint("both")
    assert "no copy" not in b.log()


def test_host_was_only_away(make_lab):
    """A job that was rolled back on another host still runs behind a cut link: when the link is mended the job is ended there completely, and nothing else is."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    program = COUNTER.replace("i = 0", "import os\ni, parent = 0, os.getpid()\nif os.fork() == 0:\n    while os.getppid() == parent: time.sleep(.1)\n    os._exit(0)")
    # Through pipes: files would be restored, while the job that was cut off writes to them.
    jobs = [b.start(["bash", "-o", "pipefail", "-c", 'scip run --name "$@" | cat', "bash", name, *(["--group", "both"] if name == "one" else []), "--", "python3", "-c", program], name)
            for name in ("one", "two")]
    for job in jobs:
        b.wait_until(lambda job=job: job.lines(), what="it to count")
    b.checkpoint("both")
    b.cut()
    a.wait_until(lambda: lab.up(a) == ["a"], 20, "the host to be lost")
    a.ctl("rollback", "--on", "b=a", "both")
    count = last(jobs[0])
    b.wait_until(lambda: last(jobs[0]) > count, what="it to run on there as well")
    b.mend()
    assert jobs[0].wait(30) == 128 + signal.SIGKILL
    a.wait_until(lambda: sorted(row["host"] for row in a.ps()["processes"] if row["job_name"] == "one") == ["a", "a"], 20, "it to run there alone")
    count = last(jobs[1])
    b.wait_until(lambda: last(jobs[1]) > count + 20, what="the other job to run on")
    assert b.daemon.errors().count("was rolled back on host a while this host was away") == 1
    a.ctl("kill", "-s", "KILL", "one")
    b.ctl("kill", "-s", "KILL", "two")


@pytest.mark.messy
@pytest.mark.parametrize("where, point", [("part", "cut-frozen"), ("part", "cut-dumped"), ("leader", "cut-lead-frozen"), ("leader", "cut-lead-dumped"),
                                          ("leader", "cut-lead-before-manifest"), ("copy", "cut-put")])
def test_given_up(make_lab, where, point):
    """A part's coordinator, the leader, or the receiver of a copy is killed: all go on with all their bytes, the older checkpoint counts, and nothing is left over."""
    lab = make_lab(2)
    a, b = lab.hosts
    for host in lab.hosts:
        host.env["PBEAM_FAULT"] = str(host.file("fault"))
    lab.start()
    jobs = start_streams(lab, (a, b), ["how=block", "pace=500"], ["how=edge", "pace=500"])
    a.checkpoint("g")
    (a if where == "leader" else b).file("fault", f"{point}:kill")
    assert a.ctl("checkpoint", "g", check=False).returncode == 1
    for host in lab.hosts:
        host.file("fault")
    for host in lab.hosts:
        host.wait_until(lambda host=host: {name for name in os.listdir(host.state / "pbeam" / "g") if "2." in name} <= {"2.parts"}, 10, "no second checkpoint")
    b.rollback("g")
    end_cluster(lab, jobs)


OUTSIDE = """import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print('connected', flush=True)
try:
    while s.recv(100):
        pass
    print('closed', flush=True)
except ConnectionResetError:
    print('reset', flush=True)
time.sleep(1000)
"""


def test_outside(make_lab):
    """A connection to a program that is not saved is reported, and reset by the rollback."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    server = b.start(["python3", "-u", "-c", "import socket, time\ns = socket.create_server(('', 0))\nprint(s.getsockname()[1], 'port', flush=True)\nc = s.accept()\ntime.sleep(1000)"], "server").wait_for("port")
    port = server.text().split()[0]
    words = ["scip", "run", "--name", "out", "--group", "g", "--", "python3", "-u", "-c", OUTSIDE, b.ip, port]
    job = a.start(["bash", "-o", "pipefail", "-c", '"$@" | cat', "bash", *words], "out").wait_for("connected")
    other = count(b, "count")
    done = a.ctl("checkpoint", "g")
    assert f"TCP connection to {b.ip}:{port}" in done.stderr and "resets it" in done.stderr, done.stderr
    a.rollback("g")
    job.wait_for("reset")
    server.process.kill()
    server.process.wait()
    end_all((a, job, "out"), (b, other, "count"))


# The steps of a part of a rollback before the commit.
STEPS = ("restore-checked", "restore-frozen", "restore-made-objects", "restore-made-tree", "restore-before-run", "migrate-target-held")


def faulty_lab(make_lab):
    lab = make_lab(2)
    for host in lab.hosts:
        host.env["PBEAM_FAULT"] = str(host.file("fault"))
    return lab.start()


def tracer(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/status").read_text().split("TracerPid:\t", 1)[1].split("\n", 1)[0])
    except OSError:
        return 0


def programs(lab):
    """Real pids of all supervised processes, stubs included; a program that has moved has the environment of its first host."""
    ours = {pid for host in lab.hosts for pid in host.processes()}
    return sorted(pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if tracer(pid) in ours)


def give_up(lab, leader, name, host, fault):
    """The rollback of `name` fails because of the fault on `host`: the processes are those that were there before, and run."""
    before = programs(lab)
    host.file("fault", fault)
    done = leader.ctl("rollback", name, check=False)
    host.file("fault")
    assert done.returncode == 1, fault
    leader.wait_until(lambda: programs(lab) == before, 20, lambda: f"{fault}: {before} to be what runs, not {programs(lab)}")
    leader.wait_until(lambda: not any("frozen" in row["state"] for row in leader.ps()["processes"]), 20, f"{fault}: all to run")


def replaced(lab, leader, name, host, fault):
    """The rollback of `name` is not prevented by the fault on `host`: as many processes as before run, and none of these."""
    before = programs(lab)
    host.file("fault", fault)
    leader.ctl("rollback", name, check=False)
    host.file("fault")
    leader.wait_until(lambda: len(programs(lab)) == len(before) and not set(before) & set(programs(lab)), 20, lambda: f"{fault}: {before} to be replaced, not {programs(lab)}")


@pytest.mark.messy
def test_rollback_given_up(make_lab):
    """The leader of a rollback is killed before its commit: the old processes go on, and those stopped by the user stay stopped. After its commit the new ones run."""
    lab = faulty_lab(make_lab)
    a, b = lab.hosts
    jobs = [count(host, f"count-{host.name}") for host in (a, b)]
    first = [last(job) for job in jobs]
    a.checkpoint("g")
    before = [last(job) for job in jobs]
    b.ctl("kill", "-s", "STOP", "count-b")
    b.wait_until(lambda: "stopped" in b.ctl("ps").stdout, what="it to be stopped")
    for point in ("cut-lead-stopped", "cut-lead-before-commit"):
        stopped = last(jobs[1])
        give_up(lab, a, "g", a, f"{point}:kill")
        seen = last(jobs[0])
        a.wait_until(lambda seen=seen: last(jobs[0]) > seen + 3, 20, "the program to go on")
        assert last(jobs[1]) == stopped
    b.ctl("kill", "-s", "CONT", "count-b")  # and its console with it
    seen = last(jobs[1])
    b.wait_until(lambda: last(jobs[1]) > seen + 3, 20, "the program to go on")
    for job in jobs:
        job.start = len(job.lines())
    replaced(lab, a, "g", a, "cut-lead-committed:kill")
    for job, *between in zip(jobs, first, before):
        goes_back(a, job, *between)
    assert sorted(row["job_name"] + row["host"] for row in a.ps()["processes"]) == ["count-aa", "count-bb"]


@pytest.mark.messy
def test_part_given_up(make_lab):
    """One part of a rollback fails, or its coordinator is killed, at each step before the commit: the old processes of both go on, connected as before. Killed after the commit: the new ones."""
    lab = faulty_lab(make_lab)
    a, b = lab.hosts
    jobs = start_streams(lab, (a, b), ["how=block", "pace=500"], ["how=edge", "pace=500"])
    a.checkpoint("g")
    for action in ("fail", "kill"):
        for point in STEPS:
            give_up(lab, a, "g", b, f"{point}:{action}")
    replaced(lab, a, "g", b, "restore-condemned:kill")
    b.wait_until(lambda: b.ctl("rollback", "g", check=False).returncode == 0, 20, "the next rollback")
    end_cluster(lab, jobs)


@pytest.mark.messy
def test_file_given_up(make_lab):
    """The rollback changes a file, and is given up at each step: the file has what the old process wrote, and the process goes on in it. Killed after the commit it is the image's."""
    lab = faulty_lab(make_lab)
    a, b = lab.hosts
    program = "out = open('count', 'w', buffering=1)\n" + COUNTER.replace("print(i, flush=True)", "out.write(f'{i}\\n')")
    for host in lab.hosts:
        host.run(["scip", "run", "-d", "--name", f"count-{host.name}", "--group", "g", "--", "python3", "-c", program])

    def counted(host):
        numbers = (host.home / "count").read_text().split()
        assert numbers == [str(i) for i in range(len(numbers))]
        return len(numbers)

    for host in lab.hosts:
        host.wait_until(lambda host=host: (host.home / "count").exists() and counted(host) > 3, what="it to count")
    a.checkpoint("g")
    saved = counted(b)
    b.wait_until(lambda: counted(b) > saved + 20, what="it to count on")
    for fault in (*(f"{step}:kill" for step in STEPS[1:]), "migrate-target-held:fail"):
        seen = [counted(host) for host in lab.hosts]
        give_up(lab, a, "g", b, fault)
        for host, n in zip(lab.hosts, seen):
            assert counted(host) >= n, fault
            host.wait_until(lambda host=host, n=n: counted(host) > n, what="it to count on")
    replaced(lab, a, "g", b, "restore-condemned:kill")
    for host in lab.hosts:
        n = counted(host)
        host.wait_until(lambda host=host, n=n: counted(host) > n + 3, what="it to count on")
        assert not [path for path in host.home.iterdir() if "pbeam-" in path.name]


@pytest.mark.messy
@pytest.mark.parametrize("victim", ["coordinate", "keeper"])
def test_killed_after_vote(make_lab, victim):
    """The coordinator of a part, or its keeper, is killed when all parts have voted: nothing is committed. The old processes go on, but for those of the keeper, which end with it."""
    lab = faulty_lab(make_lab)
    a, b = lab.hosts
    jobs = [count(host, f"count-{host.name}") for host in (a, b)]
    a.checkpoint("g")
    before = [host.program_pids() for host in lab.hosts]
    a.file("fault", "cut-lead-before-commit:sleep")
    back = a.start(["pbeamctl", "rollback", "g"], "back")
    a.wait_until(lambda: "reached" in (a.home / "fault").read_text(), 20, "all votes")
    assert [len(host.program_pids()) for host in lab.hosts] == [2, 2]
    (pid,) = b.named(f"scip-{victim}")
    channels = len(a.named("pbeam-channel"))
    os.kill(pid, signal.SIGKILL)
    a.wait_until(lambda: len(a.named("pbeam-channel")) < channels, 20, "the leader to lose the part")
    a.file("fault")
    assert back.wait(30) == 1
    if victim == "keeper":
        before[1] = []
    for host, pids in zip(lab.hosts, before):
        host.wait_until(lambda host=host, pids=pids: host.program_pids() == pids, 20, lambda host=host, pids=pids: f"{pids} to be what runs, not {host.program_pids()}")
    for job in jobs if victim == "coordinate" else jobs[:1]:
        seen = last(job)
        a.wait_until(lambda job=job, seen=seen: last(job) > seen + 3, 20, "the program to go on")
    a.rollback("g")
    assert sorted(row["job_name"] + row["host"] for row in a.ps()["processes"]) == ["count-aa", "count-bb"]


@pytest.mark.messy
def test_old_order(make_lab):
    """What cannot exist twice on one host (an abstract name) refuses the rollback of all parts. --replace ends the old processes of all parts first: a failure leaves none, and the next rollback restores all."""
    lab = faulty_lab(make_lab)
    a, b = lab.hosts
    name = "import os, socket\nhas = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\nhas.bind('\\0pbeam-order-%d' % os.getpid())\nopen('made', 'w').close()\n"
    for host, program, options in ((a, name + COUNTER, ()), (b, COUNTER, ())):
        host.start(["scip", "run", "-d", "--name", f"count-{host.name}", "--group", "g", *options, "--", "python3", "-u", "-c", program])
    a.wait_until(lambda: len(a.ps()["processes"]) == 2, what="both to run")
    a.wait_until(lambda: (a.home / "made").exists(), what="the name")
    time.sleep(.3)
    a.checkpoint("g")
    pids = a.program_pids(), b.program_pids()
    refused = a.ctl("rollback", "g", check=False)
    assert refused.returncode == 1 and "host a" in refused.stderr and "--replace" in refused.stderr, refused.stderr
    assert (a.program_pids(), b.program_pids()) == pids
    a.rollback("g", "--replace")
    b.file("fault", "restore-made-objects:fail")
    assert a.ctl("rollback", "--replace", "g", check=False).returncode == 1
    b.file("fault")
    a.wait_until(lambda: not a.vpids() and not a.program_pids() and not b.program_pids(), 20, "none to be left")
    a.rollback("g")
    assert sorted(row["job_name"] + row["host"] for row in a.ps()["processes"]) == ["count-aa", "count-bb"]


def test_on_live_host(make_lab):
    """--on with a host that is up: rolled back, then moved there; the console stays."""
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    jobs = start_streams(lab, (a, b), ["how=block", "pace=500"], ["how=edge", "pace=500"])
    a.checkpoint("g")
    a.ctl("rollback", "--on", "b=c", "g")
    assert {row["job_name"]: row["host"] for row in a.ps()["processes"]} == {"listen": "a", "connect": "c"}
    b.rollback("g")
    assert {row["job_name"]: row["host"] for row in a.ps()["processes"]} == {"listen": "a", "connect": "c"}
    end_cluster(lab, jobs)


def test_full_disk(make_lab):
    """The image store of a host has no room for another host's part: no checkpoint is made, the earlier one is whole, and no half image is left."""
    if os.getuid() != 0:
        pytest.skip("needs root to mount a small file system")
    a, b = make_lab(2).start().hosts
    store = b.state / "pbeam"
    store.mkdir(exist_ok=True)
    b.own(store)
    with mounted(store, "200m"):
        code = "import os; data = os.urandom(24 << 20)\n" + COUNTER
        big = a.start(["bash", "-o", "pipefail", "-c", 'scip run --name "$1" --group g -- python3 -u -c "$2" | cat', "bash", "big", code], "big")
        a.wait_until(lambda: len(big.lines()) > 3, 20, "big to count")
        little = count(b, "little")
        a.checkpoint("g")
        images = {path: path.read_bytes() for path in store.rglob("*.ckpt")}
        assert len(images) == 3  # two parts and their manifest
        room = os.statvfs(store)
        used = (room.f_blocks - room.f_bfree) * room.f_frsize
        resize(store, used + (16 << 20))
        for command in (a, b):
            done = command.ctl("checkpoint", "g", check=False)
            assert done.returncode == 1 and "No space left" in done.stderr, done.stderr
            assert {path: path.read_bytes() for path in store.rglob("*.ckpt*")} == images
        jobs = big, little
        for job in jobs:
            job.start = len(job.lines())
        first = [last(job) for job in jobs]
        resize(store, 200 << 20)
        a.rollback("g")
        for job, value in zip(jobs, first):
            goes_back(a, job, 0, value)
        a.checkpoint("g")
        end_all((a, big, "big"), (b, little, "little"))
