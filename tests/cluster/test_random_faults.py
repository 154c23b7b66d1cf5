"""
Migrations under random faults: whoever has a part in one is killed at a named point of it, the network is cut or loses packets, the target has no memory. A program
that exchanges a verified stream with a peer is moved among three hosts meanwhile. After each round it is in exactly one place and goes on (or has ended everywhere, if
it was its own supervisor that was killed), and nothing is left over.

PBEAM_FAULT_ROUNDS=300 makes it long, PBEAM_FAULT_SEED repeats a run; the short form has always the same one.
"""
import os
import pathlib
import random
import signal
import time

import pytest
from harness import comm
from test_hosts import daemon_pids
from test_migrate_faults import no_record
from test_reconnect import end_cluster

SHORT, LONG = 3, 300
SOURCE = ["migrate-before-rounds", "migrate-round", "migrate-after-rounds", "migrate-frozen", "migrate-before-state", "migrate-held", "migrate-before-commit", "migrate-committed", "migrate-runs", "migrate-withdrawn"]
TARGET = ["restore-made-objects", "restore-made-tree", "migrate-target-state", "restore-before-run", "migrate-target-held", "restore-adopted", "restore-let-go", "migrate-target-runs"]
PEER = ["reconnect-held", "reconnect-filled"]
CENTRAL = ["registry-before-commit", "registry-committed"]
COSTLY = ["migrate-held", "migrate-before-commit", "migrate-target-held", *CENTRAL]  # for `scip reconnect`: killed in the moment of the commit it loses its connections
KILLED = ["source coordinator", "target coordinator", "source scip", "target scip", "source pbeamd", "target pbeamd", "central pbeamd", "pbeamctl", "pump", "reconnect"]
NETWORK = [f"{how} {whom}" for how in ("cut", "sever", "drop") for whom in ("target", "source", "central")]
FATAL = {"source scip", "target scip"}  # the supervisor of the program itself: it may end with it
PAUSES = 5  # seconds that a link is cut, at least: longer than it takes a daemon to notice


