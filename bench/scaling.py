"""Time against n: pause and restore of a job with n processes, threads, mappings, or descriptors of one kind; and jobs."""
import os
import pathlib
import shutil
import sys
import time

import saving

# The most of each; a fourth and a half of it are measured too. Descriptors: within the usual limit of this machine.
DESCRIPTORS = ("pipes", "pipe-pairs", "unix", "tcp", "udp", "eventfds", "timerfds", "signalfds", "epolls", "watched", "files", "opens", "unlinked", "memfds")
MOST = {"processes": 2000, "threads": 4000, "mappings": 30000, **{kind: 19000 for kind in DESCRIPTORS}}
BARS = {("processes", 2000): (1.5, 3.0), ("pipes", 19000): (0.6, None)}
JOBS, JOBS_MIB = 1000, 1024


def _save_and_restore(host, beat, image, vpid):
    """The program is ended by a second checkpoint, which leaves no port in TIME_WAIT."""
    beat.put(1, 0)
    start = time.monotonic()
    host.ctl("checkpoint", "-o", image, vpid, timeout=600)
    row = {"checkpoint_s": time.monotonic() - start}
    beat.wait_after(time.clock_gettime_ns(time.CLOCK_MONOTONIC))
    row["pause_s"] = beat.word(1) / 1e9
    host.ctl("checkpoint", "--kill", "-o", image, vpid, timeout=600)
    host.wait_until(lambda: not host.vpids(), 60, "the end of the program")
    start = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    host.run(["scip", "restore", "-d", image], timeout=600)
    row["restore_s"] = (beat.wait_after(start) - start) / 1e9
    return row


def _cycle(host, programs, target, kind, n):
    beat = saving.Beat(host, f"beat-{kind}-{n}")
    vpid, out = host.detach(programs / "many", beat.path, kind, n)
    row = {"kind": kind, "n": n}
    try:
        beat.wait_after(0, 300)
        time.sleep(0.5)
        row |= _save_and_restore(host, beat, target / "scale.ckpt", vpid)
    except AssertionError as problem:
        row["failed"] = (out.read_text() + str(problem)).strip().splitlines()[-1][:120]
    finally:
        host.kill_programs()
        host.wait_until(lambda: not host.vpids(), 60, "the end of the program")
        for path in host.home.glob("many-*"):
            path.unlink()
    return row


def measure(host, programs, place, kinds, part):
    target = pathlib.Path(place) / f"pbeam-scale-{os.getpid()}"
    target.mkdir()
    host.own(target)
    rows = []
    try:
        for kind in kinds:
            for divisor in (4, 2, 1):
                row = _cycle(host, programs, target, kind, MOST[kind] // part // divisor)
                rows.append(row)
                print(f"bench: {row}", file=sys.stderr)
    finally:
        shutil.rmtree(target, ignore_errors=True)
    return rows


def _switches(pids):
    """Context switches so far of all threads of these processes."""
    total = 0
    for pid in pids:
        for path in pathlib.Path("/proc", str(pid), "task").glob("*/status"):
            total += sum(int(line.split()[1]) for line in path.read_text().splitlines() if "ctxt_switches" in line)
    return total


def measure_jobs(host, n):
    """n idle jobs: memory (Pss) and context switches of everything that is not the jobs' programs."""
    start = time.monotonic()
    for _ in range(n):
        host.run(["scip", "run", "-d", "--", "sleep", "100000"])
    row = {"kind": "jobs", "n": n, "start_s": time.monotonic() - start}
    try:
        time.sleep(3)
        ours = [pid for pid in host.processes() if saving.harness.comm(pid) != "sleep"]
        row["processes"] = len(ours)
        pss = [pathlib.Path("/proc", str(pid), "smaps_rollup").read_text().split("\nPss:", 1)[1].split()[0] for pid in ours]
        row["pss_bytes"] = sum(map(int, pss)) * 1024
        daemons = {pid for pid in ours if saving.harness.comm(pid) == "pbeamd"}
        before, daemon_before = _switches(set(ours) - daemons), _switches(daemons)
        time.sleep(10)
        row["switches"] = _switches(set(ours) - daemons) - before
        row["daemon_switches"] = _switches(daemons) - daemon_before
    finally:
        host.kill_programs()
        host.wait_until(lambda: not host.named("scip-keeper"), 120, "the end of the jobs")
    return row
