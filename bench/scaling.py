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
JOBS_MIB = 1024


def _cycle(host, programs, target, kind, n):
    beat = saving.Beat(host, f"beat-{kind}-{n}")
    vpid, out = host.detach(programs / "many", beat.path, kind, n)
    row = {"kind": kind, "n": n}
    try:
        beat.wait_after(0, 300)
        row |= {key: value for key, value in saving.one_cycle(host, beat, target, vpid, 0, False).items() if key in ("pause_s", "checkpoint_s", "restore_s")}
    except AssertionError as problem:
        row["failed"] = (out.read_text() + str(problem)).strip().splitlines()[-1][:120]
    finally:
        saving.end_all(host)
        for path in host.home.glob("many-*"):
            path.unlink()
    return row


def measure(host, programs, place, kinds, part):
    target = pathlib.Path(place) / f"pbeam-scale-{os.getpid()}"
    target.mkdir()
    host.own(target)
    rows = []
    try:
        for kind in kinds or MOST:
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
    row = {"n": n, "start_s": time.monotonic() - start}
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
        saving.end_all(host)
    return row
