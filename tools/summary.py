#!/usr/bin/env python3
"""Adds up JUnit files and lists failed and skipped tests: summary.py SECONDS FILE... Exits 1 if any failed."""
import pathlib
import sys
import xml.etree.ElementTree as ET


def cases(path):
    """(name, 'passed' | 'skipped' | 'failed', text) of every test in the file."""
    for case in ET.parse(path).getroot().iter("testcase"):
        name = f"{path.stem}: {case.get('classname', '')}.{case.get('name')}"
        for tag, verdict in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
            found = case.find(tag)
            if found is not None:
                lines = (found.get("message") or found.text or "").strip().splitlines()
                yield name, verdict, lines[0] if lines else ""
                break
        else:
            yield name, "passed", ""


def main():
    seconds, files = sys.argv[1], [pathlib.Path(name) for name in sys.argv[2:]]
    count = {"passed": 0, "skipped": 0, "failed": 0}
    for path in files:
        for name, verdict, text in cases(path):
            count[verdict] += 1
            if verdict != "passed":
                print(f"{verdict}: {name}: {text}")
    print(f"tests: {count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped in {seconds} s")
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