def tracer(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/status").read_text().split("TracerPid:\t")[1].split("\n")[0])
    except OSError:
        return 0


def network(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


class World:
    """Three hosts; the program, born on b, and its peer on a, the central host."""

    def __init__(self, lab):
        self.lab = lab
        self.faults = {}
        self.jobs = []
        for host in lab.hosts:
            self.faults[host] = host.file("fault")
            host.env["PBEAM_FAULT"] = str(self.faults[host])
        lab.start()
        self.spaces = {network(host.space.pid): host for host in lab.hosts}

    # ---- who there is ----

    def here(self, host):
        """The processes on that host: {pid: command line}. They keep the environment of their birth."""
        found = {}
        for one in self.lab.hosts:
            found.update(one.processes())
        space = network(host.space.pid)
        return {pid: line for pid, line in found.items() if network(pid) == space}

    def programs(self, what):
        """The real pids of the program and their hosts, without stubs, which have no command line."""
        return [(pid, host) for host in self.lab.hosts for pid, line in self.here(host).items() if f"/stream {what} " in line and "scip run" not in line and "bash" not in line]

    def victims(self, kind, moving, source, target):
        """The processes to choose from."""
        a = self.lab.hosts[0]
        if kind == "pbeamctl":
            return [pid for pid, line in self.here(source).items() if line.startswith("pbeamctl migrate")]
        if kind.endswith("pbeamd"):
            return daemon_pids({"source": source, "target": target, "central": a}[kind.split()[0]])
        if kind == "source scip":
            return [tracer(pid) for pid, _ in self.programs("connect") if tracer(pid)]
        if kind == "target scip":
            return [pid for pid in self.here(target) if comm(pid) == "scip"]
        if kind.endswith("coordinator"):
            return [pid for pid in self.here(source if kind.startswith("source") else target) if comm(pid) == "scip-coordinate"]
        if kind == "pump":
            return [pid for host in (source, target) for pid in self.here(host) if "pbeam-channel" in comm(pid)]
        return [pid for host in self.lab.hosts for pid in self.here(host) if comm(pid) == "scip-reconnect"]

    # ---- the program ----

    def begin(self):
        a, b, _ = self.lab.hosts
        port = random.randrange(20000, 30000)
        self.jobs = []
        for host, what, how in ((a, "listen", "block"), (b, "connect", "edge")):
            env = {"GO": str(host.home / "go"), "ANY_NAME": "1"}
            words = ["scip", "run", "--name", what, "--", self.lab.stage.cluster / "stream", what, a.ip, port, f"how={how}", "pace=4000", "tell=1", *(["memory=24"] if what == "connect" else [])]
            self.jobs.append(host.start(words, f"{what}{port}", env=env))
        for job in self.jobs:
            job.wait_for("ready")
        self.at = b

    def ended(self):
        """The program or its peer has ended: removes what is left of both."""
        hosts = self.lab.hosts
        for name in ("connect", "listen"):
            hosts[0].ctl("kill", "-s", "KILL", name, check=False)
        for job in self.jobs:
            job.wait(30)
        hosts[0].wait_until(lambda: not self.programs("connect") and not self.programs("listen") and not hosts[0].vpids(), 30, "both to be gone everywhere")

    def told(self):
        return [job.text().count("at ") for job in self.jobs]

    def has_ended(self):
        """Waits until it is seen to have ended, or to go on."""
        before = self.told()
        self.lab.hosts[0].wait_until(lambda: any(job.process.poll() is not None for job in self.jobs) or all(now > then for now, then in zip(self.told(), before)), 40,
                                     "the program to end or to go on")
        return any(job.process.poll() is not None for job in self.jobs)

    def goes_on(self):
        before = self.told()

        def seen():
            for job in self.jobs:
                assert job.process.poll() is None, job.text()[-500:] + job.errors()
            return all(now > then + 2 for now, then in zip(self.told(), before))

        self.lab.hosts[0].wait_until(seen, 40, "the stream to go on")

    def is_up(self):
        """All daemons run and see each other."""
        for host in self.lab.hosts:
            host.mend()
            self.faults[host].write_text("")
            host.ctl("hosts")
        for host in self.lab.hosts:
            host.wait_until(lambda host=host: len(self.lab.up(host)) == 3, 30, "all hosts to be up")

    def in_one_place(self):
        a = self.lab.hosts[0]

        def only():
            found = self.programs("connect")
            return len(found) == 1 and found

        (_, self.at), = a.wait_until(only, 30, "it to be in one place")
        a.wait_until(lambda: [row["host"] for row in a.ps()["processes"] if "connect" in row["command"]] == [self.at.name], 20, "ps to know where it is")

    def nothing_left(self):
        """No process of the migration, no keeper without processes, no record, no socket of an ended process."""
        a = self.lab.hosts[0]

        def leftovers():
            found = []
            places = {a: {"listen"}, self.lab.hosts[1]: {"connect"}}
            places.setdefault(self.at, set()).add("connect")
            for host in self.lab.hosts:
                here = self.here(host)
                names = {pid: comm(pid) for pid in here}
                found += [f"{host.name}: {name} {here[pid]}" for pid, name in names.items() if name in ("scip-coordinate", "scip-reconnect") or here[pid].startswith("pbeamctl")]
                if list(names.values()).count("scip-keeper") > len(places.get(host, [])):
                    found.append(f"{host.name}: more keepers than jobs")
                for folder in ("job", "scip"):
                    found += [str(path) for path in (host.runtime / "pbeam" / folder).glob("*") if not os.path.exists(f"/proc/{path.name}")]
                found += [str(path) for path in host.top.rglob("*.tmp-*")]
            return found

        seen = []

        def clean():
            seen[:] = leftovers()
            return not seen

        try:
            a.wait_until(clean, 20, "nothing to be left over")
        except AssertionError:
            raise AssertionError("left over: " + "; ".join(seen)) from None
        no_record(a)


class Round:
    def __init__(self, world, generator, kinds):
        lab = world.lab
        self.world = world
        self.source = world.at
        self.target = generator.choice([host for host in lab.hosts if host is not world.at])
        self.what = generator.choice(kinds)
        places = [(self.source, SOURCE), (self.target, TARGET)]
        places.append((lab.hosts[0], CENTRAL))
        if lab.hosts[0] not in (self.source, self.target):
            places.append((lab.hosts[0], PEER))
        self.where, points = generator.choice(places)
        self.point = generator.choice(points)
        if self.what == "reconnect" and self.point in COSTLY:
            self.what = "pump"
        self.options = generator.choice([(), ("--bandwidth", "60000000")])  # so that a round takes its time
        self.chance = generator.random()

    def __repr__(self):
        return f"{self.source.name} -> {self.target.name}: {self.what} at {self.point}"

    def hurt(self, moving):
        """Kills at the fault point, or wherever the migration is if the point is not passed."""
        world = self.world
        word = world.faults[self.where]
        end = time.monotonic() + 8
        while time.monotonic() < end and word.read_text() != f"{self.point}:reached" and moving.process.poll() is None:
            time.sleep(0.005)
        if self.what in KILLED:
            pids = sorted(world.victims(self.what, moving, self.source, self.target))
            if pids:
                try:
                    os.kill(pids[int(self.chance * len(pids))], signal.SIGKILL)
                except ProcessLookupError:
                    pass
        elif self.what in NETWORK:
            how, whom = self.what.split()
            host = {"source": self.source, "target": self.target, "central": world.lab.hosts[0]}[whom]
            host.drop(30 if how == "drop" else 100)
        word.write_text("")

    def outlast(self, moving):
        """How long the network is down: some seconds, or until the migration has ended or cannot."""
        end = time.monotonic() + PAUSES * (1 + self.chance)
        if self.what.startswith("sever"):
            end = time.monotonic() + 60
        while time.monotonic() < end and not (self.what.startswith("sever") and (moving.process.poll() is not None or "known to the central host alone" in moving.errors())):
            time.sleep(0.1)

    def limit(self, memory):
        """Limits the memory of what the target's daemon starts from now on."""
        for pid in daemon_pids(self.target):
            self.target.run(["prlimit", "--pid", pid, f"--as={memory}:"])

    def run(self):
        world = self.world
        world.faults[self.where].write_text(f"{self.point}:sleep")
        if self.what == "no memory":
            self.limit(f"{int(self.chance * 64 + 8) << 20}")
        moving = self.source.start(["pbeamctl", "migrate", *self.options, "connect", self.target.name], "moving")
        self.hurt(moving)
        if self.what in NETWORK:
            self.outlast(moving)
        if self.what == "no memory":
            moving.wait(60)
            self.limit("unlimited")
        world.is_up()
        status = moving.wait(60)
        assert status in (0, 1, 128 + signal.SIGKILL), moving.errors()
        return status

    def check(self, status):
        world = self.world
        if self.what in FATAL and world.has_ended():
            world.ended()
            world.begin()
            return
        world.in_one_place()
        world.goes_on()
        if self.what not in ("pbeamctl",) and status == 0:
            assert world.at is self.target
        world.nothing_left()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_random(make_lab, long):
    rounds = int(os.environ.get("PBEAM_FAULT_ROUNDS", LONG if long else SHORT))
    seed = int(os.environ.get("PBEAM_FAULT_SEED", time.time_ns() % 1000000 if long else 11))
    print(f"PBEAM_FAULT_SEED={seed}")
    generator = random.Random(seed)
    kinds = KILLED + ["no memory"] + (NETWORK if rounds > SHORT else [])  # these take their time
    world = World(make_lab(3))
    world.begin()
    for n in range(rounds):
        one = Round(world, generator, kinds)
        print(n, one, end=": ", flush=True)
        began = time.monotonic()
        status = one.run()
        one.check(status)
        print(f"{status}, at {world.at.name}, {time.monotonic() - began:.1f} s", flush=True)
    end_cluster(world.lab, world.jobs)
