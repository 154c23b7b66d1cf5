"""scip run is the program's console: streams, signals, exit status."""
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest
from programs import COUNT, TREE, counted, counts

pytestmark = pytest.mark.timeout(60)


@pytest.mark.short
@pytest.mark.parametrize("words, status", [
    (["true"], 0),
    (["sh", "-c", "exit 7"], 7),
    (["sh", "-c", "kill -TERM $$"], 143),
    (["sh", "-c", "kill -KILL $$"], 137),
    (["/nonexistent/program"], 127),
    (["no-such-program-anywhere"], 127),
    (["/etc/passwd"], 126),
    (["/etc"], 126),
])
def test_exit_status(host, words, status):
    done = host.run(["scip", "run", "--", *words], check=False)
    assert done.returncode == status, done.stderr
    if status in (126, 127):
        assert words[0] in done.stderr and done.stderr.count("\n") == 1
    else:
        assert done.stderr == ""


@pytest.mark.parametrize("words", [["run"], ["frobnicate"], ["run", "--no-such-option", "true"], ["restore"], []])
def test_wrong_usage(host, words):
    done = host.run(["scip", *words], check=False)
    assert done.returncode in (2, 125) and done.stderr and not done.stdout


@pytest.mark.short
def test_streams(host):
    text = "".join(f"line {n}\n" for n in range(20000))
    done = host.run(["scip", "run", "--", "sh", "-c", "tee copy; echo to standard error >&2"], stdin=text)
    assert done.stdout == text and done.stderr == "to standard error\n"
    assert (host.home / "copy").read_text() == text


def test_standard_input_closed(host):
    done = host.run(["sh", "-c", "scip run -- cat <&-"], check=False)
    natively = host.run(["sh", "-c", "cat <&-"], check=False)
    assert done.returncode == natively.returncode


def test_environment_and_directory(host):
    done = host.run(["scip", "run", "--", "sh", "-c", "echo $SPECIAL; pwd; umask; ulimit -n"], env={"SPECIAL": "as it was"})
    natively = host.run(["sh", "-c", "echo $SPECIAL; pwd; umask; ulimit -n"], env={"SPECIAL": "as it was"})
    assert done.stdout == natively.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_to_the_console(host, number):
    """A signal sent to `scip run` reaches the program."""
    job = host.scip_run("python3", "-uc", f"""
import signal, sys, time
signal.signal({int(number)}, lambda *a: (print("caught"), sys.exit(5)))
print("ready")
time.sleep(50)
""")
    job.wait_for("ready")
    job.process.send_signal(number)
    assert job.wait() == 5 and "caught" in job.text()


def test_interrupt_from_the_terminal(host):
    child = host.terminal(["scip", "run", "--", "sh", "-c", "trap 'echo got it; exit 3' INT; echo ready; while :; do sleep 0.1; done"])
    child.expect("ready")
    child.sendintr()
    child.expect("got it")
    child.wait()
    child.close()
    assert child.exitstatus == 3


def test_window_size(host):
    child = host.terminal(["scip", "run", "--", "sh", "-c", "stty size; trap 'stty size' WINCH; echo ready; while :; do sleep 0.1; done"], size=(31, 97))
    child.expect("31 97")
    child.expect("ready")
    child.setwinsize(40, 120)
    child.expect("40 120")
    child.sendintr()
    child.wait()


def test_stop_and_continue(host):
    """Ctrl-Z stops the program, not only its console; fg continues both."""
    shell = host.terminal(["bash", "--norc", "-i"])
    shell.sendline("PS1='$ '; scip run -- sh -c 'echo ready; read line; echo got $line'")
    shell.expect("ready\r")
    shell.send("\x1a")
    shell.expect("Stopped")
    shell.sendline("fg")
    time.sleep(0.2)
    shell.sendline("a line")
    shell.expect("got a line")
    shell.expect(r"\$ ")  # what is typed before goes to the program
    shell.sendline("exit")
    shell.wait()


@pytest.mark.short
def test_detached(host):
    vpid, out = host.detach(*COUNT, name="count")
    host.wait_until(lambda: counted(out) > 3, what="counting")
    assert vpid in host.vpids()
    host.ctl("kill", "-s", "KILL", "count")
    host.wait_until(lambda: vpid not in host.vpids(), what="the killed program to be gone")


def test_detached_failure_is_told(host):
    done = host.run(["scip", "run", "-d", "--", "/nonexistent/program"], check=False)
    assert done.returncode == 127 and not done.stdout


def test_vpid_is_getpid(host):
    vpid, out = host.detach("python3", "-uc", "import os, time; print(os.getpid()); time.sleep(50)")
    host.wait_until(lambda: out.read_text(), what="its pid")
    assert int(out.read_text()) == vpid
    host.ctl("kill", "-s", "TERM", str(vpid))


def test_a_console_that_is_killed(host):
    """The program goes on without its console."""
    job = host.scip_run(*COUNT, name="count")
    host.wait_until(lambda: counted(job.out) > 3, what="counting")
    job.process.kill()
    job.process.wait()
    counts(host, job.out)
    host.ctl("kill", "-s", "KILL", "count")


@pytest.mark.short
def test_tree(host):
    job = host.scip_run(*TREE)
    job.wait_for("ids")
    host.file("go")
    assert job.wait() == 0 and "pass" in job.text()


def test_orphans(host):
    """A job with processes that outlive its first: the console exits with the first, as a shell's would, and nothing is lost."""
    done = host.run(["scip", "run", "--", "sh", "-c", "(sleep 0.7; echo late >late) >/dev/null 2>&1 & exit 4"], check=False)
    assert done.returncode == 4
    host.wait_until(lambda: (host.home / "late").exists(), what="the orphan's work")


