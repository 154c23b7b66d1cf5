#!/usr/bin/python3
"""Plays the README's session on two laboratory hosts and draws both terminals: python3 tools/record_session.py > docs/session.svg

Everything in the picture was typed into, or printed by, a program on a pseudo-terminal.
"""
import fcntl
import html
import os
import pathlib
import re
import select
import struct
import subprocess
import sys
import termios
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from lab import host, network  # noqa: E402

COLUMNS, ROWS = 96, 60
STEPS = [
    # terminal, what is typed, the text that ends the step
    ("console", "scip run --name work -- python3 -q", ">>> "),
    ("console", "import os, random; found = random.sample(range(999), 5)", ">>> "),
    ("console", "os.getpid(), found", ">>> "),
    ("shell", "pbeamctl checkpoint work", "$ "),
    ("console", "found = 'lost'", ">>> "),
    ("shell", "pbeamctl rollback work", "$ "),
    ("console", "os.getpid(), found", ">>> "),
    ("shell", "pbeamctl migrate work b", "$ "),
    ("shell", "pbeamctl ps", "$ "),
    ("console", "os.getpid(), found", ">>> "),
    ("shell", "pbeamctl kill -s KILL work", "$ "),
    ("console", "", "$ "),
    ("console", "pbeamctl rollback work", "$ "),
    ("console", "pbeamctl attach work", None),
    ("console", "os.getpid(), found", ">>> "),
]
# What a terminal without colours and cursor movements does not show.
CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\x07")


class Screen:
    """A shell on a pseudo-terminal, and what it has printed."""

    def __init__(self, first):
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        env = {**first.env, "PS1": "$ ", "TERM": "dumb"}
        self.child = subprocess.Popen(["setsid", "--ctty", *first.as_user(["bash", "--norc"])], cwd=first.home, env=env,
                                      stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        self.master = master
        self.text = ""
        self.marks = []
        self.read_until("$ ")

    def read_until(self, end, timeout=60):
        """Reads until the prompt `end` has come and nothing follows; None: until nothing has come for two seconds."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if select.select([self.master], [], [], 2 if end is None else 0.3)[0]:
                self.text += CONTROL.sub("", os.read(self.master, 65536).decode(errors="replace")).replace("\r\n", "\n")
            elif end is None or self.text.endswith(end):
                return
        raise RuntimeError(f"no {end!r} after:\n{self.text}")

    def type(self, words, end, number):
        if not words:  # the program has ended at its prompt; the shell's is on the same line
            self.read_until(end)
            self.text = self.text.removesuffix(end) + "\n" + end
            return
        self.marks.append((self.text.rstrip("$> ").count("\n"), number))
        seen = len(self.text)
        os.write(self.master, words.encode() + b"\n")
        while words[:20] not in self.text[seen:].replace("\n", ""):
            self.read_until(None)
        self.read_until(end)

    def blocks(self):
        """For each step its number and its lines, carriage returns applied."""
        lines = [line.rpartition("\r")[2] for line in self.text.rstrip("$> \n").split("\n")]
        ends = [first for first, _ in self.marks[1:]] + [len(lines)]
        return {number: lines[first:end] for (first, number), end in zip(self.marks, ends)}


def play(lab):
    first = lab.hosts[0]
    screens = {"console": Screen(first), "shell": Screen(first)}
    for number, (name, words, end) in enumerate(STEPS, 1):
        screens[name].type(words, end, number)
    return screens


def draw(screens):
    """The steps of both terminals in the order of time, a band for each; the program's own terminal is the darker one."""
    steps = sorted((number, name, lines) for name, screen in screens.items() for number, lines in screen.blocks().items())
    bands = []
    for _, name, lines in steps:
        if not bands or bands[-1][0] != name:
            bands.append((name, []))
        bands[-1][1].append(lines)
    width, line, label = COLUMNS * 7.3 + 100, 17, {"console": "terminal 1", "shell": "terminal 2"}
    out, y = [], 0
    for name, blocks in bands:
        height = sum(len(lines) for lines in blocks) * line + 12
        out.append(f'<rect y="{y}" width="{width:.0f}" height="{height}" fill="{"#171a21" if name == "console" else "#2a303c"}"/>')
        out.append(f'<text x="10" y="{y + 19}" fill="#e5b567" font-size="11">{label[name]}</text>')
        row = y + 19
        for lines in blocks:
            for n, text in enumerate(lines):
                fill = "#b8c0cc" if n else "#ffffff"
                out.append(f'<text x="92" y="{row}" fill="{fill}" xml:space="preserve">{html.escape(text)}</text>')
                row += line
        y += height
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {y}" '
            'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="12">')
    return "\n".join([head, *out, "</svg>", ""])


def main():
    host.become_subreaper()
    stage = host.Stage()
    lab = network.Lab(stage, 2)
    try:
        lab.start()
        screens = play(lab)
        sys.stdout.write(draw(screens))
    finally:
        lab.close(strict=False)
        stage.close()


if __name__ == "__main__":
    main()
