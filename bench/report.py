"""The results as a table, judged by the bars, and as a picture."""

UNTRAPPED = ["getpid", "getppid", "open+close", "read", "compute", "pipe", "tcp", "udp"]


def _ns(value):
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} ns"


def _seconds(value):
    return _ns(value * 1e9)


def _run_table(rows):
    names = sorted({name for row in rows.values() for name in row}, key=lambda n: ("native", "scip", "restored").index(n) if n in ("native", "scip", "restored") else 9)
    lines = ["| operation | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for operation, row in rows.items():
        native = row.get("native")
        cells = []
        for name in names:
            value = row.get(name)
            cells.append("" if value is None else _ns(value) if name == "native" or not native else f"{_ns(value)} ({value / native:.2f} ×)")
        lines.append(f"| {operation} | " + " | ".join(cells) + " |")
    return lines


def _save_table(rows):
    lines = ["| what | by | checkpoint | pause | restore until it runs | image | dd of as many bytes |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        what = f"{row['amount']} MiB" if row["kind"] == "memory" else f"{row['amount']} {row['kind']}"
        dd = _seconds(row["dd_s"]) if row.get("dd_s") else ""
        lines.append(f"| {what} | {row['by']} | {_seconds(row['checkpoint_s'])} | {_seconds(row['pause_s'])} | {_seconds(row['restore_s'])} | "
                     f"{row['image_bytes'] / 2**20:.1f} MiB | {dd} |")
    return lines


def bars(results):
    """(sentence, figure, limit) for every bar that the results can judge."""
    found = []
    run = results.get("run", {})
    for operation in UNTRAPPED:
        row = run.get(operation, {})
        if "scip" in row and "native" in row:
            found.append((f"{operation}: scip / native", row["scip"] / row["native"], 1.02))
    row = run.get("fork+exec+wait", {})
    if "scip" in row and "native" in row:
        found.append(("fork+exec+wait: scip / native", row["scip"] / row["native"], 1.5))
    for row in results.get("save", []):
        if row["by"] != "scip":
            continue
        if row["kind"] == "memory" and row["amount"] == 1024 and row.get("dd_s"):
            found.append(("1 GiB: pause / dd", row["pause_s"] / row["dd_s"], 1.2))
            found.append(("1 GiB: checkpoint / dd", row["checkpoint_s"] / row["dd_s"], 1.2))
            found.append(("1 GiB: restore, s", row["restore_s"], 0.4))
        if row["kind"] == "memory" and row["amount"] == 8:
            found += [("8 MiB: checkpoint, s", row["checkpoint_s"], 0.03), ("8 MiB: restore, s", row["restore_s"], 0.03)]
        if row["kind"] == "processes":
            found += [("100 processes: checkpoint, s", row["checkpoint_s"], 0.15), ("100 processes: restore, s", row["restore_s"], 0.15)]
    return found


def table(results):
    machine = results["machine"]
    lines = [f"{results['date']}, {machine['system']} {machine['release']}, {machine['machine']}, {results['cpus']} processors; images in {results['dir']}", ""]
    if results.get("run"):
        lines += _run_table(results["run"]) + [""]
    if results.get("save"):
        lines += _save_table(results["save"]) + [""]
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
    run = results.get("run", {})
    names = [name for name in ("scip", "restored", "strace", "proot", "dmtcp") if any(name in row for row in run.values())]
    for index, name in enumerate(names):
        values = [row[name] / row["native"] if name in row and "native" in row else 0 for row in run.values()]
        left.bar([i + index * 0.8 / len(names) for i in range(len(run))], values, 0.8 / len(names), label=name)
    if run:
        left.set_xticks([i + 0.4 for i in range(len(run))], list(run), rotation=45, ha="right")
        left.set_yscale("log")
        left.axhline(1, color="black", linewidth=0.8)
        left.set_ylabel("cost, native = 1")
        left.legend()
    for by in ("scip", "criu"):
        rows = [row for row in results.get("save", []) if row["kind"] == "memory" and row["by"] == by]
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
