#!/usr/bin/env python3
"""Holds the layers: no file includes or calls upwards, and no folder has a circle of more than three files.

Includes come from the sources, calls from the relocations of the objects in build/ (a table of functions is data, not a
call). Exceptions are in tests/ceilings.txt and can only become fewer.
"""
import collections
import pathlib
import re
import subprocess
import sys

import ceilings

ROOT = pathlib.Path(__file__).resolve().parent.parent
# From the bottom to the top. A folder sees itself, what it names here, and everything that those see.
LAYERS = {
    "base": [],
    "syscalls": [],
    "proto": ["base"],
    "namespace": ["proto"],
    "image": ["proto"],
    "channel": ["proto"],
    "inject": [],
    "scip/tracee": ["namespace", "inject", "syscalls"],
    "scip/syscall": ["scip/tracee"],
    "scip/object": ["scip/tracee", "image"],
    "scip/dump": ["scip/syscall", "scip/object"],
    "scip/fill": ["scip/syscall", "scip/object"],
    "scip/capture": ["scip/dump"],
    "scip/rebuild": ["scip/fill"],
    "scip/ends": ["scip/capture", "scip/rebuild", "channel"],
    "scip/reconnect": ["scip/ends"],
    "scip/bridge": ["scip/reconnect"],
    "scip/rejoin": ["scip/bridge"],
    "scip/files": ["scip/ends"],
    "scip/precopy": ["scip/ends"],
    "scip/checkpoint": ["scip/capture"],
    "scip/rollback": ["scip/rebuild"],
    "scip/arrival": ["scip/rejoin", "scip/files", "scip/precopy"],
    "scip/migrate": ["scip/arrival"],
    "scip/cut": ["scip/arrival"],
    "scip/supervisor": ["scip/dump", "scip/fill"],
    "scip/job": ["scip/checkpoint", "scip/rollback", "scip/migrate", "scip/cut", "scip/supervisor"],
    "scip": ["scip/job"],
    "pbeamd/transport": ["namespace", "image", "channel", "syscalls"],
    "pbeamd/registry": ["pbeamd/transport"],
    "pbeamd/services": ["pbeamd/registry"],
    "pbeamd/handlers": ["pbeamd/services"],
    "pbeamd": ["pbeamd/handlers"],
    "pbeamctl": ["namespace", "image"],
}
# Folders that belong to the layer of the one above them.
INNER = {"scip/tracee/arch/x86_64": "scip/tracee", "syscalls/tool": "syscalls"}
OTHERS = ("tests/", "bench/")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
OBJECT = re.compile(r"build/(.*?)CMakeFiles/[^/]+\.dir/(.*\.c)\.o$")
CIRCLE = 3


def folder_of(path):
    folder = path.rpartition("/")[0]
    return INNER.get(folder, folder)


def sources():
    tracked = subprocess.check_output(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.c", "*.h"], cwd=ROOT, text=True).split()
    return [path for path in tracked if not path.startswith(OTHERS) and (ROOT / path).exists()]


def visible():
    """For each folder the set of folders that it may include from and call."""
    sees = {}
    for folder, below in LAYERS.items():
        sees[folder] = {folder}.union(*(sees[other] for other in below))
    return sees


def includes():
    """(from, to) for each include of one of the project's own headers."""
    for source in sources():
        for header in INCLUDE.findall((ROOT / source).read_text()):
            yield source, header


def objects():
    """The object file of each source, {source: object}; build/ may still have those of deleted sources."""
    found = {}
    wanted = set(sources())
    for path in sorted((ROOT / "build").glob("**/*.c.o")):
        match = OBJECT.match(path.relative_to(ROOT).as_posix())
        if match and match[1] + match[2] in wanted:
            found[match[1] + match[2]] = path
    return found


def calls():
    """(from, to) for each use that a function makes of another source's symbol."""
    owner = {}
    names = {str(path): source for source, path in objects().items()}
    if not names:
        print("no objects in build/: calls and circles are not checked", file=sys.stderr)
        return
    listing = subprocess.check_output(["nm", "-A", "-P", "--defined-only", "--extern-only", *names], text=True)
    for line in listing.splitlines():
        path, _, symbol = line.partition(": ")
        owner[symbol.split()[0]] = names[path]
    source = section = None
    for line in subprocess.check_output(["readelf", "-rW", *names], text=True).splitlines():
        if line.startswith("File: "):
            source = names[line[6:]]
        elif line.startswith("Relocation section"):
            section = line.split("'")[1]
        elif section and section.startswith(".rela.text"):
            words = line.split()
            if len(words) > 4 and owner.get(words[4], source) != source:
                yield source, owner[words[4]]


def circles(nodes, arrows):
    """The strongly connected sets of more than one node (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(arrows[node] & nodes):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            group = stack[stack.index(node):]
            del stack[stack.index(node):]
            if len(group) > 1:
                found.append(group)

    for node in sorted(nodes):
        if node not in index:
            visit(node)
    return found


def main():
    counted = {}
    sees = visible()
    for folder in {folder_of(source) for source in sources()} - LAYERS.keys():
        counted["layer", folder] = (1, "the folder is in no layer")
        sees[folder] = sees["scip"]
    used = collections.defaultdict(set)
    for source, header in includes():
        used[folder_of(source), folder_of(header)].add((source, header))
    called = collections.defaultdict(set)
    for source, target in calls():
        called[source].add(target)
        used[folder_of(source), folder_of(target)].add((source, target))
    for (lower, upper), pairs in used.items():
        if upper not in sees[lower] and upper:
            detail = ", ".join(f"{source} uses {target}" for source, target in sorted(pairs)[:3])
            counted["layer", f"{lower} -> {upper}"] = (1, detail)
    folders = collections.defaultdict(set)
    for source in called:
        folders[folder_of(source)].add(source)
    for folder, nodes in folders.items():
        for group in circles(nodes, called):
            size = max(len(group), counted.get(("circle", folder), (0,))[0])
            if len(group) > CIRCLE and size == len(group):
                counted["circle", folder] = (size, "call each other: " + " ".join(sorted(group)))
    return ceilings.judge({"layer": 0, "circle": CIRCLE}, counted, "The layers are LAYERS in tests/check_layers.py; exceptions are in tests/ceilings.txt.")


if __name__ == "__main__":
    sys.exit(main())
