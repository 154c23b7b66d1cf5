"""What other programs choose (names, paths, arguments) never makes a terminal obey."""
import re
import shutil

import pexpect
import pytest

pytestmark = pytest.mark.timeout(60)
# Sets the title, changes the colour; CSI also as a C1 control in UTF-8; a direction control.
EVIL = "e\x1b]0;t\x07\u009b31m\x1b[7m\u202ex"
OBEYED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e]")


def shown(host, *argv):
    """All that a command writes to a terminal."""
    child = host.terminal(argv, env={"NO_COLOR": "1"}, size=(40, 400))
    child.expect(pexpect.EOF, timeout=30)
    child.close()
    return child.before.replace("\x1b[K", "")  # the progress of a checkpoint


@pytest.fixture
def evil(host):
    path = host.home / EVIL
    shutil.copy("/usr/bin/sleep", path)
    path.chmod(0o755)
    return path


def test_program_name(host, evil):
    done = host.run(["scip", "run", "-d", "--name", "evil", "--", evil, "600"])
    vpid = done.stdout.strip()
    image = host.checkpoint("evil")
    copy = image.with_name(EVIL + ".ckpt")
    shutil.copy(image, copy)
    host.own(copy)
    seen = ""
    for argv in (("pbeamctl", "ps"), ("pbeamctl", "stack", "evil"), ("pbeamctl", "hosts"), ("pbeamctl", "log", "evil"),
                 ("pbeamctl", "checkpoint", "evil"), ("pbeamctl", "rollback", "--dry-run", "evil"), ("pbeamctl", "rollback", "evil"),
                 ("pbeamctl", "doctor"), ("pbeamctl", "doctor", copy), ("pbeamctl", "image", "show", copy), ("pbeamctl", "image", "verify", copy),
                 ("pbeamctl", "stack", copy), ("pbeamctl", "stack", EVIL), ("pbeamctl", "checkpoint", EVIL), ("pbeamctl", EVIL), ("pbeamctl", "ps", EVIL),
                 ("pbeamctl", "kill", "-s", EVIL, vpid), ("pbeamctl", "rollback", "--to", EVIL, "evil"), ("pbeamctl", "attach", EVIL), ("pbeamd", EVIL),
                 ("scip", "run", "--name", EVIL, "--", "true"), ("scip", "run", "--", host.home / (EVIL + "-missing")), ("scip", "restore", "--check", copy),
                 ("scip", "restore", host.home / (EVIL + "-missing"))):
        text = shown(host, *argv)
        assert not OBEYED.search(text), (argv, text)
        seen += text
    assert "e\\x1b]0;t\\x07" in seen
    host.ctl("kill", "-s", "KILL", "evil")
    assert not OBEYED.search(host.log())
