"""A shell on a pseudo-terminal whose other side stays (script, an ssh server, orted): it moves, is typed into, and returns."""
import os
import select
import time

import pytest

# Its first argument says what to run; afterwards each line of its input is a command. What comes from the terminal goes to its output, its answers as lines with @.
KEEPER = """import ast, fcntl, os, pty, select, signal, struct, sys, termios
child, master = pty.fork()
if not child:
    os.environ.update(PS1="$ ", TERM="dumb")
    os.execvp(sys.argv[1], sys.argv[1:])
def say(*words): os.write(1, ("@" + " ".join(map(str, words)) + "\\n").encode())
say("child", child, "/dev/pts/%d" % struct.unpack("i", fcntl.ioctl(master, 0x80045430, bytes(4))))
rest = b""
while True:
    for fd in select.select([0, master], [], [])[0]:
        if fd == master:
            try:
                os.write(1, os.read(master, 65536))
            except OSError:
                say("hangup", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                sys.exit(0)
            continue
        rest += os.read(0, 65536) or sys.exit(1)
        *lines, rest = rest.split(b"\\n")
        for line in lines:
            word, _, text = line.decode().partition(" ")
            if word == "type":
                os.write(master, ast.literal_eval(text))
            elif word == "size":
                fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", *map(int, text.split()), 0, 0))
            elif word == "look":
                mode = termios.tcgetattr(master)
                say("echo" if mode[3] & termios.ECHO else "silent", *struct.unpack("HHHH", fcntl.ioctl(master, termios.TIOCGWINSZ, bytes(8)))[:2])
            elif word == "close":
                os.close(master)
                say("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                sys.exit(0)
"""


class Keeper:
    """KEEPER on a host, and the program that it runs."""

    def __init__(self, host, *command):
        self.job = host.popen(["scip", "run", "--", "python3", "-c", KEEPER, *command], stdin=-1, stdout=-1)
        self.text = self.all = ""
        _, child, self.name = self.answer("child")
        self.child = int(child)

    def until(self, text, seconds=20):
        """Waits for this text, and removes everything up to it."""
        end = time.monotonic() + seconds
        while text not in self.text:
            left = end - time.monotonic()
            assert left > 0 and select.select([self.job.stdout], [], [], left)[0], f"no {text!r} in {self.text!r} of {self.all!r}"
            more = os.read(self.job.stdout.fileno(), 65536).decode(errors="replace")
            assert more, f"the end instead of {text!r} in {self.text!r} of {self.all!r}"
            self.text += more
            self.all = (self.all + more)[-600:]
        before, _, self.text = self.text.partition(text)
        return before

    def answer(self, word):
        self.until(f"@{word}")
        return [word, *self.until("\n").split()]

    def command(self, *words):
        self.job.stdin.write((" ".join(map(str, words)) + "\n").encode())
        self.job.stdin.flush()

    def type(self, text):
        self.command("type", repr(text.encode()))

    def size(self):
        """The window size that the shell sees."""
        self.type("stty size | sed s/^/size=/\n")
        self.until("\nsize=")
        return self.until("\r\n")

    def look(self):
        self.command("look")
        self.until("@")
        return self.until("\n").split()


@pytest.fixture
def three(make_lab):
    return make_lab(3).start().hosts


def test_shell_moves(three):
    """Line editing, echo, signals, settings and the window's size, at home, on two other hosts and at home again."""
    a, b, c = three
    shell = Keeper(a, "bash", "--norc", "--noprofile", "-i")
    shell.until("$ ")
    # Else the kernel drops, after a Ctrl-C, what the shell may have said or read by then on another processor.
    shell.type("stty noflsh; echo set\n")
    shell.until("set\r\n$ ")
    now = a
    for turn, where in enumerate((None, b, c, a, b)):
        if where:
            now.ctl("migrate", str(shell.child), where.name)
            now = where
        shell.type(f"echo one-{turn}; tty; hostname >/dev/null; echo $$\n")
        shell.until(f"\r\none-{turn}\r\n{shell.name}\r\n{shell.child}\r\n$ ")
        shell.type(f"echo wronk\x7fg-{turn}\n")
        shell.until(f"wrong-{turn}\r\n$ ")
        # The keeper may already see echo off while the shell edits the line.
        shell.type("stty -echo; echo si''lent; cat\n")
        shell.until("\nsilent\r\n")
        a.wait_until(lambda: shell.look()[0] == "silent", 10, "the keeper to see that there is no echo")
        shell.type(f"unseen-{turn}\n")
        assert shell.until(f"unseen-{turn}") == ""
        shell.type("\x03")
        shell.until("$ ")
        shell.type("stty echo; echo seen\n")
        shell.until("seen\r\n$ ")
        shell.command("size", 30 + turn, 90)
        a.wait_until(lambda: shell.size() == f"{30 + turn} 90", 10, "the window's size")
        shell.type("sh -c 'echo up; exec sleep 1000'\n")
        shell.until("\nup\r\n")
        shell.type("\x1a")
        shell.until("Stopped")
        shell.until("$ ")
        shell.type("kill -9 %1; sleep .3\n")
        shell.until("Killed")
        shell.type("echo gone\n")
        shell.until("\ngone\r\n$ ")
    shell.type("exit 7\n")
    assert shell.answer("hangup") == ["hangup", "7"]
    assert shell.job.wait(20) == 0


