"""Hosts as network namespaces with a bridge between them.

Each host has its own address (10.77.0.1, .2, ...), its own pbeamd, its own runtime and state directories and, on request, files of its own below some
paths. A process that reads a pipe of ours holds each namespace, so that nothing is left behind however we end. Root makes the namespaces, and the programs
run as an ordinary user. Another user makes them inside a user namespace, in which that user is root; the programs run in a second user namespace, in
which the user has the own number again.
"""
import json
import os
import pathlib
import subprocess

from lab import host as world

NAMES = "abcdefghij"
PORT = 7113


class Namespace:
    """A network (and mount, and pid) namespace, held by a process that exits with us."""

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
            raise RuntimeError("cannot make a network namespace: run as root, or allow user namespaces (sysctl user.max_user_namespaces)")
        self.pid = self.holder.pid
        if numbers:  # the init of the new pid namespace
            self.pid = int(pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text())

    def enter_argv(self, net=True, folder=None):
        """The prefix of a command that runs inside, in `folder`: entering a mount namespace changes the directory to its root."""
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


class LabHost(world.Host):
    """One host: a user inside a network namespace."""

    def __init__(self, lab, index, private, numbers):
        super().__init__(lab.stage, lab.user)
        self.lab = lab
        self.index = index
        self.name = NAMES[index]
        self.ip = f"10.77.0.{index + 1}"
        self.address = f"{self.ip}:{PORT}"  # where its pbeamd listens
        self.space = Namespace(lab.outer, mount=bool(private), numbers=numbers)
        self.daemon = None
        for path in private:
            own = self.files(path)
            own.mkdir(parents=True)
            self.own(own)
            self.space.do("mount", "--bind", str(own), str(path))

    def files(self, path):
        """Our path of the host's own files below the private `path`."""
        return self.top / "files" / str(path).strip("/").replace("/", "-")

    def as_user(self, argv):
        back = ["nsenter", f"--user={self.lab.inner_name}", "--preserve-credentials", "--"] if self.lab.inner else []
        return [*self.space.enter_argv(folder=self.home), *back, *super().as_user(argv)]

    def start_daemon(self, *options, wait=True):
        """Starts pbeamd in the foreground, its messages in a file. Returns once it serves."""
        join = [] if self.index == 0 else ["--join", self.lab.hosts[0].address]
        self.daemon = self.start(["pbeamd", "--listen", self.address, *join, "--cluster-key", self.lab.key_of(self),
                                  "--host-name", self.name, *options], f"pbeamd{self.counter + 1}")
        if wait:
            self.wait_until(lambda: "pbeamd: ready" in self.daemon.errors() or self.daemon.process.poll() is not None, 20, "pbeamd to be ready")
            if self.daemon.process.poll() is not None:
                raise AssertionError(f"pbeamd on {self.name} ended: {self.daemon.errors()}")
        return self.daemon

    # ---- network faults ----

    def expect_loss(self):
        """Uses Reno from now on. BBR, the default of some machines, stays slow for minutes after a loss."""
        self.space.do("sh", "-c", "echo reno > /proc/sys/net/ipv4/tcp_congestion_control")

    def cut(self):
        """Drops all packets until mend()."""
        self.drop(100)

    def drop(self, percent):
        """Drops this share of the packets, in both directions."""
        self.mend()
        share = "" if percent >= 100 else f"numgen random mod 100 < {percent} "
        for line in ("add table inet lab", "add chain inet lab in { type filter hook input priority 0 ; }", "add chain inet lab out { type filter hook output priority 0 ; }",
                     *(f'add rule inet lab {chain} {side}name "eth0" {share}drop' for chain, side in (("in", "iif"), ("out", "oif")))):
            self.space.do("nft", line)

    def mend(self):
        subprocess.run([*self.space.enter_argv(), "nft", "delete", "table", "inet", "lab"], capture_output=True)


class Lab:
    """`count` hosts, joined by a bridge. `private`: paths below which each host has its own files. `numbers`: the hosts (by index) with a pid
    namespace of their own, as machines have; the processes of the other hosts are visible to the caller."""

    host_class = LabHost

    def __init__(self, stage, count, private=(), numbers=()):
        self.stage = stage
        self.user = world.ordinary_user()
        self.outer = None if os.getuid() == 0 else Namespace(user=True, mount=True)
        self.inner = Namespace(self.outer, only_user=True) if self.outer else None
        if self.inner:  # by a path: in another pid namespace its number means nothing
            self.inner_name = stage.top / f"user-{self.inner.pid}"
            self.inner_name.touch()
            self.outer.do("mount", "--bind", f"/proc/{self.inner.pid}/ns/user", str(self.inner_name))
        self.switch = Namespace(self.outer)
        self.switch.do("ip", "link", "add", "br0", "type", "bridge")
        self.switch.do("ip", "link", "set", "br0", "up")
        self.hosts = []
        self.key = None
        for index in range(count):
            host = self.host_class(self, index, private, index in numbers)
            self.hosts.append(host)
            self.switch.do("ip", "link", "add", f"v{index}", "type", "veth", "peer", "name", "eth0", "netns", str(host.space.pid))
            self.switch.do("ip", "link", "set", f"v{index}", "master", "br0", "up")
            host.space.do("ip", "link", "set", "lo", "up")
            host.space.do("ip", "address", "add", f"{host.ip}/24", "dev", "eth0")
            host.space.do("ip", "link", "set", "eth0", "up")

    def key_of(self, host):
        """The path of the host's copy of the cluster's key, which is made once."""
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
        """Starts a daemon on each host. Returns once every host sees all others."""
        for host in self.hosts:
            host.start_daemon(*options)
        for host in self.hosts:
            host.wait_until(lambda host=host: len(self.up(host)) == len(self.hosts), 20, f"all hosts to be up on {host.name}")
        return self

    @staticmethod
    def up(host):
        """The names of the hosts that are up as seen from `host`."""
        done = host.ctl("hosts", "--json", check=False)
        rows = json.loads(done.stdout) if done.returncode == 0 else []
        rows = rows.get("hosts", rows) if isinstance(rows, dict) else rows
        return [row["name"] for row in rows if row["state"] in ("up", "here")]

    def where(self, vpid):
        """The host of the process according to `ps`; None if there is no such process."""
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
