"""One operation at a time, natively and in every other way, in turns.

A machine's speed drifts by more than what is to be seen here, so for each operation the ways take turns within seconds, in an order that
rotates; the first turn warms up and is not counted. micro gives the 10th percentile of its batches. A cost is the least of all turns, a
ratio that of two such: whoever else uses the processors only ever makes something slower.
"""
import shutil
import subprocess
import sys
import time

import harness

OPERATIONS = ["getpid", "gettid", "getppid", "open+close", "read", "fork+wait", "fork+exec+wait", "pthread", "compute", "pipe", "tcp", "udp"]
STRACE = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=kill", "-o", "/dev/null"]


TURN_S = 60  # for one way to do one operation, 41 batches of it


def parse_micro(text):
    """{operation: 10th percentile} in nanoseconds."""
    rows = [line.split() for line in text.splitlines()]
    return {row[0]: float(row[2]) for row in rows if len(row) == 3}


def run_wrapped(*wrapper):
    return lambda host, micro, operation: parse_micro(host.run([*wrapper, micro, operation], timeout=TURN_S).stdout)


def run_filtered(host, micro, operation):
    return parse_micro(host.run([micro, "--filter", operation], timeout=TURN_S).stdout)


def run_restored(host, micro, operation):
    """The same program, saved before it starts to work, killed, rolled back, then started."""
    go = host.home / "go"
    go.unlink(missing_ok=True)
    vpid, out = host.detach(micro, "--after", go, operation)
    host.ctl("checkpoint", "--kill", vpid)
    host.ctl("rollback", vpid)
    host.file("go")
    host.wait_until(lambda: parse_micro(out.read_text()), TURN_S, "the restored program's figures")
    return parse_micro(out.read_text())


def ways():
    """Every way to run a program that this machine has, by name."""
    found = {"native": run_wrapped(), "scip": run_wrapped("scip", "run", "--"), "restored": run_restored, "filter": run_filtered}
    if shutil.which("strace"):
        found["strace"] = run_wrapped(*STRACE)
    if shutil.which("proot"):
        found["proot"] = run_wrapped("proot")
    if shutil.which("dmtcp_launch"):
        found["dmtcp"] = run_wrapped("dmtcp_launch", "--quiet", "--new-coordinator")
    return found


def in_turns(names, rounds, measure):
    """measure(name) -> cost or None. ({name: least cost}, {name: that / native's}). A way that fails is not tried again."""
    least, left = {}, list(names)
    for turn in range(rounds + 1):
        for name in left[turn % len(left):] + left[:turn % len(left)]:
            cost = measure(name)
            if cost is None:
                left.remove(name)
            elif turn:
                least[name] = min(cost, least.get(name, cost))
    native = least.get("native")
    return least, {name: cost / native for name, cost in least.items()} if native else {}


def measure(host, programs, rounds):
    """({operation: {way: ns}}, {operation: {way: ratio to native}})."""
    micro = programs / "micro"
    how = ways()
    run, ratio = {}, {}

    def once(name, operation):
        try:
            return how[name](host, micro, operation).get(operation)
        except (AssertionError, OSError, subprocess.SubprocessError) as problem:
            print(f"bench: {name}, {operation}: {problem}", file=sys.stderr)
            return None

    for operation in OPERATIONS:
        run[operation], ratio[operation] = in_turns(list(how), rounds, lambda name: once(name, operation))
        print(f"bench: {operation} done", file=sys.stderr)
    return run, ratio


def measure_make(host, rounds):
    """A real build: the C files of base/, compiled one by one by make."""
    tree = host.home / "make"
    tree.mkdir(exist_ok=True)
    host.own(tree)
    for folder in ("base",):
        shutil.copytree(harness.ROOT / folder, tree / folder, dirs_exist_ok=True)
    stems = sorted(path.stem for path in (tree / "base").glob("*.c"))
    rules = ["all: " + " ".join(f"{stem}.o" for stem in stems)]
    rules += [f"{stem}.o: base/{stem}.c\n\tcc -O2 -D_GNU_SOURCE -I. -c base/{stem}.c -o $@" for stem in stems]
    (tree / "Makefile").write_text("\n".join(rules) + "\n")
    commands = {"native": [], "scip": ["scip", "run", "--"]}
    if shutil.which("strace"):
        commands["strace"] = STRACE
    if shutil.which("proot"):
        commands["proot"] = ["proot"]

    def once(name):
        start = time.monotonic()
        try:
            host.run([*commands[name], "make", "-B", "-s", "-C", tree], timeout=4 * TURN_S)
        except (AssertionError, OSError, subprocess.SubprocessError) as problem:
            print(f"bench: {name}, make: {problem}", file=sys.stderr)
            return None
        return (time.monotonic() - start) * 1e9

    return in_turns(list(commands), rounds, once)
