"""Traffic between hosts before, between and after migrations, and what a migration takes, beside native and iperf3 in the same run.

Hosts are those of lab/: network namespaces with a bridge between them.
"""
import itertools
import json
import re
import signal
import statistics
import subprocess
import sys
import time

import harness
import running
import saving

PORTS = itertools.count(5600)  # each used once: a port that has moved stays reserved at home for a moment after its program has ended
SETTLED = 6  # lines of a program's report of which the figure is the median
TURNS = 5


class Talk:
    """A server and a client, each on a processor of its own on every host, and the newest lines of their reports."""

    def __init__(self, server, client, words, programs, supervised):
        self.server, self.client = server, client
        self.supervised = supervised
        run = (lambda host, *argv: host.scip_run(*argv)) if supervised else (lambda host, *argv: host.start([*argv]))
        protocol = words[1] if words[0] == "ping" else "tcp"
        port = next(PORTS)
        self.serving = run(server, "taskset", "-c", "0", programs / "traffic", "serve", protocol, port).wait_for("serving")
        self.asking = run(client, "taskset", "-c", "1", programs / "traffic", *words, server.ip, port)

    def figure(self):
        """The median of the next lines; the first may have begun earlier."""
        have = len(self.asking.lines())
        self.client.wait_until(lambda: len(self.asking.lines()) > have + SETTLED, 60, "traffic")
        return statistics.median(float(line.split()[1]) for line in self.asking.lines()[have + 1:have + 1 + SETTLED])

    def stand_still(self, still):
        """Stops the pair while another pair is measured."""
        for host, job, words in ((self.client, self.asking, "traffic "), (self.server, self.serving, "traffic serve")):
            if self.supervised:
                host.ctl("kill", "-s", "STOP" if still else "CONT", vpid_of(host, words))
            else:
                job.process.send_signal(signal.SIGSTOP if still else signal.SIGCONT)

    def end(self):
        for job in (self.asking, self.serving):
            job.process.terminate()
            job.process.wait(20)


def beside(native, talk):
    """Measures both in turns: the medians, and the median of the ratios."""
    turns = []
    for _ in range(TURNS):
        talk.stand_still(True)
        native.stand_still(False)
        one = native.figure()
        native.stand_still(True)
        talk.stand_still(False)
        turns.append((one, talk.figure()))
    return [statistics.median(figures) for figures in ([one for one, _ in turns], [other for _, other in turns], [other / one for one, other in turns])]


def vpid_of(host, words):
    """Finds the process with these words in its command line."""
    for row in host.ps()["processes"]:
        if words in row.get("command", ""):
            return row["vpid"]
    raise AssertionError(f"no process {words!r}")


def measure_traffic(lab, programs, words):
    """ns for a round trip, or MB/s: supervised before, between and after moves of both ends, each time beside native."""
    a, b, c = lab.hosts[:3]
    native = Talk(b, a, words, programs, False)
    native.stand_still(True)
    talk = Talk(b, a, words, programs, True)
    row, natives = {"ratio": {}}, []
    try:
        for key, leaves in (("before", ""), ("between", "traffic serve"), ("after", f"traffic {words[0]}")):
            if leaves:
                a.ctl("migrate", vpid_of(a, leaves), (c if key == "between" else b).name, timeout=120)
            one, row[key], row["ratio"][key] = beside(native, talk)
            natives.append(one)
        row["native"] = statistics.median(natives)
    finally:
        for each in (native, talk):
            each.stand_still(False)
            each.end()
    return row


def iperf(lab):
    """Bytes a second from the first host to the second."""
    a, b = lab.hosts[:2]
    server = b.start(["iperf3", "-s", "-1", "-p", "5701"])
    time.sleep(0.5)
    done = json.loads(a.run(["iperf3", "-J", "-c", b.ip, "-p", "5701", "-t", "3"], timeout=60).stdout)
    server.process.wait(20)
    return done["end"]["sum_received"]["bits_per_second"] / 8


SPAN = {"us": 1e-6, "ms": 1e-3, "s": 1}


