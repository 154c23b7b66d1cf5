#!/usr/bin/env python3
"""Text of foreign origin (names of programs, files, hosts, messages of other processes) reaches a terminal only through text_visible().

Each argument of printf(), fprintf(), dprintf(), puts() and fputs() that is printed as text has to be a literal, text_visible(), the sentence of a
struct err (which is visible), or a name that stands for text of the program's own (OWN).
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRODUCT = ("base", "channel", "image", "namespace", "pbeamctl", "pbeamd", "proto", "scip")
CALL = re.compile(r"\b(printf|fprintf|dprintf|puts|fputs|vprintf|vfprintf|vdprintf|perror)\(")
# The stream, and what precedes the format.
FORMAT_AT = {"printf": 0, "fprintf": 1, "dprintf": 1}
CONVERSION = re.compile(r"%(?:%|[-+ #0]*(\*|\d+)?(?:\.(\*|\d*))?(?:hh|h|ll|l|z|j|t|L)?([a-zA-Z]))")
PRI = re.compile(r'"\s*PRI\w+\s*"?')
LITERAL = re.compile(r'^(?:"(?:[^"\\]|\\.)*"|PBEAM_VERSION|PRI\w+|\s)+$')
VISIBLE = re.compile(r"^(?:text_visible\(.*\)|(?:err|why)(?:\.|->)text|strerror\(errno\)|logout_sentence\(.*\))$", re.S)
# Numbers and times as text, words from tables, text of --help.
OWN = {
    "pbeamctl/command.c": {"command->name", "command->summary", "command->synopsis", "command->text", "command_table[i]->name",
                           "command_table[i]->summary", "gap", "name", "left", "o->help"},
    "pbeamctl/completion.c": {"o->name", "command->name", "command_table[i]->name", "words", "o->choices"},
    "pbeamctl/format.c": {"line", "path"},  # a path in a pipe is as it is
    "pbeamctl/command_doctor.c": {"word_in_colour(finding)", "word_in_colour(FINDING_LACKS)", "word_in_colour(FINDING_GOOD)", "check->name",
                                  "check->meaning", "check->mend"},
    "pbeamctl/command_hosts.c": {"hosts_state_word(host, i == 0)"},
    "pbeamctl/command_image.c": {"state_name(process->state)", "object_name((Pbeam__Object__KindCase)k)"},
    "pbeamctl/progress.c": {"bar"},
    "pbeamd/main.c": {"usage"},
    "scip/job/inherited.c": {"found.text", "more"},  # numbers and kinds of descriptors
    "scip/main.c": {"usage_text"},
    "scip/supervisor/successor.c": {"able"},
}
FORMATTED = {"size", "pause", "total", "when", "memory", "available", "number", "bytes", "before", "after"}  # by format_size() and the like
NOT_TERMINALS = {"namespace/paths.c", "namespace/proc_text.c", "pbeamd/config.c", "scip/bridge/bridge_control.c"}  # they write files


def arguments(text, at):
    """The arguments of a call from behind its bracket on, and the place behind the call."""
    found, depth, begin, quoted = [], 0, at, None
    while True:
        c = text[at]
        if quoted:
            if c == "\\":
                at += 1
            elif c == quoted:
                quoted = None
        elif c in "\"'":
            quoted = c
        elif c in "([{":
            depth += 1
        elif c in ")]}" and depth:
            depth -= 1
        elif c == ")" or (c == "," and depth == 0):
            found.append(" ".join(text[begin:at].split()))
            begin = at + 1
            if c == ")":
                return found, at + 1
        at += 1


def branches(text):
    """The values of a conditional expression; else the text itself."""
    depth, quoted, question = 0, None, None
    for at, c in enumerate(text):
        if quoted:
            quoted = None if c == quoted and text[at - 1] != "\\" else quoted
        elif c in "\"'":
            quoted = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif depth == 0 and c == "?" and question is None:
            question = at
        elif depth == 0 and c == ":" and question is not None:
            return branches(text[question + 1:at].strip()) + branches(text[at + 1:].strip())
    return [text]


def is_own(path, value):
    return bool(LITERAL.match(value) or VISIBLE.match(value) or value in FORMATTED or value in OWN.get(path, ()))


def texts(name, given):
    """The arguments that are printed as text."""
    if name in ("puts", "fputs"):
        return given[:1]
    if name not in FORMAT_AT:
        return given  # a format of a caller's, errno's text with a prefix: not with this check
    at = FORMAT_AT[name]
    formats = branches(given[at])
    if not all(LITERAL.match(one) for one in formats):
        return [given[at]]
    found, next_argument = [], at + 1
    for width, precision, kind in CONVERSION.findall(PRI.sub("u", formats[0])):
        next_argument += (width == "*") + (precision == "*")
        if kind == "s":
            found.append(given[next_argument])
        next_argument += bool(kind)
    return found


def main():
    bad = 0
    for path in subprocess.check_output(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.c"], cwd=ROOT, text=True).split():
        if path.split("/")[0] not in PRODUCT or path in NOT_TERMINALS or not (ROOT / path).exists():
            continue
        text = (ROOT / path).read_text()
        for call in CALL.finditer(text):
            given, _ = arguments(text, call.end())
            for value in texts(call.group(1), given):
                for one in branches(value):
                    if not is_own(path, one):
                        bad += 1
                        print(f"{path}:{text.count(chr(10), 0, call.start()) + 1}: {call.group(1)}() prints {one}: use text_visible() (base/text.h)")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
