"""Programs on a terminal: typed into, checkpointed, rolled back, typed into again; attach."""
import signal

import pytest

pytestmark = pytest.mark.timeout(60)


@pytest.mark.short
def test_python_prompt(host):
    child = host.python_prompt()
    host.checkpoint("prompt")
    child.sendline("x = 0")
    child.expect(">>> ")
    host.rollback("prompt")
    child.sendline("print('x is', x + 1)")
    child.expect("x is 42")
    assert child.end("exit()") == 0


def test_attach(host):
    """Another terminal attaches to a job whose console is gone."""
    first = host.python_prompt()
    first.kill(signal.SIGKILL)  # the console only; a terminal that is closed hangs its program up, as natively
    first.wait()
    first.close()
    second = host.terminal(["pbeamctl", "attach", "prompt"])
    second.sendline("print('x is', x + 1)")
    second.expect("x is 42")
    assert second.end("raise SystemExit(6)") == 6


def test_restore_on_another_terminal(host):
    child = host.python_prompt()
    image = host.checkpoint("prompt", "--kill")
    child.end()
    again = host.terminal(["scip", "restore", image])
    again.sendline("print('x is', x + 1)")
    again.expect("x is 42")
    again.end("exit()")


def test_job_control_inside(host):
    """A shell with job control on its own terminal: foreground group and stopped job survive."""
    child = host.terminal(["scip", "run", "--name", "shell", "--", "bash", "--norc", "-i"])
    child.sendline("PS1='pro''mpt '")
    child.expect("prompt ")
    child.sendline("sleep 1000")
    # a terminal throws away what is typed ahead of Ctrl-Z: the command must have been read
    host.wait_until(lambda: "sleep" in host.ctl("ps").stdout, what="sleep")
    child.send("\x1a")
    child.expect("Stopped")
    child.expect("prompt ")
    host.checkpoint("shell")
    host.rollback("shell")
    child.sendline("jobs")
    child.expect("Stopped +sleep 1000")
    child.sendline("fg")
    child.expect("sleep 1000")
    child.send("\x03")
    child.expect("prompt ")
    assert child.end("exit 3") == 3