@pytest.mark.parametrize("program", ["getpid", "threads", "forks"])
def test_programs_do_as_natively(host, program):
    source = {
        "getpid": "import os; print(os.getpid() == os.getpid(), os.getpgrp() > 0, os.getsid(0) > 0)",
        "threads": """
import threading
total = []
threads = [threading.Thread(target=lambda n=n: total.append(n)) for n in range(100)]
[t.start() for t in threads]; [t.join() for t in threads]
print(sorted(total) == list(range(100)))""",
        "forks": """
import os
for n in range(100):
    if os.fork() == 0:
        os._exit(n)
print(sorted(os.waitstatus_to_exitcode(os.wait()[1]) for n in range(100)) == list(range(100)))""",
    }[program]
    assert set(host.run(["scip", "run", "--", "python3", "-c", source]).stdout.split()) == {"True"}


def test_nested_is_refused_or_works(host):
    """scip within scip: an answer, not a hang."""
    try:
        done = host.run(["scip", "run", "--", "scip", "run", "--", "true"], check=False, timeout=20)
    except subprocess.TimeoutExpired:
        pytest.fail("hangs")
    assert done.returncode == 0 or (done.returncode == 125 and done.stderr)


def test_as_root(root_host):
    done = root_host.run(["scip", "run", "--", "id", "-u"])
    assert done.stdout == "0\n"


BURST = """
import os
answers, answer = os.pipe()
wait, end = os.pipe()
children = []
for _ in range(100):
    pid = os.fork()
    if pid == 0:
        os.close(end)
        os.write(answer, b"x")
        os.read(wait, 1)
        os._exit(0)
    children.append(pid)
got = 0
while got < 100:
    got += len(os.read(answers, 100))
os.close(end)
print("bad", sum(os.waitpid(pid, 0)[1] != 0 for pid in children))
"""


def test_inherited_descriptors(host):
    """Descriptors beyond the standard streams are named at the start; --close-inherited closes them."""
    inner = 'exec 3</dev/null 5>out.txt; exec scip run "$@" -- sh -c "ls /proc/self/fd; exec sleep 60"'
    ends = [os.pipe(), os.pipe()]
    passed = [ends[0][0], ends[1][1]]
    for options, said, kept in (((), f"descriptors {passed[0]} (pipe), {passed[1]} (pipe);", True), (("--close-inherited",), "", False)):
        start = host.popen(["sh", "-c", inner, "sh", "--name", "heir", *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True, pass_fds=passed)
        host.wait_until(lambda: host.pids_of("sleep"), what="the program")
        done = host.run(["pbeamctl", "checkpoint", "heir"], check=False)
        assert (done.returncode == 0) != kept, done.stderr
        host.ctl("kill", "-s", "KILL", "heir")
        out, err = start.communicate(timeout=20)
        assert all((str(fd) in out.split()) == kept for fd in (5, *passed)), out
        assert said in err and (said or err == ""), err
        assert err.count("\n") == kept
    for fd in (*ends[0], *ends[1]):
        os.close(fd)


def switches(pids):
    """Context switches of these processes so far."""
    return sum(int(line.split()[1]) for pid in pids for line in open(f"/proc/{pid}/status") if "ctxt_switches" in line)


def test_an_idle_job_is_small_and_sleeps(host):
    """A keeper and a scip; nothing wakes them. After a burst of processes the spares end."""
    host.detach("sleep", "100", name="idle")
    ours = host.wait_until(lambda: len(own := host.named("scip") + host.named("scip-keeper")) == 2 and own, 5, "a keeper and a scip")

    def asleep():
        before = switches(ours)
        time.sleep(.5)
        return switches(ours) == before

    host.wait_until(asleep, 10, "the start to be over")
    before = switches(ours)
    time.sleep(3)
    assert switches(ours) == before
    host.detach("sh", "-c", "for i in $(seq 40); do sleep 1 & done; wait; exec sleep 100", name="burst")
    host.wait_until(lambda: len(host.named("scip")) > 40, what="the burst")
    host.wait_until(lambda: len(host.named("scip")) == 2, 10, "the spares to end")
    for name in ("idle", "burst"):
        host.ctl("kill", "-s", "KILL", name)


def test_births_on_a_busy_machine(host):
    """More births at once than spare scips on a busy machine: no child is killed for it."""
    loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(8)]
    try:
        for _ in range(3):
            done = host.run(["scip", "run", "--", "python3", "-c", BURST], timeout=60)
            assert done.stdout == "bad 0\n"
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def test_nothing_wakes_the_keeper_of_orphans(host):
    """A job whose first process has ended sleeps until the last process ends, and ends with it at once."""
    vpid, _ = host.detach("sh", "-c", "sleep 600 & sleep 601 & sleep 0.3", name="orphans")
    host.wait_until(lambda: vpid not in host.vpids(), what="the first process to end")
    keeper, = host.named("scip-keeper")

    def switches():
        return int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", pathlib.Path(f"/proc/{keeper}/status").read_text(), re.M)[1])

    def is_still():
        before = switches()
        time.sleep(2)
        return switches() == before

    host.wait_until(is_still, 12, "the keeper to sleep")
    for pid in host.pids_of("sleep"):
        os.kill(pid, signal.SIGKILL)
    host.wait_until(lambda: not host.named("scip-keeper"), 3, "the keeper to end")
    assert not host.vpids()
