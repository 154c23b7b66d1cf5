"""Reconnecting TCP: in place on one host with both ends at once, and between hosts."""
import os
import random
import threading
import time

import pytest

MOVES = int(os.environ.get("PBEAM_MOVES", 10))  # of each end

# Options of the two ends; how often they are reconnected.
PAIRS = [
    (["how=block"], ["how=block"], 40),
    (["how=poll"], ["how=select"], 40),
    (["how=epoll"], ["how=epoll"], 40),
    (["how=edge"], ["how=edge"], 40),
    (["how=block", "pace=2000"], ["how=edge", "pace=2000"], 60),
    (["how=block", "send=100000"], ["how=epoll"], 30),  # half-closed
    (["how=epoll"], ["how=block", "send=100000"], 30),
    (["how=block", "late=1"], ["how=block", "late=1"], 30),  # full queues, both ways
    (["how=edge", "late=1"], ["how=block", "late=1"], 30),
    (["how=block", "children=1"], ["how=epoll", "children=1"], 30),  # held by several processes
]


def streams(stage, host, one, other):
    """Two ends that verify their bytes; returns their jobs, the port and the file that ends them."""
    port = random.randrange(20000, 30000)
    go = host.home / "go"
    env = {"GO": str(go), "ANY_NAME": "1"}
    first = host.start(["scip", "run", "--", stage.cluster / "stream", "listen", "127.0.0.1", port, *one], "listen", env=env)
    second = host.start(["scip", "run", "--", stage.cluster / "stream", "connect", "127.0.0.1", port, *other], "connect", env=env)
    first.wait_for("ready")
    second.wait_for("ready")
    return first, second, port, go


def end_well(host, first, second, go):
    """Checks that every byte has arrived."""
    host.file(go.name)
    assert first.wait(60) == 0, first.text() + first.errors()
    assert second.wait(60) == 0, second.text() + second.errors()
    sent, received = [[int(job.lines()[-1].split()[i]) for i in (1, 3)] for job in (first, second)]
    assert sent == received[::-1]


# With late=1 neither end reads: aborted attempts would fill the queues more and more.
PLANS = [(*pair, given_up) for pair in PAIRS for given_up in (False, True) if not (given_up and "late=1" in pair[0])]


@pytest.mark.parametrize("one, other, times, given_up", PLANS, ids=[f"{'-'.join(one + other).replace('=', '')}{'-given-up' * given_up}" for one, other, _, given_up in PLANS])
def test_in_place(stage, host, one, other, times, given_up):
    first, second, port, go = streams(stage, host, one, other)
    host.run([stage.cluster / "swap_in_place", *(["-a"] if given_up else []), times // (1 + given_up), 10, port], timeout=100)
    end_well(host, first, second, go)


def cluster_streams(lab, listen_on, connect_on, one, other, fault=None):
    """As streams(), on two hosts of a cluster: the jobs, and the file on each host that ends them."""
    port = random.randrange(20000, 30000)
    jobs = []
    for host, what, options in ((listen_on, "listen", one), (connect_on, "connect", other)):
        env = {"GO": str(host.home / "go"), **({"PBEAM_FAULT": fault} if fault and what == "connect" else {})}
        jobs.append(host.start(["scip", "run", "--name", what, "--", lab.stage.cluster / "stream", what, listen_on.ip, port, *options], what, env=env))
    for job in jobs:
        job.wait_for("ready")
    return jobs


def end_cluster(lab, jobs, timeout=90):
    for host in lab.hosts:
        host.file("go")
    for job in jobs:
        assert job.wait(timeout) == 0, "\n".join(each.text() + each.errors() for each in jobs)
    sent, received = [[int(job.lines()[-1].split()[i]) for i in (1, 3)] for job in jobs]
    assert sent == received[::-1]



@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["block", "edge"])
def test_one_end_moves(make_lab, how):
    """One end moves round; in between the other does too."""
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    jobs = cluster_streams(lab, a, b, [f"how={how}", "pace=500"], [f"how={how}", "pace=500"])
    at = {"listen": a, "connect": b}
    for name, to in (("connect", c), ("connect", a), ("listen", b), ("connect", b), ("listen", c), ("connect", c), ("listen", a), ("connect", b)):
        at[name].ctl("migrate", name, to.name, timeout=60)
        at[name] = to
    end_cluster(lab, jobs)


def wander(lab, name, at, moves, seed, trail):
    """Moves a program between random hosts. A refusal because the other end is moving is retried."""
    chance = random.Random(seed)
    for _ in range(moves):
        to = chance.choice([host for host in lab.hosts if host is not at])
        for _ in range(50):
            done = at.ctl("migrate", name, to.name, timeout=60, check=False)
            trail.append(f"{name} {at.name} -> {to.name}: {done.returncode} {done.stderr.strip()}")
            if done.returncode == 0:
                at = to
                break
            time.sleep(chance.random() / 5)
        else:
            raise AssertionError("\n".join(trail))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("one, other", [(["how=block"], ["how=block"]), (["how=edge", "pace=1000"], ["how=poll", "pace=1000"])], ids=["block", "edge-poll"])
def test_both_ends_move_at_once(make_lab, one, other):
    lab = make_lab(4).start()
    jobs = cluster_streams(lab, lab.hosts[0], lab.hosts[1], one, other)
    trail, wrong = [], []

    def walk(*words):
        try:
            wander(*words)
        except BaseException as problem:  # reported by the main thread
            wrong.append(problem)

    walkers = [threading.Thread(target=walk, args=(lab, name, lab.hosts[i], MOVES, i, trail)) for i, name in enumerate(("listen", "connect"))]
    for walker in walkers:
        walker.start()
    for walker in walkers:
        walker.join()
    print("\n".join(trail))
    assert not wrong, wrong[0]
    end_cluster(lab, jobs)


@pytest.mark.timeout(240)
def test_ring(make_lab):
    """A ring of processes of one tree that move one after the other, so that at times the tree is on several hosts."""
    lab = make_lab(3).start()
    a = lab.hosts[0]
    job = a.start(["scip", "run", "--", lab.stage.cluster / "ring", 1500, a.ip], "ring")
    job.wait_for("ready")
    a.wait_until(lambda: len(a.vpids()) == 5, 10, "the stations")
    root = min(a.vpids())
    at = {vpid: a for vpid in a.vpids() if vpid != root}
    chance = random.Random(5)
    for vpid in [*at, *at, *at]:
        to = chance.choice([host for host in lab.hosts if host is not at[vpid]])
        done = at[vpid].ctl("migrate", "--alone", vpid, to.name, timeout=60, check=False)
        assert done.returncode == 0, done.stderr + job.text() + job.errors()
        at[vpid] = to
    assert job.wait(120) == 0, job.text() + job.errors()
    assert job.lines()[-1] == "6000"


@pytest.mark.timeout(120)
@pytest.mark.messy
@pytest.mark.parametrize("fault", [f"{point}:{action}" for action in ("fail", "kill")
                                   for point in ("migrate-frozen", "migrate-before-state", "migrate-held", "migrate-before-commit", "migrate-committed")])
def test_given_up_halfway(make_lab, fault):
    """Whichever coordinator is killed, both ends go on with all their bytes, on either host."""
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    jobs = cluster_streams(lab, a, b, ["how=edge", "pace=500"], ["how=block", "pace=500"], fault=fault)
    b.ctl("migrate", "connect", "c", timeout=60, check=False)
    time.sleep(1)
    end_cluster(lab, jobs)
