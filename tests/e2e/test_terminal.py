"""Programs on a terminal: typed into, checkpointed, rolled back, typed into again; attach."""
import signal

import pexpect
import pytest

pytestmark = pytest.mark.timeout(60)


@pytest.mark.short
def test_python_prompt(host):
    child = host.terminal(["scip", "run", "--name", "prompt", "--", "python3", "-q"])
    child.expect(">>> ")
    child.sendline("x = 41")
    child.expect(">>> ")
    host.checkpoint("prompt")
    child.sendline("x = 0")
    child.expect(">>> ")
    host.rollback("prompt")
    child.sendline("print('x is', x + 1)")
    child.expect("x is 42")
    child.sendline("exit()")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0


def test_attach(host):
    """A job whose console went away is taken up by another terminal."""
    first = host.terminal(["scip", "run", "--name", "prompt", "--", "python3", "-q"])
    first.expect(">>> ")
    first.sendline("x = 41")
    first.expect(">>> ")
    first.kill(signal.SIGKILL)  # the console only; a terminal that is closed hangs its program up, as natively
    first.wait()
    first.close()
    second = host.terminal(["pbeamctl", "attach", "prompt"])
    second.sendline("print('x is', x + 1)")
    second.expect("x is 42")
    second.sendline("raise SystemExit(6)")
    second.expect(pexpect.EOF)
    second.wait()
    assert second.exitstatus == 6


def test_restore_on_another_terminal(host):
    child = host.terminal(["scip", "run", "--name", "prompt", "--", "python3", "-q"])
    child.expect(">>> ")
    child.sendline("x = 41")
    child.expect(">>> ")
    image = host.checkpoint("prompt", "--kill")
    child.expect(pexpect.EOF)
    child.wait()
    again = host.terminal(["scip", "restore", image])
    again.sendline("print('x is', x + 1)")
    again.expect("x is 42")
    again.sendline("exit()")
    again.expect(pexpect.EOF)
    again.wait()


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
    child.sendline("exit 3")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 3
