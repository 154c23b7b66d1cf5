"""PVM 3.4.6 over the hosts of a laboratory: a daemon on each, started by the first through a remote shell."""
import pathlib
import subprocess

import remote_shell

HERE = pathlib.Path(__file__).resolve().parent


class Machine:
    """The virtual machine; `prefix` goes in front of each of its programs."""

    def __init__(self, lab, prefix, hosts=None):
        self.lab = lab
        self.hosts = hosts or lab.hosts
        self.prefix = prefix
        target = lab.stage.flavours
        subprocess.run(["cc", "-O2", HERE / "programs" / "ring_pvm.c", "-lpvm3", "-o", target / "ring_pvm"], check=True)
        self.first = lab.hosts[0]
        self.shells = remote_shell.Shells(lab, prefix, self.env)
        names = "".join(f"{host.ip} ep={target}{' dx=/usr/bin/pvmd' if host is not self.first else ''}\n" for host in self.hosts)
        self.environment = self.env(self.first, self.shells.path)
        self.daemon = self.first.start([*prefix, "pvmd", f"-n{self.first.ip}", self.first.file("hostfile", names)], "pvmd", env=self.environment)
        self.first.wait_until(self.whole, 30, "all hosts of the virtual machine")

    @staticmethod
    def env(host, shell):
        return {"PVM_ROOT": "/usr/lib/pvm3", "PVM_ARCH": "LINUX64", "PVM_RSH": str(shell), "PVM_TMP": str(host.home)}

    def console(self, *lines):
        done = self.first.run(["pvm"], env=self.environment, stdin="\n".join([*lines, "quit", ""]), check=False, timeout=30)
        return done.stdout

    def whole(self):
        """The daemon has reported its address, and all hosts have joined."""
        return "pvmtmp" in self.daemon.text() and f"{len(self.hosts)} hosts" in self.console("conf")

    def ring(self, rounds, tasks, pause=0):
        return self.first.start([*self.prefix, self.lab.stage.flavours / "ring_pvm", str(rounds), str(tasks), str(pause)], "ring", env=self.environment)

    def halt(self):
        self.first.run(["pvm"], env=self.environment, stdin="halt\n", check=False, timeout=30)
        self.daemon.process.wait(20)
        self.shells.end()
