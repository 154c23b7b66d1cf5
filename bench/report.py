"""The results as a table, compared with the bars, and as a picture."""

import scaling

UNTRAPPED = ["getpid", "gettid", "getppid", "open+close", "read", "compute", "pipe", "tcp", "udp"]


def _ns(value):
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} ns"


def _seconds(value):
    return _ns(value * 1e9)


def _run_table(rows, ratios):
    known = ("native", "scip", "restored", "filter")
    names = sorted({name for row in rows.values() for name in row}, key=lambda n: known.index(n) if n in known else 9)
    titles = ["empty filter" if name == "filter" else name for name in names]
    lines = ["| operation | " + " | ".join(titles) + " |", "|---" * (len(names) + 1) + "|"]
    for operation, row in rows.items():
        cells = []
        for name in names:
            ratio = ratios.get(operation, {}).get(name)
            cells.append("" if name not in row else _ns(row[name]) if name == "native" or ratio is None else f"{_ns(row[name])} ({ratio:.2f} ×)")
        lines.append(f"| {operation} | " + " | ".join(cells) + " |")
    return lines


def _what(row):
    return {"memory": f"{row['amount']} MiB", "shared": f"100 processes that share {row['amount']} MiB"}.get(row["kind"], f"{row['amount']} {row['kind']}")


