"""The laboratory: hosts as network namespaces with a bridge between them.

Each host has its own addresses (10.77.0.1, .2, ...), its own pbeamd, its own runtime and state folders and, where asked, its own files under some
paths. A namespace lives by a process that waits on a pipe of ours, so whatever becomes of the tests nothing is left behind. Root makes the namespaces and
the programs run as an ordinary user; who is not root makes them inside a user namespace, where he is root, and the programs run inside another one, where he is
himself again.

As a program (`make lab`): N hosts in one cluster and a shell on the first; the commands a, b, c ... run theirs on that host.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading

import harness

NAMES = "abcdefghij"
PORT = 7113


class Namespace:
    """A network (and mount, and process number) namespace, held by a process that ends with us."""

    def __init__(self, outer=None, user=False, mount=False, numbers=False, only_user=False):
        enter = outer.enter_argv(net=False) if outer else []
        what = ["--user", f"--map-user={os.getuid()}", f"--map-group={os.getgid()}"] if only_user else ["--net"] + (["--user", "--map-root-user"] if user else []) + (["--mount"] if mount else []) + (["--pid", "--fork", "--mount-proc"] if numbers else [])
        self.outer = outer
        self.user = user
        self.mount = mount or numbers
        self.numbers = numbers
        self.holder = subprocess.Popen([*enter, "unshare", *what, "sh", "-c", "echo ready; exec cat >/dev/null"],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.holder.stdout.readline() != b"ready\n":
            raise RuntimeError("cannot make a network namespace (root, or user namespaces for everyone, are needed)")
        self.pid = self.holder.pid
        if numbers:  # the first process of the new numbers
            self.pid = int(pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text())

    def enter_argv(self, net=True, folder=None):
        """What to put in front of a command to run it inside, in `folder`: who enters a mount namespace is in its root."""
        argv = self.outer.enter_argv(net=False) if self.outer else []
        what = (["--user", "--preserve-credentials"] if self.user else []) + (["--net"] if net else []) + (["--mount"] if self.mount else []) + (["--pid"] if self.numbers else [])
        where = [f"--wdns={folder}"] if folder else []
        return argv + (["nsenter", "-t", str(self.pid), *what, *where, "--"] if what else [])

    def do(self, *words):
        done = subprocess.run([*self.enter_argv(), *words], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
        return done.stdout

    def close(self):
        self.holder.stdin.close()
        self.holder.wait(10)
        self.holder.stdout.close()


class LabHost(harness.Host):
    """One host: a user's world inside its own network."""

    def __init__(self, lab, index, private, numbers):
        super().__init__(lab.stage, lab.user)
        self.lab = lab
        self.index = index
        self.name = NAMES[index]
        self.ip = f"10.77.0.{index + 1}"
        self.space = Namespace(lab.outer, mount=bool(private), numbers=numbers)
        self.daemon = None
        for path in private:
            own = self.files(path)
            own.mkdir(parents=True)
            self.own(own)
            self.space.do("mount", "--bind", str(own), str(path))

    def files(self, path):
        """Where the host's own files under the private `path` are for us."""
        return self.top / "files" / str(path).strip("/").replace("/", "-")

    def as_user(self, argv):
        back = ["nsenter", f"--user={self.lab.inner_name}", "--preserve-credentials", "--"] if self.lab.inner else []
        return [*self.space.enter_argv(folder=self.home), *back, *super().as_user(argv)]

    def start_daemon(self, *options, wait=True):
        """pbeamd in the foreground, its messages in a file; returns when it serves."""
        join = [] if self.index == 0 else ["--join", f"{self.lab.hosts[0].ip}:{PORT}"]
        self.daemon = self.start(["pbeamd", "--listen", f"{self.ip}:{PORT}", *join, "--cluster-key", self.lab.key_of(self),
                                  "--host-name", self.name, *options], f"pbeamd{self.counter + 1}")
        if wait:
            self.wait_until(lambda: "pbeamd: ready" in self.daemon.errors() or self.daemon.process.poll() is not None, 20, "pbeamd to be ready")
            if self.daemon.process.poll() is not None:
                raise AssertionError(f"pbeamd on {self.name} ended: {self.daemon.errors()}")
        return self.daemon

    # ---- what can happen to a network ----

    def expect_loss(self):
        """From now on connections forget how it was when packets were lost: BBR, some machines' default, goes on with that for minutes."""
        self.space.do("sh", "-c", "echo reno > /proc/sys/net/ipv4/tcp_congestion_control")

    def cut(self):
        """No packet comes or goes until mend()."""
        self.drop(100)

    def drop(self, percent):
        """This share of the packets is lost, both ways."""
        self.mend()
        share = "" if percent >= 100 else f"numgen random mod 100 < {percent} "
        for line in ("add table inet lab", "add chain inet lab in { type filter hook input priority 0 ; }", "add chain inet lab out { type filter hook output priority 0 ; }",
                     *(f'add rule inet lab {chain} {side}name "eth0" {share}drop' for chain, side in (("in", "iif"), ("out", "oif")))):
            self.space.do("nft", line)

    def mend(self):
        subprocess.run([*self.space.enter_argv(), "nft", "delete", "table", "inet", "lab"], capture_output=True)


