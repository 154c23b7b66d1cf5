"""The console: what it shows, where keys go, how it is detached and attached."""
import os
import signal
import time

import pytest
from programs import COUNT, counted, counts

pytestmark = pytest.mark.timeout(60)

SHELL = ["sh", "-c", "while read line; do echo \"got $line\"; [ \"$line\" = end ] && exit 7; done"]


def test_all_output_before_the_end(host):
    """What a program writes just before it exits is shown whole."""
    child = host.terminal(["scip", "run", "--", "sh", "-c", "seq 1 30000; printf last; exit 4"])
    shown = child.read()
    child.wait()
    numbers = [int(word) for word in shown.replace("last", "").split()]
    assert numbers == list(range(1, 30001)) and shown.endswith("last")
    assert child.exitstatus == 4


def test_terminal_is_put_back(host):
    """Whatever happens to the program, the shell's terminal is restored."""
    shell = host.terminal(["bash", "--norc", "-i"])
    shell.sendline("PS1='$ '; before=$(stty -g); scip run -- sh -c 'kill -KILL $$'; scip run -- true; "
                   "[ \"$before\" = \"$(stty -g)\" ] && echo sa''me")
    shell.expect("same")
    shell.sendline("scip run -- sleep 50 & sleep 1; kill -TERM $!; wait $!; echo status $?; [ \"$before\" = \"$(stty -g)\" ] && echo sa''me")
    shell.expect("status 143")
    shell.expect("same")
    shell.sendline("exit")
    shell.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signal_to_the_console_of_a_terminal(host, number):
    child = host.terminal(["scip", "run", "--", "sh", "-c", f"trap 'echo caught; exit 3' {int(number)}; echo ready; while :; do sleep 0.05; done"])
    child.expect("ready")
    child.kill(number)
    child.expect("caught")
    assert child.end() == 3


def test_keys_of_the_terminal(host):
    """Ctrl-C, Ctrl-backslash and Ctrl-D do what they do natively."""
    child = host.terminal(["scip", "run", "--", "cat"])
    child.sendline("hello")
    child.expect("hello")
    child.expect("hello")
    child.sendeof()
    assert child.end() == 0
    child = host.terminal(["scip", "run", "--", "sh", "-c", "echo ready; exec sleep 50"])
    child.expect("ready")
    child.send("\x1c")
    assert child.end() == 128 + signal.SIGQUIT


def test_one_stream_is_a_pipe(host):
    """A pipeline on a terminal: the terminal stays in line mode, input arrives once, Ctrl-C ends all."""
    shell = host.terminal(["bash", "--norc", "-i"])
    shell.sendline("PS1='$ '; scip run -- sh -c 'while read l; do echo \"<$l>\"; done' | cat; echo status ${PIPESTATUS[0]}")
    shell.expect("status \\$")  # the echo of the command itself
    time.sleep(0.5)
    shell.sendline("typed")
    shell.expect("<typed>")
    shell.send("\x03")
    shell.expect("\\$ ")
    for command, answer in (("echo af''ter", "after"), ("scip run -- seq 1 5 | tail -n 1 | sed s/5/fi''ve/", "five"),
                            ("echo piped | scip run -- sed s/piped/thr''ough/", "through")):
        shell.sendline(command)
        shell.expect(answer)
        shell.expect("\\$ ")
    shell.sendline("exit")
    shell.wait()


def test_detach_and_attach(host):
    """Ctrl-] d detaches; output written meanwhile comes first at the next attach; Ctrl-] Ctrl-] is one Ctrl-]."""
    vpid = int(host.run(["scip", "run", "-d", "--name", "talk", "--", "true"]).stdout)
    assert vpid > 0
    first = host.terminal(["scip", "run", "--name", "talk2", "--", *SHELL])
    first.sendline("one")
    first.expect("got one")
    second = host.terminal(["pbeamctl", "attach", "talk2"])
    first.expect("another console")
    assert first.end() == 125
    second.sendline("two")
    second.expect("got two")
    second.send("\x1dd")
    second.expect("detached")
    assert second.end() == 0
    third = host.terminal(["pbeamctl", "attach", "talk2"])
    third.sendline("\x1d\x1dthree")
    third.expect("got \x1dthree")
    third.sendline("end")
    third.expect("got end")
    assert third.end() == 7