def _save_table(rows):
    lines = ["| what | by | checkpoint | pause | restore until it runs | image | dd of as many bytes | memory before, restored |",
             "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        if "failed" in row:
            lines.append(f"| {_what(row)} | {row['by']} | {row['failed']} |  |  |  |  |  |")
            continue
        pss = f"{row['pss_before'] / 2**20:.0f} MiB, {row['pss_after'] / 2**20:.0f} MiB" if "pss_after" in row else ""
        dd = _seconds(row["dd_s"]) if row.get("dd_s") else ""
        lines.append(f"| {_what(row)} | {row['by']} | {_seconds(row['checkpoint_s'])} | {_seconds(row['pause_s'])} | {_seconds(row['restore_s'])} | "
                     f"{row['image_bytes'] / 2**20:.1f} MiB | {dd} | {pss} |")
    return lines


def _traffic_table(rows):
    lines = ["| traffic | native | supervised | one end moved | both moved |", "|---|---|---|---|---|"]
    for what, row in rows.items():
        cells = []
        for key in ("native", "before", "between", "after"):
            text = f"{row[key]:.0f} MB/s" if what == "stream" else _ns(row[key])
            cells.append(text if key == "native" else f"{text} ({row['ratio'][key]:.2f} ×)")
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return lines


MOVED = {"memory": "idle", "writing": "a tenth being written", "mapped": "idle, one shared object of 4 processes"}


def _moves_table(rows):
    lines = ["| migration of | total | pause | sent | iperf3 for as much |", "|---|---|---|---|---|"]
    for row in rows:
        kind = MOVED[row["kind"]]
        lines.append(f"| {row['amount']} MiB, {kind} | {_seconds(row['total_s'])} | {_seconds(row['pause_s'])} | {row['bytes'] / 2**20:.0f} MiB | {_seconds(row['iperf_s'])} |")
    return lines


def _move_bars(move):
    found = []
    for what, limit in (("ping tcp", 1.01), ("ping udp", 1.02), ("ping udp-connected", 1.02)):
        row = move.get("traffic", {}).get(what, {})
        if row:
            found += [(f"{what} {key} / native", row["ratio"][key], limit) for key in ("before", "between", "after")]
    row = move.get("traffic", {}).get("stream", {})
    if row:
        found += [(f"stream: native / {key}", 1 / row["ratio"][key], 1.01) for key in ("before", "between", "after")]
    if move.get("fork+wait"):
        found.append(("fork+wait: central daemon elsewhere / no cluster", move["fork+wait"]["ratio"], 1.02))
    for row in move.get("moves", []):
        if row["amount"] == 1024 and row["kind"] != "mapped":
            what, limit = {"memory": ("idle", 0.05), "writing": ("a tenth written", 0.1)}[row["kind"]]
            found.append((f"1 GiB {what}: pause, s", row["pause_s"], limit))
            found.append((f"1 GiB {what}: total / iperf3", row["total_s"] / row["iperf_s"], 1.3))
    return found


def _scale_table(rows):
    """One row for each kind, with the time for n/4, n/2 and n."""
    found = {}
    for row in rows:
        if row["kind"] != "jobs":
            found.setdefault(row["kind"], []).append(row)
    lines = ["| n | paused: n/4, n/2, n | restored: n/4, n/2, n |", "|---|---|---|"] if found else []
    for kind, some in found.items():
        cells = [", ".join(_seconds(row[key]) if key in row else row.get("failed", "") for row in some) for key in ("pause_s", "restore_s")]
        lines.append(f"| {some[-1]['n']} {kind} | {cells[0]} | {cells[1]} |")
    for row in rows:
        if row["kind"] == "jobs":
            lines += ["", f"{row['n']} idle jobs: {row['processes']} processes, {row['pss_bytes'] / 2**20:.0f} MiB, started in {row['start_s']:.0f} s; "
                      f"{row['switches']} context switches in 10 s, and {row['daemon_switches']} of pbeamd's."]
    return lines


def _scale_bars(rows):
    found = []
    for row in rows:
        pause, restore = scaling.BARS.get((row["kind"], row["n"]), (None, None))
        if pause and "pause_s" in row:
            found.append((f"{row['n']} {row['kind']}: pause, s", row["pause_s"], pause))
        if restore and "restore_s" in row:
            found.append((f"{row['n']} {row['kind']}: restore, s", row["restore_s"], restore))
        if row["kind"] == "jobs" and row["n"] == scaling.JOBS:
            found.append((f"{row['n']} idle jobs, MiB", row["pss_bytes"] / 2**20, scaling.JOBS_MIB))
    return found


def bars(results):
    """(text, figure, limit) for every bar for which there are results."""
    found = []
    ratio = results.get("ratio", {})
    for operation in UNTRAPPED:
        row = ratio.get(operation, {})
        if "scip" in row:
            found.append((f"{operation}: scip / native", row["scip"], 1.02))
            if "filter" in row:
                found.append((f"{operation}: scip / empty filter", row["scip"] / row["filter"], 1.02))
    if "scip" in ratio.get("fork+exec+wait", {}):
        found.append(("fork+exec+wait: scip / native", ratio["fork+exec+wait"]["scip"], 1.5))
    for row in results.get("save", []):
        if row["by"] != "scip" or "failed" in row:
            continue
        if row["kind"] == "memory" and row["amount"] == 1024 and row.get("dd_s"):
            found.append(("1 GiB: pause / dd", row["pause_s"] / row["dd_s"], 1.2))
            found.append(("1 GiB: checkpoint / dd", row["checkpoint_s"] / row["dd_s"], 1.2))
            found.append(("1 GiB: restore, s", row["restore_s"], 0.4))
        if row["kind"] == "memory" and row["amount"] == 8:
            found += [("8 MiB: checkpoint, s", row["checkpoint_s"], 0.03), ("8 MiB: restore, s", row["restore_s"], 0.03)]
        if row["kind"] == "processes":
            found += [("100 processes: checkpoint, s", row["checkpoint_s"], 0.15), ("100 processes: restore, s", row["restore_s"], 0.15)]
    return found + _move_bars(results.get("move", {})) + _scale_bars(results.get("scale", []))


def table(results):
    machine = results["machine"]
    lines = [f"{results['date']}, {machine['system']} {machine['release']}, {machine['machine']}, {results['cpus']} processors; images in {results['dir']}", ""]
    if results.get("run"):
        lines += _run_table(results["run"], results.get("ratio", {})) + [""]
    if results.get("save"):
        lines += _save_table(results["save"]) + [""]
    move = results.get("move", {})
    if move.get("traffic"):
        lines += _traffic_table(move["traffic"]) + [""]
    if move.get("moves"):
        lines += _moves_table(move["moves"]) + [""]
    if move.get("lookup"):
        lines += ["| a process is found by its number | us |", "|---|---|"] + [f"| {where} | {figure / 1000:.2f} |" for where, figure in move["lookup"].items()] + [""]
    if results.get("loop"):
        lines += ["| an event in | us | beside poll |", "|---|---|---|"] + [f"| {way} | {ns / 1000:.2f} | {ns / results['loop']['poll']:.2f} × |" for way, ns in results["loop"].items()] + [""]
    if results.get("scale"):
        lines += _scale_table(results["scale"]) + [""]
    judged = bars(results)
    if judged:
        lines += ["| bar | figure | limit | |", "|---|---|---|---|"]
        lines += [f"| {what} | {figure:.3f} | {limit:g} | {'met' if figure <= limit else 'missed'} |" for what, figure, limit in judged]
    return "\n".join(lines) + "\n"


def plot(results, path):
    try:
        import matplotlib
    except ImportError:
        print("bench: no picture: python3-matplotlib is not installed")
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5))
    run = results.get("ratio", {})
    names = [name for name in ("scip", "restored", "filter", "strace", "proot", "dmtcp") if any(name in row for row in run.values())]
    for index, name in enumerate(names):
        values = [row.get(name, 0) for row in run.values()]
        left.bar([i + index * 0.8 / len(names) for i in range(len(run))], values, 0.8 / len(names), label=name)
    if run:
        left.set_xticks([i + 0.4 for i in range(len(run))], list(run), rotation=45, ha="right")
        left.set_yscale("log")
        left.axhline(1, color="black", linewidth=0.8)
        left.set_ylabel("cost, native = 1")
        left.legend()
    for by in ("scip", "criu", "dmtcp"):
        rows = [row for row in results.get("save", []) if row["kind"] == "memory" and row["by"] == by and "failed" not in row]
        for key, style in (("checkpoint_s", "-o"), ("pause_s", "--s"), ("restore_s", ":^"), ("dd_s", "-.x")):
            points = [(row["amount"], row[key]) for row in rows if row.get(key)]
            if points and not (key == "dd_s" and by != "scip"):
                right.plot(*zip(*points), style, label="dd" if key == "dd_s" else f"{by} {key[:-2]}")
    if results.get("save"):
        right.set_xscale("log", base=2)
        right.set_yscale("log")
        right.set_xlabel("MiB")
        right.set_ylabel("seconds")
        right.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)
