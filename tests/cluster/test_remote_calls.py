"""Calls on other processes of a job by number, on any host: group signals, /proc, limits, priorities."""
import errno
import signal

import pytest

import harness

pytestmark = pytest.mark.timeout(120)

# main, and a group of its child: one, its child two, its child three. Each says what it gets. SIGUSR2: main sends the group SIGUSR1, three sends
# SIGUSR1 to its own group; SIGALRM: three sends SIGWINCH to all.
GROUP = """import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
out = os.open('out', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def say(*words): os.write(out, (' '.join(map(str, words)) + '\\n').encode())
def be(name, then=None):
    for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGWINCH): signal.signal(number, lambda n, _: say('got', name, n))
    if then: then()
    say('is', name, os.getpid())
    while True: time.sleep(1)
def three():
    signal.signal(signal.SIGUSR2, lambda *_: os.kill(0, signal.SIGUSR1))
    signal.signal(signal.SIGALRM, lambda *_: os.kill(-1, signal.SIGWINCH))
def two():
    if not os.fork(): be('three', three)
def one():
    if not os.fork(): be('two', two)
pid = os.fork()
if not pid:
    os.setpgid(0, 0)
    be('one', one)
def main():
    def ask(*_):
        try: os.killpg(pid, signal.SIGUSR1)
        except OSError as e: say('failed', e.errno)
    def front(*_):
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.tcsetpgrp(0, pid)
        say('front')
    signal.signal(signal.SIGUSR2, ask)
    signal.signal(signal.SIGALRM, front)
be('main', main)
"""


class Group:
    def __init__(self, hosts, terminal=False):
        self.hosts = hosts
        home = self.home = hosts[0]
        words = ["scip", "run", "--", "python3", "-u", "-c", GROUP]
        self.job = home.terminal(words) if terminal else home.start(words, "group")
        home.wait_until(lambda: len(self.said("is")) == 4, 20, "all four to live")
        self.vpids = {line[1]: int(line[2]) for line in self.said("is")}

    def said(self, word):
        path = self.home.home / "out"
        return [line.split() for line in path.read_text().splitlines() if line.split()[:1] == [word]] if path.exists() else []

    def signal(self, name, who):
        self.home.ctl("kill", "-s", name, self.vpids[who])

    def move(self, who, to, *options):
        self.home.ctl("migrate", *options, self.vpids[who], to.name)

    def expect(self, number, *names):
        """Since the last call each of these got the signal once, and no other process any. A second signal shows that none is under way."""
        want = sorted(["got", name, str(int(number))] for name in names)
        self.home.wait_until(lambda: len(self.said("got")) >= len(want), 10, f"signal {number} for {names}: {self.said('got')}")
        assert sorted(self.said("got")) == want
        for name in self.vpids:
            self.signal("USR1", name)
        self.home.wait_until(lambda: len(self.said("got")) >= len(want) + len(self.vpids), 10, f"the second signals: {self.said('got')}")
        assert sorted(self.said("got")) == sorted(want + [["got", name, str(int(signal.SIGUSR1))] for name in self.vpids])
        (self.home.home / "out").write_text("")

    def end(self):
        if isinstance(self.job, harness.Terminal):
            self.job.send("\x1c")  # SIGQUIT, which they do not handle
        else:
            for name in ("three", "two", "one"):
                self.signal("KILL", name)
        self.home.wait_until(lambda: len(self.home.vpids()) <= 1, 15, "the group to end")
        for host in self.hosts[1:]:
            host.wait_until(lambda host=host: not list((host.runtime / "pbeam" / "job").glob("*")), 15, f"{host.name} to be left")


@pytest.fixture
def three(make_lab):
    return make_lab(3).start().hosts


def test_group_on_three_hosts(three):
    """A group signal, by kill(-pgid), kill(0) and kill(-1), reaches each member once, with or without a local stub."""
    a, b, c = three
    group = Group(three)
    group.move("two", b)  # three goes along and leaves no stub on a
    for there in (b, c):
        if there is c:
            group.move("three", c)
        (a.home / "out").write_text("")
        group.signal("USR2", "main")
        group.expect(signal.SIGUSR1, "one", "two", "three")
        group.signal("USR2", "three")
        group.expect(signal.SIGUSR1, "one", "two", "three")
        group.signal("ALRM", "three")
        group.expect(signal.SIGWINCH, "main", "one", "two")
    group.end()
    group.signal("USR2", "main")
    a.wait_until(lambda: group.said("failed"), what="the group to be nobody's")
    assert group.said("failed") == [["failed", "3"]]  # ESRCH
    group.signal("KILL", "main")
    assert group.job.wait() == 128 + signal.SIGKILL