def test_typed_ahead(three):
    """Unread input moves along, an unfinished line too, and is not echoed twice; so does much output. The keeper hangs up."""
    a, b, c = three
    shell = Keeper(a, "bash", "--norc", "--noprofile", "-i")
    shell.until("$ ")
    now = a
    for where in (b, c, a, b):
        go = a.home / f"go-{now.name}"
        shell.type(f"echo up; until [ -e {go} ]; do sleep .05; done; read one; read two; echo got:$one:$two; rm -f {go}\n")
        shell.until("\nup\r\n")
        shell.type("first\nsecx")
        shell.until("first\r\nsecx")
        now.ctl("migrate", str(shell.child), where.name)
        now = where
        shell.type("\x7fond\n")
        shell.until("ond\r\n")
        go.touch()
        assert shell.until("$ ") == "got:first:second\r\n"
        shell.type("seq -f %08g 1 30000; echo e''nd\n")
        assert shell.until("end\r\n$ ").split()[-30000:] == [f"{n:08}" for n in range(1, 30001)]
    shell.command("close")
    assert shell.answer("status") == ["status", "-1"]
    assert shell.job.wait(20) == 0
    a.wait_until(lambda: "terminal" not in a.ctl("hosts").stdout, 10, "the bridge to end")


def test_sides_part(three):
    """A move that would visibly separate the two sides is refused; the keeper takes its shell along to any host."""
    a, b, _ = three
    shell = Keeper(a, "bash", "--norc", "--noprofile", "-i")
    shell.until("$ ")
    keeper = next(row["vpid"] for row in a.ps()["processes"] if row["name"] == "python3")
    refused = a.run(["pbeamctl", "migrate", "--alone", keeper, b.name], check=False)
    assert refused.returncode == 1 and "is the master of a terminal that process" in refused.stderr
    shell.type("sh -c 'echo up; exec sleep 1000'\n")
    shell.until("\nup\r\n")
    child = a.wait_until(lambda: next((row["vpid"] for row in a.ps()["processes"] if row["name"] == "sleep"), None), 10, "the child to run")
    refused = a.run(["pbeamctl", "migrate", child, b.name], check=False)
    assert refused.returncode == 1 and "(bash), which stays, has open too" in refused.stderr
    a.ctl("migrate", str(shell.child), b.name)
    a.ctl("migrate", str(keeper), b.name)
    shell.type("\x03")
    shell.until("$ ")
    shell.type("echo fi''ne\n")
    shell.until("fine\r\n$ ")
    shell.type("exit 5\n")
    assert shell.answer("hangup") == ["hangup", "5"]


def test_typed_while_it_moves(make_lab):
    """Bytes typed while the program stands still edit the line that it took along."""
    lab = make_lab(2)
    a, b = lab.hosts
    fault = a.file("fault")
    a.env["PBEAM_FAULT"] = str(fault)
    lab.start()
    shell = Keeper(a, "bash", "--norc", "--noprofile", "-i")
    shell.until("$ ")
    go = a.home / "go"
    shell.type(f"echo up; until [ -e {go} ]; do sleep .05; done; read one; read two; read three; echo got:$one:$two:$three\n")
    shell.until("\nup\r\n")
    shell.type("first\nsecxx")
    shell.until("first\r\nsecxx")
    fault.write_text("migrate-before-commit:sleep")
    moving = a.start(["pbeamctl", "migrate", str(shell.child), b.name], "moving")
    a.wait_until(lambda: fault.read_text().endswith(":reached"), 20, "the program to stand still")
    shell.type("\x7f\x7fond\nthi")
    shell.until("ond\r\nthi")
    fault.write_text("")
    assert moving.wait(20) == 0
    shell.type("rd\n")
    shell.until("rd\r\n")
    go.touch()
    shell.until("got:first:second:third\r\n$ ")
    shell.type("exit 3\n")
    assert shell.answer("hangup") == ["hangup", "3"]
    assert shell.job.wait(20) == 0
