"""A program under scip is a job of the user's shell: it stops, goes to the background and returns as natively."""
import os
import signal

import pytest

pytestmark = pytest.mark.timeout(60)

PROMPT = "prompt "


@pytest.fixture
def shell(host):
    child = host.terminal(["bash", "--norc", "-i"])
    child.sendline("PS1='pro''mpt '")
    child.expect(PROMPT)
    yield child
    child.end("exit")


def command(shell, line):
    """Types a command and returns the output up to the prompt."""
    shell.sendline(line)
    shell.expect(PROMPT)
    return shell.before


def test_a_program_stops_itself(host, shell):
    """The program sends itself SIGTSTP: its group is not orphaned, so it stops, and the shell sees it."""
    shown = command(shell, "scip run -- sh -c 'echo bef''ore; kill -TSTP $$; echo af''ter; exit 3'; echo status $?")
    assert "before" in shown and "Stopped" in shown and "status 148" in shown and "after" not in shown
    assert "Stopped" in command(shell, "jobs")
    shown = command(shell, "fg; echo status $?")
    assert "after" in shown and "status 3" in shown


def test_in_a_pipeline(host, shell):
    """Its streams are not a terminal: the shell still sees the console stopped."""
    assert "Stopped" in command(shell, "echo typ''ed | scip run -- sh -c 'kill -TSTP $$; cat; exit 4'")
    shown = command(shell, "fg; echo status $?")
    assert "typed" in shown and "status 4" in shown


def test_editor(host, shell):
    """vim stops itself on Ctrl-Z in raw mode; the shell's terminal is as the shell left it, vim's as vim left it."""
    before = command(shell, "stty -g").split()[-1]
    shell.sendline("scip run --name editor -- vim -u NONE -N text")
    shell.expect("\\[New\\]|\"text\"")
    for cycle in range(3):
        shell.send(f"oline {cycle}\x1b\x1a")
        shell.expect("Stopped")
        shell.expect(PROMPT)
        assert command(shell, "stty -g").split()[-1] == before
        if cycle == 1:
            host.checkpoint("editor")
        shell.sendline("fg")
        shell.expect("line 0")
    shell.send(":wq\r")
    shell.expect(PROMPT)
    assert command(shell, "grep line text | tr '\\n' ,").count("line 0,line 1,line 2,") == 1


def test_background(host, shell):
    """Stopped by Ctrl-Z, continued in the background, brought to the foreground and typed into."""
    shell.sendline("scip run --name talk -- cat")
    host.wait_until(lambda: "cat" in host.ctl("ps").stdout, what="cat")
    shell.send("\x1a")
    shell.expect("Stopped")
    shell.expect(PROMPT)
    assert "Running" in command(shell, "bg; sleep 0.2; jobs")
    shell.sendline("fg")
    shell.expect("scip run")
    shell.sendline("hello")
    shell.expect("hello\r\nhello")
    shell.send("\x04")
    shell.expect(PROMPT)


def test_stopped_and_rolled_back(host, shell):
    """The image of a stopped program is stopped again; fg continues it."""
    command(shell, "scip run --name stopper -- sh -c 'kill -TSTP $$; echo af''ter; exit 5'")
    host.checkpoint("stopper")
    for _ in range(3):
        host.rollback("stopper")
        row = [row for row in host.ps()["processes"] if row["name"] == "stopper"][0]
        assert row["state"].startswith("stop"), row
    shown = command(shell, "fg; echo status $?")
    assert "after" in shown and "status 5" in shown


def test_console_killed_on_a_raw_terminal(host):
    """kill -9 of the console: the terminal is restored although the shell (without job control) does not do it."""
    shell = host.terminal(["sh"], env={"PS1": PROMPT, "ENV": ""})
    shell.expect(PROMPT)
    before = command(shell, "stty -g").split()[-1]
    for cycle in range(5):
        shell.sendline(f"scip run --name victim{cycle} -- cat")
        host.wait_until(lambda: f"victim{cycle}" in host.ctl("ps").stdout, what="cat")
        shell.send("x\r")
        shell.expect("x\r\nx")
        console = open(f"/proc/{shell.pid}/task/{shell.pid}/children").read().split()[0]
        os.kill(int(console), signal.SIGKILL)
        shell.expect("Killed")
        shell.expect(PROMPT)
        host.wait_until(lambda: command(shell, "stty -g").split()[-1] == before, what="the terminal to be put back")
        host.ctl("kill", "-s", "KILL", f"victim{cycle}")
    shell.end("exit")


@pytest.mark.skipif(open("/proc/sys/dev/tty/legacy_tiocsti").read() == "0\n", reason="the kernel allows no TIOCSTI")
def test_typed_ahead(shell):
    """Input that the program does not read goes to the shell."""
    shell.sendline("scip run -- sh -c 'read line; echo \"<$line>\"; sleep 0.5'")
    shell.sendline("for the program")
    shell.expect("<for the program>")
    shell.sendline("echo for the sh''ell")
    shell.expect("for the shell\r\n")
    shell.expect(PROMPT)


def test_typed_ahead_of_a_pipeline(shell):
    """The terminal is in line mode: a line at a time."""
    shell.sendline("scip run -- sh -c 'read line; echo \"<$line>\"; read line; echo \"<$line>\"; sleep 0.5' | cat")
    shell.sendline("first")
    shell.sendline("second")
    shell.expect("<first>")
    shell.expect("<second>")
    shell.sendline("echo one; true")
    shell.sendline("echo for the sh''ell")
    shell.expect("for the shell\r\n")
    shell.expect(PROMPT)


def state(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0]


def test_continued_by_others(host):
    """Another process stops and continues the program: the console stops and continues with it, repeatedly, and sees its exit while both are stopped."""
    job = host.scip_run("sh", "-c", "trap 'echo told; exit 5' TERM; echo begun; while :; do sleep .01; done", name="stops")
    job.wait_for("begun")
    for turn in range(20):
        for signals, wanted in (("STOP",), True), (("CONT",), False), (("STOP", "CONT"), False), (("STOP", "CONT", "STOP"), True), (("CONT",), False):
            for number in signals:
                host.ctl("kill", "-s", number, "stops")
            host.wait_until(lambda wanted=wanted: (state(job.process.pid) == "T") == wanted, what=f"the console after {signals}")
            # after STOP, CONT, STOP the console may still be stopped by the first one
            host.wait_until(lambda wanted=wanted: [row["state"] == "stopped" for row in host.ps()["processes"] if not row["parent"]] == [wanted], what=f"the program after {signals}")
            host.wait_until(lambda wanted=wanted: (state(job.process.pid) == "T") == wanted, what=f"the console to stay so after {signals}")
    job.process.terminate()
    assert job.wait() == 5 and "told" in job.text()
    job = host.scip_run("sleep", "1000", name="stops")
    host.wait_until(lambda: [row["state"] for row in host.ps()["processes"]] == ["sleeping"], what="it to run")
    host.ctl("kill", "-s", "STOP", "stops")
    host.wait_until(lambda: state(job.process.pid) == "T", what="the console to stop")
    host.ctl("kill", "-s", "KILL", "stops")
    assert job.wait() == 128 + signal.SIGKILL
