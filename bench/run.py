#!/usr/bin/env python3
"""What it costs, beside native and beside its peers, all in one run.

  bench/run.py [--quick] [--only run,save] [--sizes 8,64,...] [--dir DIR] [--out DIR]

Two groups. "run": one operation natively, under scip as born, restored, and under the peers that are on PATH (strace with a
seccomp filter, proot); rounds are interleaved, the figure is the median of the rounds' medians. "save": checkpoint and restore of
memory, threads and processes; `dd` of as many bytes to the same place; criu and dmtcp where they are on PATH. Results go to OUT/results.json,
OUT/results.md and OUT/results.png; bench/README.md says how to read them.
"""
import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import harness  # noqa: E402
import report  # noqa: E402
import saving  # noqa: E402

OPERATIONS = ["getpid", "getppid", "open+close", "read", "fork+wait", "fork+exec+wait", "pthread", "compute", "pipe", "tcp", "udp"]
STRACE = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=kill", "-o", "/dev/null"]


def parse_micro(text):
    return {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if len(line.split()) == 2}


def run_native(host, micro):
    return parse_micro(host.run([micro, *OPERATIONS], timeout=600).stdout)


def run_scip(host, micro):
    return parse_micro(host.run(["scip", "run", "--", micro, *OPERATIONS], timeout=600).stdout)


def run_restored(host, micro):
    """The same program, saved before it begins, killed, rolled back, and only then let go."""
    go = host.home / "go"
    go.unlink(missing_ok=True)
    vpid, out = host.detach(micro, "--after", go, *OPERATIONS)
    host.ctl("checkpoint", "--kill", vpid)
    host.ctl("rollback", vpid)
    host.file("go")
    host.wait_until(lambda: len(parse_micro(out.read_text())) == len(OPERATIONS), 600, "the restored program's figures")
    return parse_micro(out.read_text())


def run_wrapped(*wrapper):
    return lambda host, micro: parse_micro(host.run([*wrapper, micro, *OPERATIONS], timeout=600).stdout)


def ways():
    """Every way to run a program that this machine has, by name."""
    found = {"native": run_native, "scip": run_scip, "restored": run_restored}
    if shutil.which("strace"):
        found["strace"] = run_wrapped(*STRACE)
    if shutil.which("proot"):
        found["proot"] = run_wrapped("proot")
    if shutil.which("dmtcp_launch"):
        found["dmtcp"] = run_wrapped("dmtcp_launch", "--quiet", "--new-coordinator")
    return found


def measure_running(host, programs, rounds):
    micro = programs / "micro"
    samples = {}
    for turn in range(rounds):
        for name, run in ways().items():
            try:
                figures = run(host, micro)
            except (AssertionError, OSError) as problem:
                print(f"bench: {name}: {problem}", file=sys.stderr)
                continue
            for operation, ns in figures.items():
                samples.setdefault(operation, {}).setdefault(name, []).append(ns)
        print(f"bench: round {turn + 1} of {rounds} done", file=sys.stderr)
    return {operation: {name: statistics.median(values) for name, values in rows.items()} for operation, rows in samples.items()}


def measure_make(host, rounds):
    """A real build: the C files of base/, compiled one by one by make."""
    tree = host.home / "make"
    tree.mkdir(exist_ok=True)
    host.own(tree)
    for folder in ("base",):
        shutil.copytree(ROOT / folder, tree / folder, dirs_exist_ok=True)
    stems = sorted(path.stem for path in (tree / "base").glob("*.c"))
    rules = ["all: " + " ".join(f"{stem}.o" for stem in stems)]
    rules += [f"{stem}.o: base/{stem}.c\n\tcc -O2 -D_GNU_SOURCE -I. -c base/{stem}.c -o $@" for stem in stems]
    (tree / "Makefile").write_text("\n".join(rules) + "\n")
    commands = {"native": [], "scip": ["scip", "run", "--"]}
    if shutil.which("strace"):
        commands["strace"] = STRACE
    if shutil.which("proot"):
        commands["proot"] = ["proot"]
    samples = {}
    for _ in range(rounds):
        for name, wrapper in commands.items():
            start = time.monotonic()
            host.run([*wrapper, "make", "-B", "-s", "-C", tree], timeout=600)
            samples.setdefault(name, []).append((time.monotonic() - start) * 1e9)
    return {name: statistics.median(values) for name, values in samples.items()}


def build_programs(stage):
    """bench/programs/*.c, compiled where the ordinary user can execute them."""
    target = stage.top / "bench"
    target.mkdir()
    for source in sorted((ROOT / "bench" / "programs").glob("*.c")):
        subprocess.run(["cc", "-O2", "-D_GNU_SOURCE", "-pthread", source, "-o", target / source.stem], check=True)
    return target


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, small sizes")
    parser.add_argument("--only", default="run,save", help="run, save or both")
    parser.add_argument("--sizes", help="MiB of memory to save (8,64,256,1024,4096; with --quick 8,64)")
    parser.add_argument("--dir", default="/dev/shm", help="where images and dd's file go")
    parser.add_argument("--out", default=str(ROOT / "build" / "bench"))
    options = parser.parse_args()
    rounds = 1 if options.quick else 5
    sizes = options.sizes or ("8,64" if options.quick else "8,64,256,1024,4096")
    sizes = [int(size) for size in sizes.split(",")]
    results = {"machine": platform.uname()._asdict(), "cpus": os.cpu_count(), "date": time.strftime("%Y-%m-%d"), "dir": options.dir}
    harness.become_subreaper()
    stage = harness.Stage()
    programs = build_programs(stage)
    host = harness.Host(stage, harness.ordinary_user())
    try:
        if "run" in options.only:
            results["run"] = measure_running(host, programs, rounds)
            results["run"]["make"] = measure_make(host, 1 if options.quick else 3)
        if "save" in options.only:
            results["save"] = saving.measure(host, programs, pathlib.Path(options.dir), sizes, rounds)
    finally:
        host.close(strict=False)
        stage.close()
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results, indent=1))
    text = report.table(results)
    (out / "results.md").write_text(text)
    print(text)
    report.plot(results, out / "results.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
