"""The standard streams of a job that has ended and is restored: crash recovery of a batch job."""
import os
import re
import signal
import subprocess

import pytest
from programs import COUNT

# Counts on standard output and, ten times as slowly, on standard error.
BOTH = ["python3", "-uc", """
import sys, time
n = 0
while True:
    print(n)
    if n % 10 == 0:
        print(n // 10, file=sys.stderr)
    n += 1
    time.sleep(0.02)
"""]


def started(host, append=False, words=BOTH):
    """A batch job: its output goes to files that the shell has opened."""
    out, err = host.file("out"), host.file("err")
    host.run(["sh", "-c", f'scip run -d --name batch -- "$@" {">>out 2>>err" if append else ">out 2>err"} </dev/null', "sh", *words])
    return out, err


def rows(path):
    return [int(line) for line in path.read_text().split("\n")[:-1]]


def counted_without(path, vpid):
    """Checks that the program has counted without a gap. `scip run -d` prints the vpid to the same file, before or after the first numbers."""
    found = rows(path)
    found.remove(vpid)
    assert found == list(range(len(found)))
    return len(found)


def crash(host):
    """A crash of the machine, as far as processes see it."""
    for pid in host.processes():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    host.wait_until(lambda: not host.processes(), what="all to end")
    host.wait_until_swept()


@pytest.mark.parametrize("how", ["rollback", "restore", "from a file"])
@pytest.mark.parametrize("append", [False, True], ids=["write", "append"])
def test_files(host, append, how):
    """The files are opened again where they were: no number is missing, none is there twice."""
    out, err = started(host, append)
    host.wait_until(lambda: len(rows(out)) > 30, what="counting")
    vpid, = host.vpids()
    image = host.checkpoint("batch")
    saved = len(rows(out))
    host.wait_until(lambda: len(rows(out)) > saved + 30, what="counting on")
    crash(host)
    if how == "rollback":
        assert "gone" not in host.rollback("batch").stderr
    elif how == "restore":
        host.run(["scip", "restore", "-d", image])
    else:
        host.rollback("batch", "--to", image)
    host.wait_until(lambda: len(rows(out)) > saved + 60, what="counting after the crash")
    numbers, errors = counted_without(out, vpid), rows(err)
    assert errors == list(range(len(errors))) and len(errors) * 10 + 10 >= numbers
    assert oct(out.stat().st_mode) == oct(err.stat().st_mode)
    # The same again: the second image is of a job that was restored.
    image = host.checkpoint("batch")
    crash(host)
    more = len(rows(out))
    host.rollback("batch")
    host.wait_until(lambda: len(rows(out)) > more + 10, what="counting after the second crash")
    counted_without(out, vpid)
    host.ctl("kill", "-s", "KILL", "batch")


def test_redirected(host):
    """The user who restores a job may give it other files."""
    out, err = started(host)
    host.wait_until(lambda: len(rows(out)) > 10, what="counting")
    image = host.checkpoint("batch", "--kill")
    text, new = out.read_text(), host.file("new")
    host.run(["sh", "-c", f"scip restore -d {image} >new 2>&1"])
    host.wait_until(lambda: len(rows(new)) > 10, what="counting into the new file")
    assert out.read_text() == text
    host.ctl("kill", "-s", "KILL", "batch")


def test_pipe_that_is_gone(host):
    """What was written to a pipe goes to a log of the job, and the user is told where that is."""
    job = host.popen(["scip", "run", "--name", "piped", "--", *COUNT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    first = [int(job.stdout.readline()) for _ in range(10)]
    assert first == list(range(10))
    host.checkpoint("piped", "--kill")
    job.stdout.close()
    job.wait()
    done = host.rollback("piped")
    said = re.search(r"what was standard output is gone; what the program writes there goes to (\S+)", done.stderr)
    assert said and done.stderr.count("\n") == 1, done.stderr
    log = host.state / "pbeam" / "piped" / "output.log"
    assert said[1] == str(log)
    host.wait_until(lambda: log.read_text().count("\n") > 10, what="the log")
    numbers = rows(log)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) and numbers[0] >= 10
    # The log is a file like any other from now on.
    host.checkpoint("piped", "--kill")
    before = len(rows(log))
    host.rollback("piped")
    host.wait_until(lambda: len(rows(log)) > before + 10, what="the log after a second restore")
    numbers = rows(log)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    host.ctl("kill", "-s", "KILL", "piped")


def test_terminal_that_is_gone(host):
    """A new terminal takes its place, and the user is told how to see it."""
    child = host.terminal(["scip", "run", "--name", "onterm", "--", *COUNT])
    child.expect("20")
    host.checkpoint("onterm", "--kill")
    child.wait()
    done = host.rollback("onterm")
    assert "the terminal that was standard output is gone; pbeamctl attach" in done.stderr, done.stderr
    again = host.terminal(["pbeamctl", "attach", "onterm"])
    again.expect(r"\d\d\r\n\d\d")
    host.ctl("kill", "-s", "KILL", "onterm")
    again.wait()
