#!/usr/bin/env python3
"""The documents name files and identifiers that exist.

Every path below one of the tree's folders must exist, also in comments of C files, where every file named `x.c` must as well. Every identifier with an underscore in backticks or in a drawing
must occur in the sources. In docs/TOUR.md every `function()` must be defined in the file that the text names before it.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMENT = re.compile(r"/\*.*?\*/", re.S)
SOURCE = re.compile(r"(?<![\w/.-])([a-z0-9_]+\.c)\b")
PATH = re.compile(r"(?<![\w/.~-])((?:[a-z_]+/)+[\w-]+\.(?:c|h|S|py|sh|def|proto|md|txt|svg))\b")
STEP = re.compile(r"`((?:[a-z_0-9]+/)+\w+\.\w+)`|`(\w+)\(\)`")
QUOTED = re.compile(r"^```.*?^```|`[^`\n]+`", re.M | re.S)
IDENTIFIER = re.compile(r"(?<![\w./-])_*[a-z][a-z0-9]*(?:_[a-z0-9]+)+(?![\w./-])")
DEFINITION = r"^[a-zA-Z_][^;=\n]*\b{}\([^;]*?\n\{{"


def main():
    files = subprocess.check_output(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, text=True).split()
    files = {path for path in files if (ROOT / path).exists()}
    tops = {path.split("/")[0] for path in files}
    bad = []
    for document in sorted(path for path in files if path.endswith(".md")):
        text = (ROOT / document).read_text()
        for path in sorted(set(PATH.findall(text))):
            if path.split("/")[0] in tops and path not in files and "NAME" not in path and "KIND" not in path:
                bad.append(f"{document}: {path} does not exist")
    names = {path.rpartition("/")[2] for path in files}
    for source in sorted(path for path in files if path.endswith((".c", ".h"))):
        for comment in COMMENT.findall((ROOT / source).read_text()):
            bad += [f"{source}: {path} does not exist" for path in PATH.findall(comment) if path.split("/")[0] in tops and path not in files and "NAME" not in path and "KIND" not in path]
            bad += [f"{source}: there is no {name}" for name in SOURCE.findall(comment) if name not in names]
    words = set()
    for path in files:
        if path.endswith((".c", ".h", ".S", ".proto", ".def", ".py", ".txt", ".sh")) and not path.startswith("docs/"):
            words.update(re.findall(r"\w+", (ROOT / path).read_text(errors="replace")))
    for document in sorted(path for path in files if path.startswith("docs/") and path.endswith(".md")):
        for quoted in QUOTED.findall((ROOT / document).read_text()):
            bad += [f"{document}: {word} is in no source" for word in IDENTIFIER.findall(quoted) if word not in words]
    current = None
    for path, function in STEP.findall((ROOT / "docs" / "TOUR.md").read_text()):
        if path:
            current = path
        elif current is None or current not in files:
            bad.append(f"docs/TOUR.md: {function}() stands after no file that exists")
        elif not re.search(DEFINITION.format(function), (ROOT / current).read_text(), re.M):
            bad.append(f"docs/TOUR.md: {current} has no {function}()")
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
