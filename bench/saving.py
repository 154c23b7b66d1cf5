"""Checkpoint and restore: total time, pause and size, beside dd and, where they are on PATH, criu and dmtcp."""
import json
import mmap
import os
import pathlib
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import time

import harness

WORD = struct.Struct("<Q")
PEER_S = 60  # for one command of another program


class Beat:
    """The page that bench/programs/hold.c writes the time into."""

    def __init__(self, host, name):
        self.path = host.file(name, b"\0" * 4096)
        with open(self.path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 4096)

    def word(self, index):
        return WORD.unpack_from(self.map, index * 8)[0]

    def put(self, index, value):
        WORD.pack_into(self.map, index * 8, value)

    def wait_after(self, since, timeout=120):
        """The first time the program was seen to run after `since`, ns."""
        end = time.monotonic() + timeout
        while self.word(0) <= since:
            if time.monotonic() > end:
                raise AssertionError("the program does not run")
            time.sleep(0.0002)
        return self.word(0)

    def check(self):
        """True if the program finds all its memory as it filled it."""
        self.put(2, self.word(2) + 1)
        end = time.monotonic() + 120
        while self.word(3) != self.word(2):
            if time.monotonic() > end:
                return False
            time.sleep(0.001)
        return self.word(4) == 0


def sample(run, rounds):
    """Medians of the figures that `run` returns, round by round."""
    rows = [run(turn) for turn in range(rounds)]
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def dd(host, target, mib, sync):
    path = target / "dd.out"
    argv = ["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={mib}", "status=none"] + (["conv=fsync"] if sync else [])
    start = time.monotonic()
    host.run(argv, timeout=600)
    took = time.monotonic() - start
    path.unlink()
    return took


def end_all(host):
    """Kills every process of the name space and waits until all are gone."""
    for vpid in host.vpids():
        host.run(["pbeamctl", "kill", "-s", "KILL", vpid], check=False)
    host.wait_until(lambda: not host.vpids(), 20, "the end of the program")


def one_cycle(host, beat, target, vpid, mib, check):
    """One checkpoint of the running program, and one restore of it after it was killed."""
    image = target / "bench.ckpt"
    beat.put(1, 0)
    start = time.monotonic()
    host.ctl("checkpoint", "-o", image, vpid, timeout=600)
    row = {"checkpoint_s": time.monotonic() - start}
    beat.wait_after(time.clock_gettime_ns(time.CLOCK_MONOTONIC))
    row["pause_s"] = beat.word(1) / 1e9
    row["image_bytes"] = image.stat().st_size
    row["dd_s"] = dd(host, target, mib, False) if mib else 0
    end_all(host)
    start = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    host.run(["scip", "restore", "-d", image], timeout=600)
    row["restore_s"] = (beat.wait_after(start) - start) / 1e9
    row["restore_command_s"] = (time.clock_gettime_ns(time.CLOCK_MONOTONIC) - start) / 1e9
    if check and not beat.check():
        print("bench: the restored memory is not as it was", file=sys.stderr)
        row["bad"] = 1
    image.unlink()
    return row


def total_pss(host):
    """Bytes of all supervised programs, a shared page counted once."""
    total = 0
    for pid in host.pids_of("hold"):
        text = pathlib.Path("/proc", str(pid), "smaps_rollup").read_text()
        total += int(text.split("\nPss:", 1)[1].split()[0]) * 1024
    return total


def measure_scip(host, programs, target, kind, amount, rounds):
    beat = Beat(host, f"beat-{kind}-{amount}")
    vpid, _ = host.detach(programs / "hold", beat.path, kind, amount)
    beat.wait_after(0)
    mib = amount if kind == "memory" else 0
    try:
        if kind == "shared":
            host.wait_until(lambda: len(host.pids_of("hold")) == 101, 20, "the processes")
        before = total_pss(host)
        one_cycle(host, beat, target, vpid, mib, True)
        row = sample(lambda turn: one_cycle(host, beat, target, vpid, mib, False), rounds)
        row |= {"pss_before": before, "pss_after": total_pss(host)}
    finally:
        end_all(host)
    return row


def peer(argv):
    """One command of another program, as root, within PEER_S."""
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=PEER_S)


def users_of(path):
    """The pids of all other processes that map the file."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                if str(path) in pathlib.Path("/proc", entry, "maps").read_text():
                    found.append(int(entry))
            except OSError:
                pass
    return found


def end_peer(beat, *jobs):
    """Kills a peer's programs and waits until all are gone."""
    for pid in users_of(beat.path):
        os.kill(pid, signal.SIGKILL)
    for job in jobs:
        if job and job.poll() is None:
            job.kill()
        if job:
            job.wait(PEER_S)
    deadline = time.monotonic() + PEER_S
    while users_of(beat.path) and time.monotonic() < deadline:
        time.sleep(0.01)


