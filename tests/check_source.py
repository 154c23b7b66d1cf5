#!/usr/bin/env python3
"""Names and sizes: base names of files, names of functions, lengths of functions, files and lines of the docs; and
calls of the C library that need a pointer even where the range is empty.

Exceptions are in tests/ceilings.txt and can only become fewer.
"""
import collections
import pathlib
import re
import subprocess
import sys

import ceilings

ROOT = pathlib.Path(__file__).resolve().parent.parent
FUNCTION = re.compile(r"^[a-zA-Z_][\w *]*?[ *](\w+)\([^;{}]*?\)(?: __attribute__\(\(.*?\)\))?\n\{\n(.*?)^\}", re.M | re.S)
FUNCTION_LINES, FILE_LINES, DOC_COLUMNS = 80, 800, 100
# The range may be empty and its pointer null.
EMPTY_RANGE = re.compile(r"\bqsort\(|\bmem(?:cpy|cmp)\([^;]*(?:->|\.)(?:data|v)\b[^;]*(?:->|\.)len\b[^;]*;")
# Written by syscalls_doc and by bench/run.py: tables as wide as their rows.
GENERATED = {"docs/SYSCALLS.md", "bench/RESULTS.md"}


def tracked(*patterns):
    return subprocess.check_output(["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns], cwd=ROOT, text=True).split()


def is_product(path):
    return path.split("/")[0] not in ("tests", "bench")


def main():
    counted = {}
    bases = collections.defaultdict(list)
    functions = collections.defaultdict(set)
    for path in tracked("*.c", "*.h"):
        if not (ROOT / path).exists():
            continue
        text = (ROOT / path).read_text()
        if is_product(path):
            bases[path.rpartition("/")[2]].append(path)
            if path != "base/bytes.h" and EMPTY_RANGE.search(text):
                counted["empty-range", path] = (len(EMPTY_RANGE.findall(text)), "use bytes_copy(), bytes_equal(), bytes_sort()")
        if text.count("\n") > FILE_LINES:
            counted["file-lines", path] = (text.count("\n"), "look for the missing module")
        for name, body in FUNCTION.findall(text):
            if is_product(path):
                functions[name].add(path)
            if body.count("\n") + 2 > FUNCTION_LINES:
                counted["function-lines", f"{path}:{name}"] = (body.count("\n") + 2, "look for the missing function")
    del bases["main.c"], functions["main"]
    for name, paths in bases.items():
        counted["base-name", name] = (len(paths), " ".join(paths))
    shared = 0
    for name, paths in functions.items():
        shared += len(paths) > 1
        if "_" not in name:
            counted["bare-function", name] = (len(paths), " ".join(sorted(paths)))
    counted["shared-function", "names"] = (shared, "names of functions in more than one file")
    for path in tracked("*.md"):
        wide = [n for n, line in enumerate((ROOT / path).read_text().splitlines(), 1) if len(line) > DOC_COLUMNS]
        if wide and path not in GENERATED:
            counted["doc-columns", path] = (len(wide), f"lines over {DOC_COLUMNS} characters: {wide[:5]}")
    allowed = {"base-name": 1, "bare-function": 1, "shared-function": 0, "file-lines": FILE_LINES,
               "function-lines": FUNCTION_LINES, "doc-columns": 0, "empty-range": 0}
    return ceilings.judge(allowed, counted, "Name files and functions after their module, split what is too long; exceptions are in tests/ceilings.txt.")


if __name__ == "__main__":
    sys.exit(main())
