#!/usr/bin/env python3
"""Checks the linked injected code: no relocation left over, nothing undefined, entry at 0. Arguments: readelf, file."""
import subprocess
import sys


def main():
    readelf, path = sys.argv[1:3]
    relocations = subprocess.run([readelf, "-rW", path], capture_output=True, text=True, check=True).stdout
    if "R_X86_64" in relocations:
        sys.exit(f"{path}: relocations are left over:\n{relocations}")
    symbols = subprocess.run([readelf, "-sW", path], capture_output=True, text=True, check=True).stdout
    for line in symbols.splitlines():
        field = line.split()
        if len(field) < 8 or not field[0].rstrip(":").isdigit():
            continue
        if field[6] == "UND":
            sys.exit(f"{path}: {field[7]} is undefined")
        if field[7] == "inject_entry" and int(field[1], 16) != 0:
            sys.exit(f"{path}: the entry is at {field[1]}")


main()
