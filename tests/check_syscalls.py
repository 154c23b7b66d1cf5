#!/usr/bin/env python3
"""Holds decisions on system-call numbers to syscalls/table_x86_64.def.

A call that the code makes names its number as an argument or assigns it. A number in a comparison, a `case` or an
initializer list decides something about calls, which is an attribute of the call's row. tests/ceilings.txt has the
exceptions.
"""
import collections
import pathlib
import re
import subprocess
import sys

import ceilings

ROOT = pathlib.Path(__file__).resolve().parent.parent
OTHERS = ("tests/", "bench/", "inject/")
NUMBER = re.compile(r"\b(?:SYS|__NR)_[a-z0-9_]+\b")
IGNORED = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|^#[^\n]*$', re.S | re.M)
# restart_syscall stands for another call; pause is the one in which a process waits for its scip.
MEANT = {"SYS_restart_syscall", "SYS_pause"}
# A list of calls that the code will make, to be looked for in a program's own filters, or one call with its arguments.
MADE = re.compile(r"\b(?:needed\[\]|\w+\[3\])\s*=\s*\{[^}]*$", re.I)
COMPARED = re.compile(r"(?:==|!=|\bcase)\s*$")
LISTED = re.compile(r"[\[{,]\s*$")


def bracket(text):
    """The innermost bracket that is open at the end of a text."""
    depth = 0
    for char in reversed(text):
        if char in ")]}":
            depth += 1
        elif char in "([{" and depth == 0:
            return char
        elif char in "([{":
            depth -= 1
    return ""


def decisions(text):
    """Each number in a source that decides something, with its line."""
    text = IGNORED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for match in NUMBER.finditer(text):
        if match[0] in MEANT:
            continue
        before, after = text[: match.start()], text[match.end() :]
        compared = COMPARED.search(before[-40:]) or re.match(r"\s*[=!]=", after)
        if compared or (LISTED.search(before[-200:]) and bracket(before) != "(" and not MADE.search(before)):
            yield match[0], text.count("\n", 0, match.start()) + 1


def main():
    counted = collections.Counter()
    lines = collections.defaultdict(list)
    files = subprocess.check_output(["git", "ls-files", "*.c", "*.h"], cwd=ROOT, text=True).split()
    for path in files:
        if path.startswith(OTHERS) or not (ROOT / path).exists():
            continue
        for name, line in decisions((ROOT / path).read_text()):
            counted["syscall-number", path] += 1
            lines["syscall-number", path].append(f"{line} {name}")
    return ceilings.judge(
        {"syscall-number": 0},
        {key: (count, ", ".join(lines[key])) for key, count in counted.items()},
        "make it an attribute of the call's row in syscalls/table_x86_64.def",
    )


if __name__ == "__main__":
    sys.exit(main())
