"""The console of a program that is elsewhere: each byte comes once, whatever becomes of the connection."""
import os
import signal
import subprocess
import threading
import time

import pytest

LINES = 600000
EXPECTED = b"".join(b"line %d\n" % i for i in range(LINES))
PRINTER = f"import sys\nfor i in range({LINES}): sys.stdout.write('line %d\\n' % i)"


@pytest.fixture
def two(make_lab):
    return make_lab(2).start().hosts


def start_printer(a, b):
    """A program that fills its pipe to the console and is on b. Its first bytes have been read."""
    process = a.popen(["scip", "run", "--", "python3", "-c", PRINTER], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    first = process.stdout.read(5)
    vpid = a.vpids()[0]
    a.ctl("migrate", vpid, b.name)
    return process, first


def assert_all_lines(got):
    if got != EXPECTED:
        at = next((i for i, (x, y) in enumerate(zip(got, EXPECTED)) if x != y), min(len(got), len(EXPECTED)))
        raise AssertionError(f"at {at} of {len(got)}, {len(EXPECTED)} expected: {got[max(at - 20, 0):at + 20]!r}")


def test_console_not_read_for_long(two):
    """A console that is not read for longer than an unreachable host is waited for loses nothing."""
    process, first = start_printer(*two)
    time.sleep(9)
    assert_all_lines(first + process.stdout.read())
    assert process.wait(20) == 0


def test_connection_breaks(two):
    """The console's processes end again and again while it is read; the next ones go on at the same byte."""
    a, b = two
    process, first = start_printer(a, b)
    over, ended = threading.Event(), []

    def disturb():
        while not over.wait(.4):
            for pid in a.named("scip-link"):
                try:
                    if len(os.listdir(f"/proc/{pid}/task")) > 1:  # the console's, not the one that accepts channels
                        os.kill(pid, signal.SIGTERM)
                        ended.append(pid)
                except (FileNotFoundError, ProcessLookupError):
                    pass

    disturber = threading.Thread(target=disturb)
    disturber.start()
    got = first
    try:
        for _ in range(40):
            time.sleep(.1)
            got += process.stdout.read(20000)
    finally:
        over.set()
        disturber.join()
    assert_all_lines(got + process.stdout.read())
    assert len(ended) > 3
    assert process.wait(20) == 0


def test_network_is_gone_for_a_while(two):
    """The network drops everything for longer than a connection lives; output goes on when it is back."""
    a, b = two
    a.expect_loss()
    b.expect_loss()
    process, first = start_printer(a, b)
    got = first + process.stdout.read(1000000)
    b.cut()
    try:
        time.sleep(9)
    finally:
        b.mend()
    assert_all_lines(got + process.stdout.read())
    assert process.wait(20) == 0
