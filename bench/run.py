#!/usr/bin/env python3
"""Measures costs against native execution and peers, all in one run.

  bench/run.py [--quick] [--only run,save,move,loop,scale] [--sizes 8,64,...] [--dir DIR] [--pin CPU] [--out DIR] [--publish]

The groups. "run": one operation natively, under scip as born, restored, behind an empty seccomp filter, and under the peers that are on
PATH (strace with a seccomp filter, proot): running.py. "save": checkpoint and restore of
memory, threads and processes; `dd` of as many bytes to the same place; criu and dmtcp where they are on PATH. "move": traffic between hosts before, between and after
migrations, and the migrations, beside iperf3. "loop": an event in
an event loop (event_loop.c). "scale": pause and restore against the number of processes, threads, mappings, descriptors and jobs
(scaling.py). Results go to OUT/results.json, OUT/results.md and OUT/results.png; bench/README.md says how to read them.
"""
import argparse
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import harness  # noqa: E402
import moving  # noqa: E402
import report  # noqa: E402
import running  # noqa: E402
import saving  # noqa: E402
import scaling  # noqa: E402


def build_programs(stage):
    """bench/programs/*.c, compiled where the ordinary user can execute them."""
    target = stage.top / "bench"
    target.mkdir()
    for source in sorted((ROOT / "bench" / "programs").glob("*.c")):
        subprocess.run(["cc", "-O2", "-D_GNU_SOURCE", "-pthread", source, "-o", target / source.stem], check=True)
    return target


def measure_loops(top):
    """{way: nanoseconds of processor time for one event}."""
    program = top / "event_loop"
    subprocess.run(["cc", "-O2", ROOT / "bench" / "event_loop.c", "-o", program, "-levent_core"], check=True)
    return {way: float(ns) for way, ns in (line.split() for line in subprocess.check_output([program], text=True).splitlines())}


def measure_scale(stage, programs, options):
    """On a host of its own, whose runtime directory is in memory, as a login's is."""
    tempfile.tempdir = "/dev/shm"
    host = harness.Host(stage, harness.ordinary_user())
    kinds = options.kinds.split(",") if options.kinds else [*scaling.MOST, "jobs"]
    part = 10 if options.quick else 1
    try:
        rows = scaling.measure(host, programs, pathlib.Path(options.dir), [kind for kind in kinds if kind != "jobs"], part)
        return rows + ([scaling.measure_jobs(host, scaling.JOBS // part)] if "jobs" in kinds else [])
    finally:
        host.close(strict=False)
        tempfile.tempdir = None


def publish(text, picture):
    """Puts the tables into bench/RESULTS.md, between its two marks."""
    path = ROOT / "bench" / "RESULTS.md"
    before, rest = path.read_text().split("<!-- tables -->\n", 1)
    after = rest.split("<!-- end of tables -->\n", 1)[1]
    if picture.exists():
        shutil.copy(picture, path.parent / "results.png")
        text += "\n![costs beside native, and saving beside dd](results.png)\n"
    path.write_text(f"{before}<!-- tables -->\n{text}<!-- end of tables -->\n{after}")


def earlier(out):
    """Figures of an earlier run today: parts that are not measured now keep theirs."""
    try:
        results = json.loads((out / "results.json").read_text())
    except (OSError, ValueError):
        return {}
    return results if results.get("date") == time.strftime("%Y-%m-%d") else {}


def keep(out, results):
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, small sizes")
    parser.add_argument("--only", default="run,save,move,loop,scale", help="run, save, move, loop, scale: some or all of them")
    parser.add_argument("--kinds", help="of scale: some of processes, threads, mappings, pipes, ..., jobs (scaling.py)")
    parser.add_argument("--sizes", help="MiB of memory to save (8,64,256,1024,4096; with --quick 8,64)")
    parser.add_argument("--dir", default="/dev/shm", help="where images and dd's file go")
    parser.add_argument("--out", default=str(ROOT / "build" / "bench"))
    parser.add_argument("--publish", action="store_true", help="put the tables into bench/RESULTS.md too, the picture beside it")
    parser.add_argument("--pin", type=int, help="the one processor that everything of \"run\" is to use")
    options = parser.parse_args()
    rounds = 1 if options.quick else 3
    sizes = options.sizes or ("8,64" if options.quick else "8,64,256,1024,4096")
    sizes = [int(size) for size in sizes.split(",")]
    out = pathlib.Path(options.out)
    results = earlier(out)
    results.update({"machine": platform.uname()._asdict(), "cpus": os.cpu_count(), "date": time.strftime("%Y-%m-%d"), "dir": options.dir})
    harness.become_subreaper()
    stage = harness.Stage()
    programs = build_programs(stage)
    host = harness.Host(stage, harness.ordinary_user())
    try:
        if "run" in options.only:
            processors = os.sched_getaffinity(0)
            if options.pin is not None:
                os.sched_setaffinity(0, {options.pin})
            results["run"], results["ratio"] = running.measure(host, programs, 1 if options.quick else 5)
            make, ratios = running.measure_make(host, 1 if options.quick else 3)
            results["run"]["make"], results["ratio"]["make"] = make, ratios
            os.sched_setaffinity(0, processors)
            keep(out, results)
        if "save" in options.only:
            results["save"] = saving.measure(host, programs, pathlib.Path(options.dir), sizes, rounds)
            keep(out, results)
        if "loop" in options.only:
            results["loop"] = measure_loops(stage.top)
            keep(out, results)
        if "scale" in options.only:
            results["scale"] = measure_scale(stage, programs, options)
            keep(out, results)
        if "move" in options.only:
            results["move"] = moving.measure(stage, programs, [size for size in sizes if size <= 1024], rounds)
    finally:
        host.close(strict=False)
        stage.close()
    keep(out, results)
    text = report.table(results)
    (out / "results.md").write_text(text)
    print(text)
    report.plot(results, out / "results.png")
    if options.publish:
        publish(text, out / "results.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