class Lab:
    """`count` hosts, joined by a bridge. `private`: paths under which each host has files of its own. `numbers`: which hosts have process numbers of
    their own, as machines have; tests look at the processes of the others as if they were their own."""

    def __init__(self, stage, count, private=(), numbers=()):
        self.stage = stage
        self.user = harness.ordinary_user()
        self.outer = None if os.getuid() == 0 else Namespace(user=True, mount=True)
        self.inner = Namespace(self.outer, only_user=True) if self.outer else None
        if self.inner:  # by a name, as hosts with numbers of their own do not know its number
            self.inner_name = stage.top / f"user-{self.inner.pid}"
            self.inner_name.touch()
            self.outer.do("mount", "--bind", f"/proc/{self.inner.pid}/ns/user", str(self.inner_name))
        self.switch = Namespace(self.outer)
        self.switch.do("ip", "link", "add", "br0", "type", "bridge")
        self.switch.do("ip", "link", "set", "br0", "up")
        self.hosts = []
        self.key = None
        for index in range(count):
            host = LabHost(self, index, private, index in numbers)
            self.hosts.append(host)
            self.switch.do("ip", "link", "add", f"v{index}", "type", "veth", "peer", "name", "eth0", "netns", str(host.space.pid))
            self.switch.do("ip", "link", "set", f"v{index}", "master", "br0", "up")
            host.space.do("ip", "link", "set", "lo", "up")
            host.space.do("ip", "address", "add", f"{host.ip}/24", "dev", "eth0")
            host.space.do("ip", "link", "set", "eth0", "up")

    def key_of(self, host):
        """The cluster's key, made once, a copy on each host."""
        if self.key is None:
            path = self.hosts[0].home / "made.key"
            self.hosts[0].run(["pbeamd", "--make-key", path])
            self.key = path.read_bytes()
        path = host.home / "cluster.key"
        if not path.exists():
            host.file("cluster.key", self.key)
            path.chmod(0o600)
        return path

    def start(self, *options):
        """A daemon on each host; returns when every host sees all others."""
        for host in self.hosts:
            host.start_daemon(*options)
        for host in self.hosts:
            host.wait_until(lambda host=host: len(self.up(host)) == len(self.hosts), 20, f"all hosts to be up on {host.name}")
        return self

    @staticmethod
    def up(host):
        """Names of the hosts that are up as this one sees it."""
        done = host.ctl("hosts", "--json", check=False)
        rows = json.loads(done.stdout) if done.returncode == 0 else []
        rows = rows.get("hosts", rows) if isinstance(rows, dict) else rows
        return [row["name"] for row in rows if row["state"] in ("up", "here")]

    def where(self, vpid):
        """Name of the host on which the process is, by `ps`; None when there is no such process."""
        for row in self.hosts[0].ps()["processes"]:
            if row["vpid"] == vpid:
                return row["host"]
        return None

    def close(self, strict=True):
        complaints = []
        for host in reversed(self.hosts):
            complaints += [f"{host.name}: {line}" for line in host.close(strict)]
        for space in [host.space for host in self.hosts] + [self.switch] + ([self.inner, self.outer] if self.outer else []):
            space.close()
        if self.inner:
            self.inner_name.unlink()
        return complaints


CLIENT = """#!/usr/bin/python3
import json, os, signal, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect({path!r})
signal.signal(signal.SIGINT, lambda *_: s.send(b"i"))
socket.send_fds(s, [json.dumps([{name!r}, os.getcwd(), sys.argv[1:] or ["bash", "--norc"]]).encode()], [0, 1, 2])
sys.exit(int(s.recv(16) or b"255"))
"""


class Elsewhere:
    """Runs commands on the other hosts for the shell on the first, which has no right to enter them."""

    def __init__(self, lab, tools):
        self.lab = lab
        path = str(tools / "socket")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        os.chmod(path, 0o777)
        for host in lab.hosts:
            script = tools / host.name
            script.write_text(CLIENT.format(path=path, name=host.name))
            script.chmod(0o755)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.serve_one, args=(connection,), daemon=True).start()

    def serve_one(self, connection):
        text, fds, _, _ = socket.recv_fds(connection, 65536, 3)
        name, folder, words = json.loads(text)
        host = self.lab.hosts[NAMES.index(name)]
        child = subprocess.Popen(host.as_user(words), cwd=folder, env=host.env, stdin=fds[0], stdout=fds[1], stderr=fds[2])
        for fd in fds:
            os.close(fd)

        def interrupt():
            while connection.recv(1):
                child.send_signal(signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()
        status = child.wait()
        connection.send(str(128 - status if status < 0 else status).encode())
        connection.shutdown(socket.SHUT_RDWR)


def main():
    parser = argparse.ArgumentParser(description="Hosts to try the cluster on: network namespaces with a bridge, a pbeamd in each.")
    parser.add_argument("--hosts", type=int, default=3, choices=range(1, len(NAMES) + 1), metavar=f"1..{len(NAMES)}")
    parser.add_argument("--command", help="run this by sh on the first host instead of a shell")
    options = parser.parse_args()
    stage = harness.Stage()
    lab = Lab(stage, options.hosts)
    tools = pathlib.Path(tempfile.mkdtemp(prefix="pbeam-lab-"))
    tools.chmod(0o755)
    try:
        lab.start()
        Elsewhere(lab, tools)
        first = lab.hosts[0]
        for host in lab.hosts:
            host.env |= {"PATH": f"{tools}:{host.env['PATH']}", "PS1": f"{host.name} \\w\\$ "}
        print("hosts: " + ", ".join(f"{host.name} ({host.ip})" for host in lab.hosts) + f"\nthe command `{lab.hosts[-1].name} CMD...` runs CMD on {lab.hosts[-1].name}; "
              "`pbeamctl hosts` shows them; the end of this shell ends them all", file=sys.stderr)
        words = ["sh", "-c", options.command] if options.command else ["bash", "--norc"]
        return subprocess.call(first.as_user(words), cwd=first.home, env=first.env)
    finally:
        lab.close(strict=False)
        stage.close()
        shutil.rmtree(tools, ignore_errors=True)


if __name__ == "__main__":
    harness.become_subreaper()
    sys.exit(main())