def one_move(host, vpid, target, beat, kind):
    beat.put(1, 0)
    start = time.monotonic()
    said = host.ctl("migrate", vpid, target, timeout=300)
    row = {"total_s": time.monotonic() - start, "said": (said.stdout + said.stderr).strip().splitlines()[-1]}
    beat.wait_after(time.clock_gettime_ns(time.CLOCK_MONOTONIC))
    row["pause_s"] = beat.word(1) / 1e9
    found = re.search(r"([\d.]+)([KMGT]?) sent in", row["said"])
    row["bytes"] = float(found[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}[found[2]] if found else 0
    if kind != "writing" and not beat.check():
        print("bench: the memory is not as it was", file=sys.stderr)
        row["bad"] = 1
    return row


def measure_moves(lab, programs, kind, mib, rounds):
    """The process moves to and fro between two hosts; medians."""
    a, b = lab.hosts[:2]
    beat = saving.Beat(a, f"beat-{kind}-{mib}")
    vpid, _ = a.detach(programs / "hold", beat.path, kind, mib)
    beat.wait_after(0)
    rows = []
    try:
        for turn in range(2 * rounds):
            rows.append(one_move(a, vpid, (a if turn % 2 else b).name, beat, kind))
    finally:
        a.ctl("kill", "-s", "KILL", vpid, check=False)
    rate = iperf(lab)
    row = {key: statistics.median(row[key] for row in rows) for key in ("total_s", "pause_s", "bytes")}
    return {"kind": kind, "amount": mib, "iperf_s": (row["bytes"] or mib * 2**20) / rate, "said": rows[-1]["said"], **row}


def measure_forks(stage, programs, rounds):
    """ns for fork+wait on a host whose central daemon is another, and without a cluster, in turns; and their ratio."""
    lab = harness.Lab(stage, 2, numbers=(0,))  # otherwise both hosts would have the pids of one kernel
    alone = harness.Host(stage, lab.user)

    def forks(host):
        return running.parse_micro(host.run(["scip", "run", "--", programs / "micro", "fork+wait"], timeout=120).stdout)["fork+wait"]

    try:
        lab.start()
        turns = [(forks(alone), forks(lab.hosts[1])) for _ in range(rounds)]
    finally:
        alone.close(strict=False)
        lab.close(strict=False)
    return {"no cluster": statistics.median(one for one, _ in turns), "central daemon elsewhere": statistics.median(other for _, other in turns),
            "ratio": statistics.median(other / one for one, other in turns)}


def measure_lookups(lab, programs):
    """ns to find a process by its number: natively, in the host's own table, and on another host."""
    a, b = lab.hosts[:2]

    def lookup(supervised, target):
        return float(a.run([*(["scip", "run", "--"] if supervised else []), programs / "lookup", target], timeout=120).stdout.split()[1])

    native = a.start(["sleep", "1000"])
    vpid, _ = a.detach("sleep", "1000")
    try:
        row = {"native": lookup(False, native.process.pid), "on this host": lookup(True, vpid)}
        a.ctl("migrate", vpid, b.name)
        row["on another host"] = lookup(True, vpid)
    finally:
        native.process.terminate()
        native.process.wait(20)
        a.ctl("kill", "-s", "KILL", vpid, check=False)
    return row


def measure(stage, programs, sizes, rounds):
    lab = harness.Lab(stage, 3)
    results = {"traffic": {}, "moves": []}
    try:
        lab.start()
        results["iperf3"] = iperf(lab)
        for words in (["ping", "tcp"], ["ping", "udp"], ["ping", "udp-connected"], ["stream"]):
            try:
                results["traffic"][" ".join(words)] = measure_traffic(lab, programs, words)
            except (AssertionError, OSError, subprocess.SubprocessError) as problem:
                print(f"bench: {words}: {problem}", file=sys.stderr)
        for kind in ("memory", "writing", "mapped"):
            for mib in sizes if kind != "mapped" else sizes[-1:]:
                try:
                    results["moves"].append(measure_moves(lab, programs, kind, mib, rounds))
                except (AssertionError, OSError, subprocess.SubprocessError) as problem:
                    print(f"bench: moving {mib} MiB {kind}: {problem}", file=sys.stderr)
                else:
                    print(f"bench: {results['moves'][-1]}", file=sys.stderr)
        results["fork+wait"] = measure_forks(stage, programs, rounds)
        results["lookup"] = measure_lookups(lab, programs)
    finally:
        for line in lab.close(strict=False):
            print(f"bench: {line}", file=sys.stderr)
    return results
