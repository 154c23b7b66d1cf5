"""A part of a job is rolled back under its living parent, which must not notice: wait, SIGCHLD, groups, sessions, terminal."""
import os
import re
import time

import pytest
from programs import COUNTER, numbers

pytestmark = pytest.mark.timeout(120)

# Has a counter in a group of its own that has a child, and goes on making children of its own: for each it gets one SIGCHLD that
# tells of it, and one status. It stops when the file "enough" is there; then it ends the counter.
PARENT = """
import os, signal, sys, threading, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
if sys.argv[2] == "threads":
    for _ in range(4):
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
counter = os.fork()
if counter == 0:
    os.setpgid(0, 0)
    below = os.fork()
    if below == 0:
        os.execvp("python3", ["python3", "-c", sys.argv[1], "below"])
    os.execvp("python3", ["python3", "-c", sys.argv[1], "above"])
print("counter", counter, flush=True)
k = 0
while not os.path.exists("enough"):
    k += 1
    child = os.fork()
    if child == 0:
        time.sleep(k % 7 / 1000)
        os._exit(k & 127)
    info = signal.sigtimedwait({signal.SIGCHLD}, 10)
    if info is None or info.si_pid != child:
        print("wrong signal", k, child, info, flush=True)
    pid, status = os.waitpid(-1, 0)
    if (pid, status) != (child, (k & 127) << 8):
        print("wrong status", k, child, pid, status, flush=True)
    if signal.sigtimedwait({signal.SIGCHLD}, 0):
        print("one signal too many", k, flush=True)
    time.sleep(k % 5 / 1000)
os.killpg(counter, 0)
print("group", os.getpgid(counter) == counter, flush=True)
os.kill(counter, signal.SIGTERM)
info = signal.sigtimedwait({signal.SIGCHLD}, 10)
print("ended", info and info.si_pid == counter, os.waitpid(counter, 0) == (counter, signal.SIGTERM), flush=True)
try:
    print("more", os.waitpid(-1, os.WNOHANG), flush=True)
except ChildProcessError:
    print("no more", k > 20, flush=True)
"""


def goes_on(host, path, more=5):
    before = numbers(path)[1]
    host.wait_until(lambda: numbers(path)[1] >= before + more, what=f"{path.name} to go on")


def rows(host):
    return {row["vpid"]: row for row in host.ps()["processes"]}


@pytest.mark.parametrize("how", ["single", "threads"])
def test_under_a_busy_parent(host, how):
    """Ten rollbacks of a process with a child, while its parent forks and waits all the time."""
    above, below = host.file("above"), host.file("below")
    job = host.scip_run("python3", "-c", PARENT, COUNTER, how)
    job.wait_for("counter")
    goes_on(host, above)
    goes_on(host, below)
    vpid = int(job.text().split()[1])
    ids, ids_below = numbers(above)[0], numbers(below)[0]
    assert ids[0] == ids[2] == ids_below[1] == ids_below[2] == vpid
    host.checkpoint(str(vpid))
    for cycle in range(10):
        goes_on(host, above)
        if cycle == 5:
            host.checkpoint(str(vpid))
        host.rollback(str(vpid))
        goes_on(host, above)
        goes_on(host, below)
        assert numbers(above)[0] == ids and numbers(below)[0] == ids_below
        assert rows(host)[vpid]["parent"] == ids[1]
    host.file("enough")
    assert job.wait() == 0
    assert job.lines()[1:] == ["group True", "ended True True", "no more True"], job.text()
    assert not (set(rows(host)) - {ids_below[0]})
    host.ctl("kill", "-s", "KILL", str(ids_below[0]))


def test_parent_in_wait(host):
    """The parent waits all the time and gets the status of the process that replaced the first."""
    above = host.file("above")
    job = host.scip_run("sh", "-c", 'python3 -c "$1" above & wait $!; echo "status $?"', "sh", COUNTER)
    goes_on(host, above)
    ids = numbers(above)[0]
    host.checkpoint(str(ids[0]))
    for _ in range(5):
        host.rollback(str(ids[0]))
        goes_on(host, above)
        assert numbers(above)[0] == ids and job.text() == ""
    host.ctl("kill", "-s", "USR1", str(ids[0]))
    job.wait_for("status 138")
    assert job.wait() == 0


