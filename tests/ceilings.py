"""What the source checks tolerate: tests/ceilings.txt has one line for each exception, "CHECK SUBJECT COUNT".

A count above its ceiling fails. A count below it means that the tree has improved: `CHECK.py --shrink` lowers the ceiling
and removes lines that are no longer needed; with --strict, as in `make lint`, such a line fails too.
"""
import pathlib
import sys

PATH = pathlib.Path(__file__).with_name("ceilings.txt")


def judge(allowed, counted, advice):
    """Compares what a script has counted with the ceilings of its checks.

    `allowed` maps each check to the count that needs no exception, `counted` maps (check, subject) to (count, detail).
    Returns the exit status."""
    lines = [line.rsplit(" ", 1) for line in PATH.read_text().splitlines()]
    ceilings = {tuple(key.split(" ", 1)): int(count) for key, count in lines}
    bad, loose = 0, []
    for key, (count, detail) in sorted(counted.items()):
        if count > ceilings.get(key, allowed[key[0]]):
            print(f"{key[0]} {key[1]}: {count}, at most {ceilings.get(key, allowed[key[0]])}: {detail}")
            bad += 1
    for key, ceiling in ceilings.items():
        count = counted.get(key, (allowed.get(key[0], 0),))[0]
        if key[0] in allowed and count < ceiling:
            loose.append((key, count))
    if bad:
        print(advice)
    if "--shrink" in sys.argv:
        for key, count in loose:
            if count <= allowed[key[0]]:
                del ceilings[key]
            else:
                ceilings[key] = count
        PATH.write_text("".join(f"{check} {subject} {count}\n" for (check, subject), count in sorted(ceilings.items())))
    elif loose:
        print("below the ceiling: " + ", ".join(f"{key[0]} {key[1]}" for key, _ in loose) + f"; run {sys.argv[0]} --shrink")
        bad += "--strict" in sys.argv
    return 1 if bad else 0
