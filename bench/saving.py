"""Checkpoint and restore: total time, pause and size, beside dd and, where they are on PATH, criu and dmtcp."""
import json
import mmap
import os
import pathlib
import shutil
import statistics
import struct
import subprocess
import sys
import time

WORD = struct.Struct("<Q")


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
    """Every process of the name space is killed, and gone."""
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


def measure_scip(host, programs, target, kind, amount, rounds):
    beat = Beat(host, f"beat-{kind}-{amount}")
    vpid, _ = host.detach(programs / "hold", beat.path, kind, amount)
    beat.wait_after(0)
    mib = amount if kind == "memory" else 0
    try:
        one_cycle(host, beat, target, vpid, mib, True)
        row = sample(lambda turn: one_cycle(host, beat, target, vpid, mib, False), rounds)
    finally:
        end_all(host)
    return row


def measure_criu(host, programs, target, kind, amount, rounds):
    """As root, as criu wants it; the same program, the same place."""
    def cycle(turn):
        folder = target / "criu"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        beat = Beat(host, f"criu-{kind}-{amount}")
        with subprocess.Popen([programs / "hold", beat.path, kind, str(amount)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, start_new_session=True) as program:
            beat.wait_after(0)
            start = time.monotonic()
            subprocess.run(["criu", "dump", "-t", str(program.pid), "-D", folder, "-v0"], check=True, capture_output=True)
            row = {"checkpoint_s": time.monotonic() - start}
        stats = subprocess.run(["crit", "decode", "-i", folder / "stats-dump"], capture_output=True, text=True)
        row["pause_s"] = json.loads(stats.stdout)["entries"][0]["dump"]["frozen_time"] / 1e6 if stats.returncode == 0 else 0
        row["image_bytes"] = sum(path.stat().st_size for path in folder.iterdir())
        since = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        subprocess.run(["criu", "restore", "-D", folder, "-d", "-v0"], check=True, capture_output=True)
        row["restore_s"] = (beat.wait_after(since) - since) / 1e9
        os.killpg(program.pid, 9)
        shutil.rmtree(folder, ignore_errors=True)
        return row

    return sample(cycle, min(rounds, 3))


def measure(host, programs, place, sizes, rounds):
    target = pathlib.Path(place) / f"pbeam-bench-{os.getpid()}"
    target.mkdir()
    host.own(target)
    plan = [("memory", size) for size in sizes] + [("threads", 100), ("processes", 100)]
    rows = []
    try:
        for kind, amount in plan:
            few = 3 if kind == "memory" and amount >= 1024 else rounds
            for name, run in (("scip", measure_scip), ("criu", measure_criu)):
                if name == "criu" and (not shutil.which("criu") or os.getuid() != 0):
                    continue
                try:
                    row = run(host, programs, target, kind, amount, few)
                except (AssertionError, OSError, subprocess.SubprocessError) as problem:
                    print(f"bench: {name}, {amount} {kind}: {problem}", file=sys.stderr)
                    continue
                rows.append({"by": name, "kind": kind, "amount": amount, **row})
                print(f"bench: {name}, {amount} {kind}: {row}", file=sys.stderr)
    finally:
        shutil.rmtree(target, ignore_errors=True)
    return rows