def test_pidfd(host):
    """The parent's pidfd, watched by epoll, is that of the new process."""
    above = host.file("above")
    program = """
import os, select, signal, sys
child = os.fork()
if child == 0:
    os.execvp("python3", ["python3", "-c", sys.argv[1], "above"])
pidfd = os.pidfd_open(child)
second = os.dup(pidfd)
epoll = select.epoll()
epoll.register(pidfd, select.EPOLLIN)
while not os.path.exists("enough"):
    if epoll.poll(0.05):
        print("too early", flush=True)
signal.pidfd_send_signal(second, signal.SIGTERM)
print(epoll.poll(10) == [(pidfd, select.EPOLLIN)], os.waitid(os.P_PIDFD, second, os.WEXITED).si_status, flush=True)
"""
    job = host.scip_run("python3", "-c", program, COUNTER)
    goes_on(host, above)
    vpid = numbers(above)[0][0]
    host.checkpoint(str(vpid))
    for _ in range(3):
        host.rollback(str(vpid))
        goes_on(host, above)
    host.file("enough")
    assert job.wait() == 0 and job.text() == "True 15\n", (job.text(), job.errors())


def test_parts_of_parts(host):
    """A grandchild, then its parent, then the whole job, then the grandchild again."""
    above = host.file("above")
    program = 'sh -c \'python3 -c "$1" above & wait $!; echo inner $?\' sh "$1" & wait $!; echo "outer $?"'
    job = host.scip_run("sh", "-c", program, "sh", COUNTER, name="whole")
    goes_on(host, above)
    ids = numbers(above)[0]
    middle, whole = ids[1], rows(host)[ids[1]]["parent"]
    for target in (ids[0], middle, whole):
        host.checkpoint(str(target))
    for target in (ids[0], middle, whole, ids[0], middle, ids[0], whole, ids[0]):
        host.rollback(str(target))
        goes_on(host, above)
        assert numbers(above)[0] == ids and set(rows(host)) == {ids[0], middle, whole}
    host.ctl("kill", "-s", "TERM", str(ids[0]))
    job.wait_for("inner 143")
    job.wait_for("outer 0")
    assert job.wait() == 0


def test_parent_has_gone(host):
    """An orphan is the keeper's child before and after; the rest of its job does not notice."""
    above, beside = host.file("above"), host.file("beside")
    program = 'sh -c \'python3 -c "$1" above &\' sh "$1"; python3 -c "$1" beside; echo "status $?"'
    job = host.scip_run("sh", "-c", program, "sh", COUNTER)
    goes_on(host, above)
    goes_on(host, beside)
    vpid, other = numbers(above)[0][0], numbers(beside)[0][0]
    host.checkpoint(str(vpid))
    for _ in range(3):
        host.rollback(str(vpid))
        count = above.read_text().count("\n")
        host.wait_until(lambda: above.read_text().count("\n") > count + 5, what="the orphan to go on")
        goes_on(host, beside)
    host.ctl("kill", "-s", "KILL", str(vpid))
    host.ctl("kill", "-s", "TERM", str(other))
    job.wait_for("status 143")
    assert job.wait() == 0