def hold(programs, beat, kind, amount, wrapper=()):
    return subprocess.Popen([*wrapper, programs / "hold", beat.path, kind, str(amount)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL, start_new_session=True)


def cycle_criu(host, programs, folder, kind, amount):
    """As root, which criu needs; the same program, the same directory."""
    beat = Beat(host, f"criu-{kind}-{amount}")
    program = hold(programs, beat, kind, amount)
    try:
        beat.wait_after(0)
        start = time.monotonic()
        peer(["criu", "dump", "-t", str(program.pid), "-D", folder, "-v1"])
        row = {"checkpoint_s": time.monotonic() - start}
        program.wait(PEER_S)
        stats = subprocess.run(["crit", "decode", "-i", folder / "stats-dump"], capture_output=True, text=True, timeout=PEER_S) if shutil.which("crit") else None
        row["pause_s"] = json.loads(stats.stdout)["entries"][0]["dump"]["frozen_time"] / 1e6 if stats and stats.returncode == 0 else 0
        row["image_bytes"] = sum(path.stat().st_size for path in folder.iterdir())
        since = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        peer(["criu", "restore", "-D", folder, "-d", "-v1"])
        row["restore_s"] = (beat.wait_after(since, PEER_S) - since) / 1e9
    finally:
        end_peer(beat, program)
    return row


def cycle_dmtcp(host, programs, folder, kind, amount):
    """A coordinator of its own for each cycle; its images are not compressed, as ours are not."""
    beat = Beat(host, f"dmtcp-{kind}-{amount}")
    port = str(20000 + os.getpid() % 20000)
    peer(["dmtcp_coordinator", "--daemon", "-p", port, "--ckptdir", folder])
    program = hold(programs, beat, kind, amount, ["dmtcp_launch", "-q", "-p", port, "--join-coordinator", "--no-gzip", "--ckptdir", folder])
    restarted = None
    try:
        beat.wait_after(0, PEER_S)
        beat.put(1, 0)
        start = time.monotonic()
        peer(["dmtcp_command", "-p", port, "-bc"])
        row = {"checkpoint_s": time.monotonic() - start}
        beat.wait_after(time.clock_gettime_ns(time.CLOCK_MONOTONIC), PEER_S)
        row["pause_s"] = beat.word(1) / 1e9
        images = sorted(folder.glob("*.dmtcp"))
        row["image_bytes"] = sum(path.stat().st_size for path in images)
        peer(["dmtcp_command", "-p", port, "-k"])
        program.wait(PEER_S)
        since = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        restarted = subprocess.Popen(["dmtcp_restart", "-q", "-p", port, "--join-coordinator", *images], stdin=subprocess.DEVNULL,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        row["restore_s"] = (beat.wait_after(since, PEER_S) - since) / 1e9
    finally:
        subprocess.run(["dmtcp_command", "-p", port, "-q"], capture_output=True, timeout=PEER_S)
        end_peer(beat, program, restarted)
    return row


def measure_peer(cycle):
    def measured(host, programs, target, kind, amount, rounds):
        def once(turn):
            folder = target / "peer"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            try:
                return cycle(host, programs, folder, kind, amount)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

        return sample(once, min(rounds, 3))

    return measured


def ways():
    """The programs that can save on this machine. Failures and time-outs of a peer are in its row."""
    found = {"scip": measure_scip}
    if shutil.which("criu") and os.getuid() == 0:
        found["criu"] = measure_peer(cycle_criu)
    if shutil.which("dmtcp_launch"):
        found["dmtcp"] = measure_peer(cycle_dmtcp)
    return found


def why(problem):
    if isinstance(problem, subprocess.TimeoutExpired):
        return f"{pathlib.Path(problem.cmd[0]).name} not done within {problem.timeout:.0f} s"
    if isinstance(problem, subprocess.CalledProcessError):
        told = [line.split("): ", 1)[-1] for line in problem.stderr.splitlines() if "rror" in line and "exited, status" not in line]
        return f"{' '.join(str(word) for word in problem.cmd[:2])} fails: {told[0] if told else problem.returncode}"
    return str(problem).splitlines()[0][:80]


def measure(host, programs, place, sizes, rounds):
    target = pathlib.Path(place) / f"pbeam-bench-{os.getpid()}"
    target.mkdir()
    host.own(target)
    plan = [("memory", size) for size in sizes] + [("threads", 100), ("processes", 100), ("shared", 64)]
    rows = []
    try:
        for kind, amount in plan:
            few = 3 if kind == "memory" and amount >= 1024 else rounds
            for name, run in ways().items():
                try:
                    row = run(host, programs, target, kind, amount, few)
                except (AssertionError, OSError, subprocess.SubprocessError) as problem:
                    row = {"failed": why(problem)}
                rows.append({"by": name, "kind": kind, "amount": amount, **row})
                print(f"bench: {name}, {amount} {kind}: {row}", file=sys.stderr)
    finally:
        shutil.rmtree(target, ignore_errors=True)
    return rows