def test_backlog(host):
    """Output without a console neither blocks the program nor is lost, up to the limit."""
    child = host.terminal(["scip", "run", "--name", "chatty", "--", "sh", "-c", "echo begin; while [ ! -e go ]; do sleep 0.05; done; seq 1 20000; echo written >done; cat"])
    child.expect("begin")
    child.kill(signal.SIGKILL)
    child.wait()
    host.file("go")
    host.wait_until(lambda: (host.home / "done").exists(), what="the end of writing")
    second = host.terminal(["pbeamctl", "attach", "chatty"])
    second.expect("19999\r\n20000\r\n")
    shown = [int(word) for word in second.before.split() if word.isdigit()]
    assert shown[-1] == 19998 and shown == list(range(shown[0], 19999))
    second.sendline("still here")
    second.expect("still here")
    second.sendeof()
    assert second.end() == 0


def test_detached_on_a_terminal(host):
    """-d on a terminal: the program has a terminal of its own, which can be attached."""
    child = host.terminal(["scip", "run", "-d", "--name", "own", "--", "sh", "-c", "tty; read line; exit 9"])
    child.expect(r"(\d+)\r\n")
    vpid = int(child.match.group(1))
    assert child.end() == 0 and vpid in host.vpids()
    second = host.terminal(["pbeamctl", "attach", str(vpid)])
    second.expect("/dev/pts/")
    assert second.end("") == 9


def test_the_vpid_can_be_captured(host):
    """id=$(scip run -d ...) returns although the program runs on."""
    start = time.monotonic()
    done = host.run(["bash", "-c", "id=$(scip run -d -- sleep 30); pbeamctl kill $id; echo $id"], timeout=20)
    assert int(done.stdout) > 0 and time.monotonic() - start < 15


def test_rollback_on_a_terminal_then_window_size(host):
    """After a rollback the console feeds the new processes and sets their window size."""
    child = host.terminal(["scip", "run", "--name", "sized", "--", "sh", "-c", "echo ready; while read l; do stty size; done; exit 2"], size=(30, 90))
    child.expect("ready")
    host.checkpoint("sized")
    child.setwinsize(41, 121)
    child.sendline("")
    child.expect("41 121")
    for _ in range(3):
        host.rollback("sized")
        child.sendline("")
        child.expect("41 121")
    child.sendeof()
    assert child.end() == 2


def test_terminal_closed(host):
    """The terminal's window is closed: the program goes on and can be attached."""
    child = host.terminal(["scip", "run", "--name", "orphan", "--", *SHELL])
    child.sendline("one")
    child.expect("got one")
    os.close(child.child_fd)
    host.wait_until(lambda: not os.path.exists(f"/proc/{child.pid}/exe") or child.isalive() is False, what="the console's end")
    child.closed = True
    child.ptyproc.closed = True
    second = host.terminal(["pbeamctl", "attach", "orphan"])
    second.sendline("end")
    second.expect("got end")
    assert second.end() == 7


def test_attach_without_a_terminal_of_its_own(host):
    """A job with files as streams: attach waits for its exit and forwards signals."""
    _, out = host.detach(*COUNT, name="count")
    host.wait_until(lambda: counted(out) > 3, what="counting")  # a Python that is starting may lose an interrupt
    child = host.terminal(["pbeamctl", "attach", "count"])
    child.expect("has no terminal")
    child.sendintr()
    child.end()
    assert child.exitstatus in (1, 130)


def test_streams_of_a_job_that_is_started_anew(host):
    """Rollback of a job that has ended: its output file continues."""
    vpid, out = host.detach(*COUNT, name="count")
    host.wait_until(lambda: counted(out) > 3, what="counting")
    host.checkpoint("count", "--kill")
    host.wait_until(lambda: vpid not in host.vpids(), what="its end")
    at = counted(out)
    host.rollback(str(vpid))
    host.wait_until(lambda: counted(out) > at + 3, what="counting on")
    counts(host, out)
    host.ctl("kill", "-s", "KILL", "count")


def test_a_terminal_that_is_started_anew(host):
    """A job that had a terminal gets a new one, which can be attached."""
    child = host.python_prompt()
    host.checkpoint("prompt", "--kill")
    assert child.end() == 137
    host.rollback("prompt")
    second = host.terminal(["pbeamctl", "attach", "prompt"])
    second.sendline("print('x is', x + 1)")
    second.expect("x is 42")
    assert second.end("raise SystemExit(6)") == 6
