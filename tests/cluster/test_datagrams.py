"""UDP within the name space: sockets connected to a port that moves are led to its new place and need no host that was left."""
import json
import random
import threading
import time

import pytest

pytestmark = pytest.mark.timeout(180)

# Answers each datagram with who has sent it; with "connected" it connects to the first one that calls.
SERVER = """
import os, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], int(sys.argv[2])))
s.settimeout(1)
own = s.getsockname()
print("ready", flush=True)
connected = first = None
while not os.path.exists(sys.argv[3]):
    try:
        data, peer = s.recvfrom(1000)
    except TimeoutError:
        continue
    first = first or peer
    assert peer == first, (peer, first)
    if sys.argv[4] == "connected" and not connected:
        s.connect(peer)
        connected = peer
    assert s.getsockname()[1] == own[1], (s.getsockname(), own)
    assert connected in (None, peer) and (not connected or s.getpeername() == peer), (connected, peer)
    answer = b"%s %d" % (data, peer[1])
    s.send(answer) if connected else s.sendto(answer, peer)
print("done", flush=True)
"""
# Asks again and again, and counts what is not answered; an answer that is not from the server, or that was called otherwise, is wrong.
CLIENT = """
import os, socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((sys.argv[1], int(sys.argv[2])))
s.settimeout(1)
own, peer = s.getsockname(), s.getpeername()
assert peer == (sys.argv[1], int(sys.argv[2]))
print("ready", flush=True)
n = lost = 0
while not os.path.exists(sys.argv[3]):
    due = b"%d %d" % (n, own[1])
    try:
        s.send(b"%d" % n)
        while True:
            data, sender = s.recvfrom(1000) if n % 2 else (s.recv(1000), peer)
            assert sender == peer and int(data.split()[0]) <= n and data.split()[1] == due.split()[1], (data, sender)
            if data == due:
                break
    except TimeoutError:
        lost += 1
        print("lost", n, time.time(), flush=True)
    assert (s.getsockname(), s.getpeername()) == (own, peer), (s.getsockname(), s.getpeername())
    n += 1
    if n % 20 == 0:
        with open(sys.argv[4], "w") as f:
            print(n, lost, file=f)
print("done", n, lost, flush=True)
"""


class Pair:
    """A server and a client connected to it, each on its own host."""

    def __init__(self, lab, serves, asks, kind="unconnected", bound="0.0.0.0", env=None):
        self.lab, self.go, self.out = lab, lab.hosts[0].home / "go", lab.hosts[0].home / "count"
        self.at = {"server": serves, "client": asks}
        port = random.randrange(20000, 30000)
        self.ends = lab.hosts[0].home / "ends"
        start = lambda host, name, *argv: host.start(["scip", "run", "--name", name, "--", "python3", "-c", *argv], name, env=env)
        self.jobs = [start(serves, "server", SERVER, bound, port, self.ends, kind)]
        self.jobs[0].wait_for("ready")
        self.jobs.append(start(asks, "client", CLIENT, serves.ip, port, self.go, self.out))
        self.jobs[1].wait_for("ready")
        self.goes_on()

    def count(self):
        """The numbers of requests and of missing answers."""
        while self.out.exists():
            words = self.out.read_text().split()
            if words:  # otherwise it is being written
                return [int(word) for word in words]
        return [0, 0]

    def goes_on(self, more=100):
        then = self.count()[0]
        self.lab.hosts[0].wait_until(lambda: self.count()[0] > then + more, 20, f"more than {then} answers\n" + "".join(job.errors() for job in self.jobs))

    def move(self, name, to, **more):
        done = self.at[name].ctl("migrate", name, to.name, timeout=60, **more)
        self.at[name] = to
        return done

    def end(self, lost=0):
        for file, job in (("go", self.jobs[1]), ("ends", self.jobs[0])):
            self.lab.hosts[0].file(file)
            assert job.wait(30) == 0, job.text() + job.errors()
        assert int(self.jobs[1].lines()[-1].split()[2]) <= lost, self.jobs[1].text()


def dependants(host, seen_from):
    return [text for row in json.loads(seen_from.ctl("hosts", "--json").stdout)["hosts"] if row["name"] == host.name for text in row["depends"]]


