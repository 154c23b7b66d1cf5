"""The tests' hosts: the laboratory's, with pseudo-terminals and test programs."""
import os
import shutil
import sys

import pexpect

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import host as base  # noqa: E402
from lab import network  # noqa: E402
from lab.host import BUILD, ROOT, Job, become_subreaper, comm, ordinary_user, reap_orphans  # noqa: E402

__all__ = ["BUILD", "ROOT", "Host", "Job", "Lab", "Stage", "become_subreaper", "comm", "ordinary_user", "reap_orphans"]


class Stage(base.Stage):
    """The installed programs and the test programs."""

    def __init__(self):
        super().__init__()
        self.cases = self.top / "cases"
        self.cases.mkdir()
        for path in sorted((BUILD / "tests" / "cases").glob("*")):
            if path.is_file() and os.access(path, os.X_OK):
                shutil.copy(path, self.cases)
                (self.cases / path.name).chmod(0o755)
        self.cluster = self.top / "cluster"
        self.cluster.mkdir()
        for path in [*(BUILD / "tests" / "cluster").glob("*"), BUILD / "tests" / "tools" / "swap_in_place"]:
            if path.is_file() and os.access(path, os.X_OK):
                shutil.copy(path, self.cluster)
                (self.cluster / path.name).chmod(0o755)
        self.tools = self.top / "tools"
        self.tools.mkdir()
        for name in ("channel", "fail_call", "registry", "split_image", "other_vdso", "hold_table"):
            shutil.copy(BUILD / "tests" / "tools" / name, self.tools)
        self.build = BUILD / "tests" / "flavours"
        self.flavours = self.top / "flavours"
        self.flavours.mkdir()


class Terminal(pexpect.spawn):
    """A command on a pseudo-terminal."""

    def end(self, last=None):
        """Types the last line, if any, and waits for the end. Returns the exit status as a shell shows it."""
        if last is not None:
            self.sendline(last)
        self.expect(pexpect.EOF)
        self.wait()
        self.close()
        return self.exitstatus if self.signalstatus is None else 128 + self.signalstatus


class Terminals:
    """Mixin: commands on pseudo-terminals."""

    def terminal(self, argv, env=None, timeout=20, size=(24, 80)):
        """Starts a command on a pseudo-terminal: a Terminal."""
        self.history.append("terminal: " + " ".join(str(word) for word in argv))
        words = self.as_user(argv)
        with base.starting:
            child = Terminal(words[0], words[1:], cwd=str(self.home), env={**self.env, **(env or {})}, encoding="utf-8",
                             codec_errors="replace", timeout=timeout, dimensions=size)
            base.wait_for(child.pid)
        child.delaybeforesend = None
        self.children.append(child)
        return child

    def python_prompt(self, *options):
        """Starts a Python prompt under scip on a terminal, in a job named "prompt", with x = 41."""
        child = self.terminal(["scip", "run", "--name", "prompt", *options, "--", "python3", "-q"])
        child.expect(">>> ")
        child.sendline("x = 41")
        child.expect(">>> ")
        return child

    def close(self, strict=True):
        for child in self.children:
            if isinstance(child, pexpect.spawn):
                child.close(force=True)
        return super().close(strict)


class Host(Terminals, base.Host):
    """One user on this machine."""


class LabHost(Terminals, network.LabHost):
    """One host of a laboratory."""


class Lab(network.Lab):
    """A laboratory of hosts with pseudo-terminals."""

    host_class = LabHost