@pytest.mark.parametrize("point", ["restore-made-objects", "restore-made-tree", "restore-before-run", "restore-before-commit"])
@pytest.mark.parametrize("action", ["fail", "kill"])
def test_failure(host, point, action):
    """A rollback that fails midway: parent and child go on and notice nothing."""
    above, fault = host.file("above"), host.file("fault")
    program = 'trap "echo trapped" CHLD; python3 -c "$1" above & wait $!; wait $!; echo "status $?"; sleep 0.1; echo on'
    job = host.scip_run("bash", "-c", program, "bash", COUNTER, env={"PBEAM_FAULT": str(fault)})
    goes_on(host, above)
    vpid = numbers(above)[0][0]
    host.checkpoint(str(vpid))
    fault.write_text(f"{point}:{action}\n")
    done = host.ctl("rollback", str(vpid), check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done
    goes_on(host, above)
    host.ctl("kill", "-s", "TERM", str(vpid))
    job.wait_for("status 143")
    job.wait_for("on\n")
    assert job.wait() == 0 and job.lines()[0] == "trapped", job.text()


def test_refused_before_anything_is_touched(host):
    above = host.file("above")
    job = host.scip_run("sh", "-c", 'python3 -c "$1" above & wait $!; echo "status $?"', "sh", COUNTER)
    goes_on(host, above)
    vpid = numbers(above)[0][0]
    image = host.checkpoint(str(vpid))
    other = host.scip_run("sleep", "100", name="other")
    host.wait_until(lambda: "other" in host.ctl("ps").stdout, what="the other job")
    with open(image, "r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"x" * 50)
    done = host.ctl("rollback", str(vpid), check=False)
    assert done.returncode == 1 and "1.ckpt" in done.stderr, done
    goes_on(host, above)
    host.ctl("kill", "-s", "TERM", str(vpid))
    job.wait_for("status 143")
    host.ctl("kill", "-s", "TERM", "other")
    other.wait()


def test_job_of_a_shell_in_the_job(host):
    """An interactive shell's foreground program, then its stopped one: the terminal goes to the right group."""
    child = host.terminal(["scip", "run", "--name", "shell", "--", "bash", "--norc", "-i"])
    child.sendline("PS1='pro''mpt '")
    child.expect("prompt ")
    child.sendline("python3 -q")
    child.expect(">>> ")
    child.sendline("import os; x = 41; print('pid', os.getpid(), os.getpgrp(), os.tcgetpgrp(0))")
    child.expect(r"pid (\d+) (\d+) (\d+)")
    vpid = child.match.group(1)
    assert child.match.group(2) == child.match.group(3) == vpid
    child.expect(">>> ")
    host.checkpoint(vpid)
    for _ in range(4):
        child.sendline("x = 0")
        child.expect(">>> ")
        host.rollback(vpid)
        child.sendline("x, os.getpid(), os.tcgetpgrp(0)")
        child.expect(rf"\(41, {vpid}, {vpid}\)")
        child.expect(">>> ")
    child.send("\x1a")
    child.expect("Stopped")
    child.expect("prompt ")
    child.sendline("echo he''re; stty -a | grep -o ' -\\?icanon'")
    child.expect("here")
    child.expect("prompt ")
    host.checkpoint(vpid)
    host.rollback(vpid)
    child.sendline("echo still he''re")
    child.expect("still here")
    child.expect("prompt ")
    child.sendline("fg")
    child.expect("python3 -q")
    child.sendline("x + 1, os.tcgetpgrp(0)")
    child.expect(rf"\(42, {vpid}\)")
    child.sendline("raise SystemExit(6)")
    child.expect("prompt ")
    child.sendline("echo status $?")
    child.expect("status 6")
    assert child.end("exit 3") == 3


def test_stopped_while_its_parent_waits_for_that(host):
    """A state changed by the rollback itself is reported: the image's process was stopped."""
    above = host.file("above")
    program = """
import os, signal, subprocess, sys
child = subprocess.Popen(["python3", "-c", sys.argv[1], "above"])
print("child", child.pid, flush=True)
while True:
    pid, status = os.waitpid(child.pid, os.WUNTRACED)
    print("stopped" if os.WIFSTOPPED(status) else "ended", flush=True)
    if not os.WIFSTOPPED(status):
        break
"""
    job = host.scip_run("python3", "-c", program, COUNTER)
    goes_on(host, above)
    vpid = re.search(r"child (\d+)", job.text()).group(1)
    host.ctl("kill", "-s", "STOP", vpid)
    job.wait_for("stopped")
    host.checkpoint(vpid)
    host.ctl("kill", "-s", "CONT", vpid)
    goes_on(host, above)
    host.rollback(vpid)
    host.wait_until(lambda: job.text().count("stopped") == 2, what="the stop to be told")
    time.sleep(0.1)
    host.ctl("kill", "-s", "CONT", vpid)
    goes_on(host, above)
    host.ctl("kill", "-s", "KILL", vpid)
    job.wait_for("ended")
    assert job.wait() == 0