@pytest.mark.parametrize("kind, first", [("unconnected", "server"), ("connected", "client")])
def test_moves(make_lab, kind, first):
    """Wherever the two ends move nothing is lost and all names stay; a connected socket leaves nothing behind."""
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    pair = Pair(lab, b, a, kind, b.ip if kind == "connected" else "0.0.0.0")
    other = {"server": "client", "client": "server"}[first]
    for name, to in ((first, c), (other, {"server": a, "client": b}[first]), (first, {"server": b, "client": a}[first]), (other, c), ("server", b), ("client", a)):
        if pair.at[name] is to:
            continue
        pair.move(name, to)
        pair.goes_on()
        depends = [text for host in lab.hosts for text in dependants(host, a)]
        assert not [text for text in depends if "UDP with" in text or "connections" in text], depends
    pair.end()


def test_left_hosts_go(make_lab):
    """Both ends have moved, and both hosts of birth are cut off: they go on."""
    lab = make_lab(4).start()
    a, b, c, d = lab.hosts
    pair = Pair(lab, b, c)
    pair.move("client", d)
    pair.goes_on()
    pair.move("server", a)
    pair.goes_on()
    for host in (b, c):
        host.cut()
    pair.goes_on(2000)
    for host in (b, c):
        host.mend()
    a.wait_until(lambda: len(lab.up(a)) == 4, 20, "all hosts to be up again")
    pair.end()


@pytest.mark.timeout(240)
@pytest.mark.long
def test_both_move_at_once(make_lab, long):
    """Each end is moved 100 times (5 in the short form), and nothing is lost."""
    lab = make_lab(3).start()
    pair = Pair(lab, lab.hosts[1], lab.hosts[0])
    wrong = []

    def walk(name, seed):
        chance = random.Random(seed)
        try:
            for _ in range(100 if long else 5):
                to = chance.choice([host for host in lab.hosts if host is not pair.at[name]])
                for _ in range(50):  # refused while the other end is just moving
                    done = pair.at[name].ctl("migrate", name, to.name, timeout=60, check=False)
                    if done.returncode == 0:
                        break
                    time.sleep(chance.random() / 5)
                assert done.returncode == 0, done.stderr
                pair.at[name] = to
        except BaseException as problem:  # reported by the main thread
            wrong.append(problem)

    walkers = [threading.Thread(target=walk, args=(name, seed)) for seed, name in enumerate(pair.at)]
    for walker in walkers:
        walker.start()
    for walker in walkers:
        walker.join()
    assert not wrong, wrong[0]
    pair.goes_on()
    pair.end()


def test_rolled_back(make_lab):
    """A connected socket that is rolled back finds its peer where that is by then."""
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    pair = Pair(lab, b, a)
    pair.move("client", c)
    c.ctl("checkpoint", "client")
    pair.goes_on()
    for to in (a, b):
        pair.move("server", to)
        pair.goes_on()
        pair.out.write_text("0 0\n")
        c.ctl("rollback", "client")
        pair.goes_on()
    pair.end(lost=2)


FAULTS = [("peer", "reconnect-held"), ("peer", "reconnect-led"), ("source", "migrate-before-commit"), ("source", "migrate-committed")]


@pytest.mark.messy
@pytest.mark.parametrize("where, point", FAULTS)
@pytest.mark.parametrize("moves", ["server", "client"])
def test_given_up(make_lab, where, point, moves):
    """Whichever coordinator or holder is killed, both ends continue, on either host."""
    lab = make_lab(3)
    a, b, c = lab.hosts
    if where == "peer":
        {"server": a, "client": b}[moves].env["PBEAM_FAULT"] = f"{point}:kill"
    lab.start()
    pair = Pair(lab, b, a, "connected", env={"PBEAM_FAULT": f"{point}:kill"} if where == "source" else None)
    done = pair.at[moves].ctl("migrate", moves, "c", timeout=60, check=False)
    assert (done.returncode == 0) == (point == "migrate-committed"), done.stderr
    pair.goes_on()
    pair.end(lost=1)  # a process killed after the commit is not reported first