def test_interrupt_of_group_on_three_hosts(three):
    """Ctrl-C on the console reaches the whole foreground group."""
    a, b, c = three
    group = Group(three, terminal=True)
    group.move("two", b)
    group.move("three", c)
    group.signal("ALRM", "main")
    a.wait_until(lambda: group.said("front"), what="the group to be in the foreground")
    for _ in range(2):
        (a.home / "out").write_text("")
        group.job.sendintr()
        group.expect(signal.SIGINT, "one", "two", "three")
    group.end()
    group.signal("KILL", "main")
    group.job.end()


class Shell:
    """bash under scip on a terminal of host `home`, with a `sleep` child on another host."""

    PROMPT = "ready> "

    def __init__(self, home, there):
        self.home = home
        self.child = home.terminal(["scip", "run", "--name", "shell", "--", "bash", "--norc", "--noprofile"], env={"TERM": "dumb", "SECRET": "words"})
        self.child.sendline("stty -echo")
        self.run("PS1='" + self.PROMPT.rstrip() + "'' '")
        self.run("sleep 1234 &")
        self.vpid = int(self.run("echo $!"))
        home.ctl("migrate", self.vpid, there.name)

    def run(self, line):
        self.child.sendline(line)
        self.child.expect_exact(self.PROMPT)
        return self.child.before.replace("\r", "").strip()


@pytest.fixture
def shell(make_lab):
    hosts = make_lab(2, numbers=(0, 1)).start().hosts
    shell = Shell(*hosts)
    yield shell
    shell.run(f"kill -9 {shell.vpid}; wait")
    assert shell.child.end("exit 3") == 3


def test_proc_of_another_host(shell):
    """ps, pgrep and top in a job show its processes on other hosts as they are there."""
    vpid, run = shell.vpid, shell.run
    assert run(f"cat /proc/{vpid}/comm") == "sleep"
    assert run(f"tr '\\0' ' ' </proc/{vpid}/cmdline") == "sleep 1234"
    assert "SECRET=words" in run(f"tr '\\0' '\\n' </proc/{vpid}/environ")
    me = int(run("echo $$"))
    stat = run(f"cat /proc/{vpid}/stat").split()
    assert [int(stat[0]), stat[1], int(stat[3]), int(stat[4])] == [vpid, "(sleep)", me, vpid]
    status = dict(line.split(":\t", 1) for line in run(f"cat /proc/{vpid}/status").split("\n"))
    assert (status["Pid"], status["PPid"], status["TracerPid"]) == (str(vpid), str(me), "0")
    assert run(f"readlink /proc/{vpid}/exe") == run("readlink -f $(type -P sleep)")
    assert run(f"readlink /proc/{vpid}/cwd") == run("pwd")
    assert "/sleep" in run(f"grep r-xp /proc/{vpid}/maps") and "Max open files" in run(f"cat /proc/{vpid}/limits")
    assert run("pgrep -x sleep") == str(vpid)
    assert run(f"ps -o pid=,ppid=,args= -p {vpid}").split() == [str(vpid), str(me), "sleep", "1234"]
    assert run("ps -e -o pid=,comm= | grep -c sleep") == "1"
    assert f"{vpid} " in run(f"top -b -n1 -p {vpid}")
    assert run("ls -d /proc/[0-9]*").split().count(f"/proc/{vpid}") == 1
    assert "Permission denied" in run(f"ls /proc/{vpid}/fd")
    assert run(f"test -d /proc/{vpid}; echo $?") == "0" and run("test -d /proc/4000000; echo $?") == "1"


def test_limits_and_priorities_of_another_host(shell):
    vpid, run = shell.vpid, shell.run
    assert run(f"prlimit -p {vpid} --nofile=100:200 && prlimit -p {vpid} --nofile --noheadings -o SOFT,HARD").split() == ["100", "200"]
    assert "100" in run(f"grep 'open files' /proc/{vpid}/limits")
    assert run(f"taskset -p 1 {vpid} >/dev/null && taskset -p {vpid}").endswith(": 1")
    assert run(f"chrt -b -p 0 {vpid} && chrt -p {vpid}").split("\n")[0].endswith("SCHED_BATCH")
    assert run(f"renice -n 5 -p {vpid} >/dev/null && ps -o ni= -p {vpid}") == "5"
    assert run(f"ionice -c 3 -p {vpid} && ionice -p {vpid}") == "idle"
    assert "No such process" in run("prlimit -p 4000000 --nofile")


