"""The experiments of msocket's authors: connections made before, during and after moves, a load swap, a walking pipe, and moves without number."""
import os
import pathlib
import random
import threading
import time

import pytest
from harness import comm
from test_reconnect import cluster_streams, end_cluster

GB = 10**9


def port():
    return random.randrange(20000, 30000)


def move(name, here, there, jobs):
    done = here.ctl("migrate", name, there.name, timeout=60, check=False)
    assert done.returncode == 0, "\n".join([done.stderr] + [job.text()[-1000:] + job.errors() for job in jobs])


def start_pair(lab, a, b, tool, *words):
    """The two ends of one of tests/cluster/sockets' programs, "listen" on a and "connect" on b."""
    env = {"GO": str(a.home / "go")}
    jobs = []
    for host, what in ((a, "listen"), (b, "connect")):
        jobs.append(host.start(["scip", "run", "--name", what, "--", lab.stage.cluster / tool, what, *words], what, env=env))
        if what == "connect" or "udp" in words:  # TCP's listener is ready when it has accepted
            jobs[-1].wait_for("ready")
    return jobs


@pytest.mark.timeout(200)
def test_load_swap(make_lab):
    """Producer and consumer change hosts in the middle of a gigabyte, one after the other, and back."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    jobs = cluster_streams(lab, a, b, ["how=block", "pace=50", f"send={GB}"], ["how=block", "send=100000"])
    for name, here, there in (("listen", a, b), ("connect", b, a), ("connect", a, b), ("listen", b, a)):
        time.sleep(.3)
        here.ctl("migrate", name, there.name, timeout=60)
    end_cluster(lab, jobs, 150)
    assert jobs[0].lines()[-1].startswith(f"sent {GB} received 100000 ")


RELAY = """
import hashlib, os, random, socket, sys
place, mine, following = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
total, digest = 0, hashlib.sha256()
if place > 0:
    listener = socket.create_server(("", mine))
    print("listening", flush=True)
    came, _ = listener.accept()
    listener.close()
if following:
    out = socket.create_connection((following[0], int(following[1])), 60)
    out.settimeout(None)
print("ready", flush=True)
chance = random.Random(7)
while True:
    if place == 0:
        data = b"" if os.path.exists(os.environ["GO"]) else chance.randbytes(chance.randrange(1, 100000))
    else:
        data = came.recv(65536)
    if not data:
        break
    total += len(data)
    digest.update(data)
    if following:
        out.sendall(data)
if following:
    out.shutdown(socket.SHUT_WR)
