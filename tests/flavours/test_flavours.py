"""
Real programs through five cycles of checkpoint, kill -9 and rollback, as an ordinary user, contents checked.

One table (FLAVOURS), one runner. A flavour's program works until the file "go" is there (or to its own end), then checks
itself and says "result ok", or leaves a result that is compared with that of an undisturbed run. Each is first proved natively.
"""
import dataclasses
import hashlib
import pathlib
import shutil
import sys
import time
import typing

import builder
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import inputs  # noqa: E402

CYCLES = 5


@dataclasses.dataclass
class Flavour:
    name: str
    argv: typing.List[str]              # "OUT/..." is the directory of built programs
    needs: typing.List[str] = dataclasses.field(default_factory=list)  # built or copied to OUT
    commands: typing.List[str] = dataclasses.field(default_factory=list)  # that must be on the machine
    prepare: typing.Callable = None     # (host) before the start
    result: typing.Callable = None      # (host) after the end: compared with the native run's. None: "result ok" in the output
    work: float = 0.3                   # seconds of work between the cycles
    size: str = ""                      # what "tick" output the program has: "" none is waited for
    at_once: bool = False               # killed by the checkpoint itself: it makes and removes files that it has not open
    timeout: int = 150


def ticking(name, argv, needs, **more):
    return Flavour(name, argv, needs, size="tick", **more)


def digest(*names):
    """The digests of files in the home directory, as a result."""

    def take(host):
        return [hashlib.sha256((host.home / name).read_bytes()).hexdigest() for name in names]

    return take


FLAVOURS = [
    *[ticking(name, [f"OUT/{name}"], [name])
      for name in ("c-dynamic", "c-static", "c-static-pie", "musl-static", "musl-dynamic", "go-pure", "go-cgo", "rust", "threads", "musl-threads")],
    ticking("processes", ["OUT/tree", "1000"], ["tree"], timeout=300),
    ticking("bash", ["OUT/forks.sh"], ["forks.sh"]),
    ticking("numpy", ["/usr/bin/python3", "OUT/numpy_blas.py"], ["numpy_blas.py"]),
    ticking("node", ["node", "OUT/work.js"], ["work.js"], commands=["node"]),
    ticking("java", ["java", "-Xmx256m", "-XX:+UseParallelGC", "-cp", "OUT", "Work"], ["Work.class"], commands=["java"]),
    ticking("java-g1", ["java", "-Xmx256m", "-XX:+UseG1GC", "-cp", "OUT", "Work"], ["Work.class"], commands=["java"]),
    ticking("redis", ["sh", "redis.sh"], [], commands=["redis-server", "redis-cli"], prepare=inputs.redis),
    Flavour("pipeline", ["bash", "-c", "seq 1 20000000 | gzip -6 | tee packed | gunzip | tee >(wc -l >count) | sha256sum >sum; wait; sleep 0.3"],
            result=digest("packed", "count", "sum")),
    Flavour("make", ["make", "-j2", "-C", "project"], prepare=inputs.project, result=inputs.project_result, commands=["make", "gcc"], at_once=True),
    Flavour("openssl", ["openssl", "speed", "-seconds", "1", "-bytes", "16384", "sha256", "sha512", "aes-128-cbc", "md5"],
            commands=["openssl"], result=inputs.openssl_result),
    Flavour("xz", ["xz", "-k", "-1", "-T2", "big"], prepare=inputs.big_file, result=digest("big.xz"), commands=["xz"], timeout=400),
    Flavour("ffmpeg", ["ffmpeg", "-nostdin", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "yuv420p", "-s", "640x360", "-r", "25", "-i", "big",
                       "-c:v", "mpeg4", "-b:v", "2M", "-threads", "2", "-fflags", "+bitexact", "-flags", "+bitexact", "-y", "big.avi"],
            prepare=inputs.big_file, result=digest("big.avi"), commands=["ffmpeg"], timeout=400),
]


def parameters():
    return [pytest.param(one, id=one.name, marks=pytest.mark.timeout(one.timeout)) for one in FLAVOURS]


@pytest.fixture(scope="session")
def native_results():
    return {}


def ready(flavour, stage):
    """Builds and copies its inputs. Returns its argv."""
    for command in flavour.commands:
        assert shutil.which(command), f"{command} is not installed (tools/packages.txt)"
    for target in flavour.needs:
        if target in builder.BUILDS:
            builder.build(target, stage.build)
        builder.copy(target, stage)
    return [word.replace("OUT", str(stage.flavours)) for word in flavour.argv]


def natively(flavour, host, argv):
    """Runs it undisturbed; returns its result and the seconds from its first tick."""
    job = host.start(argv, "native")
    if flavour.size:
        job.wait_for(flavour.size, 60)
        host.file("go")
    began = time.monotonic()
    status = job.wait(flavour.timeout)
    assert status == 0, f"exit {status}: {job.text()[-2000:]}{job.errors()[-2000:]}"
    return outcome(flavour, host, job.text()), time.monotonic() - began


def outcome(flavour, host, text):
    return flavour.result(host) if flavour.result else [line for line in text.splitlines() if line.startswith("result")]


@pytest.mark.parametrize("flavour", parameters())
def test_native(host, stage, native_results, flavour):
    argv = ready(flavour, stage)
    if flavour.prepare:
        flavour.prepare(host)
    native_results[flavour.name] = natively(flavour, host, argv)
    assert flavour.result or native_results[flavour.name][0] == ["result ok"]


class Detached:
    """The program as a job, its exit status in a file: killed and rolled back it has no console."""

    def __init__(self, host, argv):
        self.host = host
        self.status = host.home / "status"
        self.vpid, self.out = host.detach("sh", "-c", '"$@"; echo $? >status', "sh", *argv, name="flavour")

    def text(self):
        return self.out.read_text(errors="replace")

    def ended(self):
        return self.status.exists() and self.status.read_text()

    def cycle(self, flavour, work):
        ticks = flavour.size
        time.sleep(work)
        before = self.text().count(ticks) if ticks else 0
        assert not self.ended(), f"ended before it was to be checkpointed: {self.text()[-2000:]}"
        self.host.checkpoint("flavour", *(["--kill"] if flavour.at_once else []), timeout=100)
        self.host.kill_programs()
        self.host.rollback("flavour", timeout=100)
        if ticks:
            self.host.wait_until(lambda: self.ended() or self.text().count(ticks) > before, 30, "the program to go on")


@pytest.mark.parametrize("flavour", parameters())
def test_five_cycles(host, stage, native_results, flavour):
    argv = ready(flavour, stage)
    if flavour.prepare:
        flavour.prepare(host)
    if flavour.result and flavour.name not in native_results:
        native_results[flavour.name] = natively(flavour, host, argv)
        if flavour.prepare:
            flavour.prepare(host)
    job = Detached(host, argv)
    if flavour.size:
        host.wait_until(lambda: flavour.size in job.text(), 60, "the program to work")
    work = flavour.work
    if flavour.result:  # it ends by itself: a quarter of its work is done in the cycles, for it may have been slower when it was measured
        work = min(work, native_results[flavour.name][1] / CYCLES / 4)
    for _ in range(CYCLES):
        job.cycle(flavour, work)
    host.file("go")
    host.wait_until(job.ended, flavour.timeout - 30, "the program to end")
    assert job.ended() == "0\n", job.text()[-2000:]
    expected = native_results[flavour.name][0] if flavour.result else ["result ok"]
    assert outcome(flavour, host, job.text()) == expected, job.text()[-2000:]
