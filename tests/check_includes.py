#!/usr/bin/env python3
"""Holds the layers: no file includes a header of a folder that its own may not see."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BASE = ["base"]
PROTO = BASE + ["proto"]
NAMES = PROTO + ["namespace"]
IMAGE = PROTO + ["image"]
CHANNEL = PROTO + ["channel"]
TRACEE = NAMES + ["inject", "scip/tracee"]
CALLS = TRACEE + ["scip/syscall"]
OBJECT = TRACEE + IMAGE + ["scip/object"]
STATE = CALLS + OBJECT
SEES = {
    "base": BASE,
    "proto": PROTO,
    "namespace": NAMES,
    "image": IMAGE,
    "channel": CHANNEL,
    "inject": ["inject"],
    "scip/tracee": TRACEE,
    "scip/syscall": CALLS,
    "scip/object": OBJECT,
    "scip/checkpoint": STATE + ["scip/checkpoint"],
    "scip/restore": STATE + ["scip/restore"],
    "scip/migrate": STATE + CHANNEL + ["scip/checkpoint", "scip/restore", "scip/migrate"],
    "scip/cut": STATE + CHANNEL + ["scip/checkpoint", "scip/restore", "scip/migrate", "scip/cut"],
    "scip/supervisor": STATE + CHANNEL + ["scip/checkpoint", "scip/restore", "scip/migrate", "scip/supervisor"],
    "scip/job": STATE + CHANNEL + ["scip/checkpoint", "scip/restore", "scip/migrate", "scip/cut", "scip/supervisor", "scip/job"],
    "scip": STATE + CHANNEL + ["scip/migrate", "scip/cut", "scip/supervisor", "scip/job"],
    "pbeamd": NAMES + IMAGE + ["channel", "pbeamd"],
    "pbeamctl": NAMES + IMAGE + ["pbeamctl"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def folder_of(path):
    """The layer a repository path belongs to: the longest key that is its prefix."""
    parts = path.split("/")[:-1]
    for n in (2, 1):
        key = "/".join(parts[:n])
        if key in SEES:
            return key
    return None


def main():
    bad = 0
    for source in sorted(ROOT.glob("**/*.[ch]")):
        relative = source.relative_to(ROOT).as_posix()
        layer = folder_of(relative)
        if relative.startswith("build") or layer is None:
            continue
        for included in INCLUDE.findall(source.read_text()):
            target = folder_of(included)
            if target is None or target not in SEES[layer]:
                print(f"{relative}: includes {included}, which {layer}/ may not see")
                bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