print(total, digest.hexdigest(), flush=True)
"""


def walk_on(here, name, there):
    """Moves the program. A fast stream may have more under way than a new connection takes: the move is then repeated."""
    for _ in range(100):
        done = here.ctl("migrate", name, there.name, timeout=60, check=False)
        if done.returncode == 0:
            return
        assert "takes only" in done.stderr or "has room for" in done.stderr, done.stderr
        time.sleep(.05)
    raise AssertionError(done.stderr)


@pytest.mark.timeout(240)
@pytest.mark.long
def test_walking_pipe(make_lab, long):
    """A stream runs through four processes on four hosts, each of which walks on to the next host, again and again."""
    lab = make_lab(4).start()
    hosts, first = lab.hosts, port()
    jobs = []
    for place in (3, 2, 1, 0):
        following = [hosts[place + 1].ip, first + place + 1] if place < 3 else []
        jobs.append(hosts[place].start(["scip", "run", "--name", f"p{place}", "--", "python3", "-c", RELAY, place, first + place, *following], f"p{place}", env={"GO": str(hosts[0].home / "go")}))
        if place:
            jobs[-1].wait_for("listening")
    for job in jobs:
        job.wait_for("ready")
    for turn in range(40 if long else 1):
        for place in (3, 2, 1, 0):
            walk_on(hosts[(place + turn) % 4], f"p{place}", hosts[(place + turn + 1) % 4])
    hosts[0].file("go")
    for job in jobs:
        assert job.wait(60) == 0, job.text() + job.errors()
    ends = {job.lines()[-1] for job in jobs}
    assert len(ends) == 1 and int(ends.pop().split()[0]) > 100000


def held(lab):
    """What the daemons, keepers and bridges of all hosts hold: descriptors, and private memory in KiB."""
    fds = memory = 0
    for host in lab.hosts:
        for pid in host.processes():
            try:
                if comm(pid) in ("pbeamd", "scip-keeper", "scip-link", "scip bridge"):
                    fds += len(os.listdir(f"/proc/{pid}/fd"))
                    memory += int(pathlib.Path(f"/proc/{pid}/status").read_text().split("RssAnon:")[1].split()[0])
            except (OSError, IndexError):  # the process has just ended
                continue
    return fds, memory


@pytest.mark.timeout(240)
@pytest.mark.long
@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_ping_pong(make_lab, long, transport):
    """2,000 moves (12 in the short form) of the two ends of a ping-pong in turn; afterwards no process holds more than after the first moves."""
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    jobs = start_pair(lab, a, b, "pingpong", transport, a.ip, port())
    at = {"listen": a, "connect": b}
    chance = random.Random(1)
    for turn in range(2000 if long else 12):
        name = ("listen", "connect")[turn % 2]
        to = chance.choice([host for host in lab.hosts if host is not at[name]])
        move(name, at[name], to, jobs)
        at[name] = to
        if turn == 10:
            fds, memory = held(lab)
    if long:
        a.wait_until(lambda: all(now < then + room for now, then, room in zip(held(lab), (fds, memory), (60, 6000))), 10, f"descriptors and memory to be as after the first moves, {(fds, memory)}")
    a.file("go")
    for job in jobs:
        assert job.wait(60) == 0, job.text() + job.errors()
        assert int(job.lines()[-1].split()[1]) > 100


@pytest.mark.timeout(300)
@pytest.mark.long
def test_producer_and_consumer(make_lab, long):
    """Each moves 200 times (8 in the short form), at times both at once."""
    lab = make_lab(4).start()
    jobs = cluster_streams(lab, lab.hosts[0], lab.hosts[1], ["how=block"], ["how=edge", "send=100000"])
    wrong = []

    def walk(name, at, seed):
        chance = random.Random(seed)
        try:
            for _ in range(200 if long else 8):
                to = chance.choice([host for host in lab.hosts if host is not at])
                for _ in range(50):  # refused while the other end is just moving
                    done = at.ctl("migrate", name, to.name, timeout=60, check=False)
                    if done.returncode == 0:
                        break
                    time.sleep(chance.random() / 5)
                assert done.returncode == 0, done.stderr
                at = to
        except BaseException as problem:  # reported by the main thread
            wrong.append(problem)

    walkers = [threading.Thread(target=walk, args=(name, lab.hosts[i], i)) for i, name in enumerate(("listen", "connect"))]
    for walker in walkers:
        walker.start()
    for walker in walkers:
        walker.join()
    assert not wrong, wrong[0]
    end_cluster(lab, jobs)


SERVER = """
import os, socket, threading
listener = socket.create_server(("", int(os.sys.argv[1])))
print("ready", flush=True)
def serve(one):
    with one:
        while data := one.recv(65536):
            one.sendall(data)
while True:
    one, _ = listener.accept()
    threading.Thread(target=serve, args=(one,), daemon=True).start()
"""

CALLER = """
import os, socket, sys, time
address = (sys.argv[1], int(sys.argv[2]))
old = socket.create_connection(address, 60)
rounds = 0
while not os.path.exists(os.environ["GO"]):
    data = os.urandom(5000)
    with socket.create_connection(address, 60) as new:
        for one in (old, new):
            one.sendall(data)
            got = b""
            while len(got) < len(data):
                try:
                    piece = one.recv(65536)
                except OSError as problem:
                    sys.exit(f"{problem}: {'old' if one is old else 'new'}, {rounds} {len(got)} {one.getsockname()} {one.getpeername()}")
                assert piece, (one is old, rounds, len(got))
                got += piece
            assert got == data
        assert new.getpeername() == address, new.getpeername()
        new.shutdown(socket.SHUT_WR)
        assert new.recv(1) == b""
    rounds += 1
    if rounds % 20 == 0:
        print("tick", rounds, flush=True)
print("result ok", flush=True)
"""


@pytest.mark.timeout(200)
@pytest.mark.long
def test_connections_made_meanwhile(make_lab, long):
    """A client makes connection after connection, while its server moves and while it moves itself; none fails, and the first one lives on."""
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    number = port()
    server = a.start(["scip", "run", "--name", "server", "--", "python3", "-c", SERVER, number], "server")
    server.wait_for("ready")
    client = b.start(["scip", "run", "--name", "client", "--", "python3", "-c", CALLER, a.ip, number], "client", env={"GO": str(a.home / "go")})
    client.wait_for("tick", 30)
    for _ in range(50 if long else 1):
        for name, here, there in (("server", a, b), ("client", b, c), ("server", b, c), ("client", c, b), ("server", c, a)):
            move(name, here, there, (server, client))
            before = client.text().count("tick")
            a.wait_until(lambda before=before: client.text().count("tick") > before + 1 or client.process.poll() is not None, 30, "calls to go on")
    a.file("go")
    assert client.wait(60) == 0, client.text() + client.errors()
    a.ctl("kill", "server")
    assert server.wait(30) == 128 + 15