class Prompt:
    """A Python prompt under scip with a child `tree`, whose child is `leaf`."""

    def __init__(self, home):
        self.child = home.terminal(["scip", "run", "--name", "prompt", "--", "python3", "-q"], env={"TERM": "dumb"}, size=(24, 500))
        self.child.expect_exact(">>> ")
        self.run("import ctypes, os, select, signal; libc = ctypes.CDLL(None, use_errno=True)")
        self.run("ready = lambda fd: bool(select.select([fd], [], [], 10)[0])")
        self.run("tree = os.spawnlp(os.P_NOWAIT, 'sh', 'sh', '-c', 'sleep 1234 & echo $! >leaf; wait')")
        home.wait_until(lambda: (home.home / "leaf").exists() and (home.home / "leaf").read_text(), what="the tree to live")
        self.tree, self.leaf = int(self.run("tree")), int((home.home / "leaf").read_text())

    def run(self, line):
        """What it prints."""
        self.child.sendline(line)
        self.child.expect_exact(line)
        self.child.expect_exact(">>> ")
        return self.child.before.replace("\r", "").strip()

    def error(self, line):
        """The result of a function, or -1 and errno of a libc call."""
        return self.run(f"exec('try: print({line}, ctypes.get_errno())\\nexcept OSError as e: print(e.errno)')")


def test_pidfd_of_another_host(make_lab):
    """A pidfd of a process with a stub here works like any other. For others pidfd_open and memory access fail with distinct errors."""
    a, b, c = make_lab(3).start().hosts
    prompt = Prompt(a)
    run = prompt.run
    a.ctl("migrate", prompt.tree, b.name)
    run("child = os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '1234')")
    a.ctl("migrate", int(run("child")), c.name)
    run("fd, second = os.pidfd_open(child), os.pidfd_open(tree)")
    for name, flag, seen in (("STOP", "WSTOPPED", "CLD_STOPPED"), ("CONT", "WCONTINUED", "CLD_CONTINUED")):
        run(f"signal.pidfd_send_signal(fd, signal.SIG{name})")
        assert run(f"os.waitid(os.P_PIDFD, fd, os.{flag}).si_code == os.{seen}") == "True"
    assert run("select.select([fd], [], [], 0)[0]") == "[]"
    run("signal.pidfd_send_signal(fd, signal.SIGKILL)")
    assert run("ready(fd), os.waitid(os.P_PIDFD, fd, os.WEXITED).si_status") == "(True, 9)"

    def reads(vpid):
        return prompt.error(f"libc.process_vm_readv({vpid}, None, 0, None, 0, 0)")

    assert prompt.error(f"os.pidfd_open({prompt.leaf})") == str(errno.EREMOTE)
    assert [reads(vpid) for vpid in ("os.getpid()", prompt.leaf, prompt.tree)] == ["0 0", f"-1 {errno.EPERM}", f"-1 {errno.EPERM}"]
    run("keeper = os.pidfd_open(os.getppid())")
    refused = a.ctl("migrate", "prompt", c.name, check=False)
    assert refused.returncode == 1 and "which does not migrate with it" in refused.stderr
    run("os.close(keeper)")
    a.ctl("migrate", "prompt", c.name)
    assert run("select.select([second], [], [], 0)[0]") == "[]"
    a.ctl("kill", "-s", "KILL", prompt.leaf)
    assert run("ready(second), os.waitid(os.P_PIDFD, second, os.WEXITED).si_status") == "(True, 0)"
    for vpid in (prompt.leaf, prompt.tree):
        a.wait_until(lambda vpid=vpid: prompt.error(f"os.pidfd_open({vpid})") == str(errno.ESRCH), what=f"vpid {vpid} to be nobody")
    assert prompt.child.end("exit(3)") == 3


def test_attach_from_another_host(make_lab):
    """A terminal of any host becomes the console of a job of any other, also if its first process is on a third: size, keys, the detach key and the exit status."""
    a, b, c = make_lab(3).start().hosts
    first = a.terminal(["scip", "run", "--name", "shell", "--", "bash", "--norc", "--noprofile"], env={"TERM": "dumb"})
    first.sendline("echo $((40 + 1)) begun")
    first.expect_exact("41 begun\r\n")
    vpid = a.vpids()[0]

    def attach(host, target):
        console = host.terminal(["pbeamctl", "attach", target], size=(33, 99))
        console.sendline("stty size; echo on $((40 + 2))")
        console.expect_exact("33 99\r\non 42\r\n")
        return console

    console = attach(b, "shell")
    assert "goes on at another console" in first.read() and first.end() == 125
    console.sendline("sed -u s/w/W/")
    console.sendline("words")
    console.expect_exact("Words\r\n")  # so it is there for the signal
    console.sendintr()
    console.expect(r"[$#] ")  # because of the user ids in a user namespace
    console.sendline("echo $((40 + 3)) again")
    console.expect_exact("43 again\r\n")
    console.send("\x1dd")
    console.expect_exact(f"detached; vpid {vpid} goes on")
    assert console.end() == 0
    a.ctl("migrate", "shell", "b")
    console = attach(c, str(vpid))
    taken = attach(b, "shell")
    assert "goes on at another console" in console.read() and console.end() == 125
    assert taken.end("exit 7") == 7
    done = c.terminal(["pbeamctl", "attach", "shell"])
    done.expect_exact("no job of that name")
    assert done.end() == 1
