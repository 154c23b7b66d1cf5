"""Transport addresses keep the meaning of their birth, wherever their sockets are."""
import re
import time

import pytest

pytestmark = pytest.mark.timeout(120)

# Prints the caller's address and the name that it used, and echoes.
SERVER = """
import socket, sys, threading
s = socket.create_server((sys.argv[1], int(sys.argv[2])))
tell = lambda *words: print(*words, flush=True)
name = lambda a: f"{a[0]}:{a[1]}"
tell("ready", name(s.getsockname()))
def serve(c):
    with c:
        while data := c.recv(1000):
            if data == b"names\\n":
                data = f"{name(s.getsockname())} {name(c.getsockname())} {name(c.getpeername())}\\n".encode()
            c.sendall(data)
while True:
    c, peer = s.accept()
    tell("from", name(peer), name(c.getpeername()), "to", name(c.getsockname()))
    threading.Thread(target=serve, args=(c,), daemon=True).start()
"""
# Connects for each line "call", prints the names and the echo; "quit" ends it.
CLIENT = """
import socket, sys
name = lambda a: f"{a[0]}:{a[1]}"
kept = []
for line in sys.stdin:
    word = line.split()[0]
    if word == "call":
        c = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20)
        kept.append(c)
    c = kept[0] if word == "first" else kept[-1]
    c.sendall(b"names\\n")
    print(name(c.getsockname()), name(c.getpeername()), c.recv(1000).decode().strip(), flush=True)
"""


@pytest.fixture
def three(make_lab):
    return make_lab(3).start()


def entries(host):
    """The address entries of the registry."""
    done = host.run([host.stage.tools / "registry", "list", "address/"])
    return re.findall(r"^address/(\S+)", done.stdout, re.M)


class Talk:
    """A program that answers each line with a line."""

    def __init__(self, host, *argv, name=None):
        self.process = host.popen(["scip", "run", *(["--name", name] if name else []), "--", "python3", "-c", *argv], stdin=-1, stdout=-1, text=True)

    def __call__(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(20) == 0


def check_names(said, name, own=None):
    """Checks the addresses that both ends report for one connection."""
    client, peer, listener, accepted, caller = said
    assert peer == accepted == name, said
    assert client == caller, said
    assert own is None or listener == own, said


@pytest.mark.parametrize("bound", ["10.77.0.1", "0.0.0.0"])
def test_listener_moves(three, bound):
    a, b, c = three.hosts
    server = a.scip_run("python3", "-c", SERVER, bound, "5000", name="server")
    server.wait_for("ready")
    name = f"{a.ip}:5000"
    clients = [Talk(host, CLIENT, a.ip, "5000") for host in three.hosts]
    for client in clients:
        check_names(client("call"), name, f"{bound}:5000")
    at = a
    for to in (b, c, a, b):
        at.ctl("migrate", "server", to.name)
        at = to
        for host, client in zip(three.hosts, clients):
            check_names(client("first"), name, f"{bound}:5000")
            check_names(client("call"), name, f"{bound}:5000")
        assert entries(a) == ["tcp/" + (name if bound == a.ip else "0.0.0.0:5000@a")]
    # each is called directly: no connection of theirs goes through the host that was left
    a.wait_until(lambda: "2 connections" not in a.ctl("hosts").stdout, 10, "only the listener to depend on a")
    for client in clients:
        client.end()
    at.ctl("kill", "server")
    server.wait()
    a.wait_until(lambda: not entries(a), 20, "the registry to be empty")


# Serves each caller its own name; "again" closes the listening socket and binds it anew.
REBINDER = """
import socket, sys
host, port, word = sys.argv[1], int(sys.argv[2]), sys.argv[3]
name = lambda a: f"{a[0]}:{a[1]}"
s = socket.create_server((host, port))
print("ready", flush=True)
while True:
    c, peer = s.accept()
    data = c.recv(100)
    if data == b"again":
        s.close()
        s = socket.create_server((host, port))
    c.sendall(f"{word} {name(s.getsockname())} {name(c.getsockname())}".encode())
    c.close()
"""
ASK = """
import socket, sys
c = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20)
c.sendall(sys.argv[3].encode())
print(c.recv(1000).decode(), *("%s:%d" % c.getpeername()[:2],), flush=True)
"""


def ask(host, *words, check=True):
    return host.run(["scip", "run", "--", "python3", "-c", ASK, *map(str, words)], check=check).stdout.split()


@pytest.mark.parametrize("wild", [False, True])
def test_two_on_one_port(three, wild):
    """Servers on the same port, born on two hosts, meet on a third where another program has that port."""
    a, b, c = three.hosts
    for host in three.hosts:
        bound = "0.0.0.0" if wild else host.ip
        host.scip_run("python3", "-c", REBINDER, bound, "5000", host.name, name=f"server-{host.name}").wait_for("ready")
    for host in (a, b):
        host.ctl("migrate", f"server-{host.name}", "c")
    for host in three.hosts:
        for server in three.hosts:
            bound = "0.0.0.0" if wild else server.ip
            name = f"{server.ip}:5000"
            assert ask(host, server.ip, 5000, "names") == [server.name, f"{bound}:5000", name, name]
    assert sorted(entries(a)) == sorted(f"tcp/0.0.0.0:5000@{host.name}" if wild else f"tcp/{host.ip}:5000" for host in (a, b))
    for host in three.hosts:
        c.ctl("kill", f"server-{host.name}")
    a.wait_until(lambda: not entries(a), 20, "the registry to be empty")


@pytest.mark.parametrize("wild", [False, True])
def test_bound_again_elsewhere(three, wild):
    a, b, c = three.hosts
    bound = "0.0.0.0" if wild else a.ip
    a.scip_run("python3", "-c", REBINDER, bound, "5000", "x", name="server").wait_for("ready")
    name = f"{a.ip}:5000"
    said = ["x", f"{bound}:5000", name, name]
    at = a
    for to in (b, c):
        at.ctl("migrate", "server", to.name)
        at = to
        assert ask(c, a.ip, 5000, "again") == said
        for host in three.hosts:
            assert ask(host, a.ip, 5000, "names") == said
    # a name that is in use is refused where it was born too
    other = a.run(["scip", "run", "--", "python3", "-c", REBINDER, bound, "5000", "y"], check=False)
    assert "Address already in use" in other.stderr
    c.ctl("migrate", "server", "a")
    for word in ("names", "again", "names"):
        assert ask(b, a.ip, 5000, word) == said
    a.ctl("kill", "server")
    a.wait_until(lambda: not entries(a), 20, "the registry to be empty")
    a.scip_run("python3", "-c", REBINDER, bound, "5000", "z", name="next").wait_for("ready")
    assert ask(b, a.ip, 5000, "names")[0] == "z"
    a.ctl("kill", "next")


# Answers each datagram with who it came from, its own name and what it says; reads nothing before the file "go" is there.
DATAGRAMS = """
import os, socket, sys, time
name = lambda a: f"{a[0]}:{a[1]}"
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
while len(sys.argv) > 3 and not os.path.exists(sys.argv[3]):
    time.sleep(0.05)
message = sys.argv[4:] == ["message"]
while True:
    if message:
        data, _, _, peer = s.recvmsg(1000)
    else:
        data, peer = s.recvfrom(1000)
    print("from", name(peer), data.decode(), flush=True)
    answer = f"{name(peer)} {name(s.getsockname())} {data.decode()}".encode()
    s.sendmsg([answer], [], 0, peer) if message else s.sendto(answer, peer)
"""
# Sends each line, says its own name, who answers and what.
ASKER = """
import socket, sys
name = lambda a: f"{a[0]}:{a[1]}"
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(20)
if len(sys.argv) > 3:
    s.bind((sys.argv[3], int(sys.argv[4])))
for line in sys.stdin:
    s.sendto(line.strip().encode(), (sys.argv[1], int(sys.argv[2])))
    data, peer = s.recvfrom(1000)
    print(name(s.getsockname()), name(peer), data.decode(), flush=True)
"""


@pytest.mark.parametrize("bound, how", [("10.77.0.1", "recvfrom"), ("0.0.0.0", "message")])
def test_datagrams(three, bound, how):
    """A server and a client that move, clients that stay, one outside: all use, and are known by, the addresses of their birth."""
    a, b, c = three.hosts
    a.file("go")
    server = a.scip_run("python3", "-c", DATAGRAMS, bound, "5000", a.home / "go", how, name="server")
    server.wait_for("ready")
    name = f"{a.ip}:5000"
    clients = [Talk(host, ASKER, a.ip, "5000", host.ip, "6000", name=f"client-{host.name}") for host in three.hosts]
    outside = c.popen(["python3", "-c", ASKER, a.ip, "5000"], stdin=-1, stdout=-1, text=True)

    def check():
        for host, client in zip(three.hosts, clients):
            own = f"{host.ip}:6000"
            assert client("hello") == [own, name, own, f"{bound}:5000", "hello"]
        outside.stdin.write("out\n")
        outside.stdin.flush()
        _, peer, seen, at, said = outside.stdout.readline().split()
        assert (peer, at, said) == (name, f"{bound}:5000", "out") and seen.startswith(c.ip)

    check()
    at = a
    for to in (b, c, a, c):
        at.ctl("migrate", "server", to.name)
        at = to
        check()
    for now, to in ((b, a), (a, c)):
        now.ctl("migrate", "client-b", to.name)
        check()
    outside.stdin.close()
    outside.wait(10)
    for client in clients:
        client.end()
    at.ctl("kill", "server")
    server.wait()
    a.wait_until(lambda: not entries(a), 20, "the registry to be empty")


def test_datagrams_that_wait(three):
    """Queued datagrams move along; those sent to the old address while the program stands still arrive too."""
    a, b, c = three.hosts
    server = a.scip_run("python3", "-c", DATAGRAMS, a.ip, "5000", "go", name="server")
    server.wait_for("ready")
    sender = Talk(b, "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.77.0.2', 6000))\n"
                  "for line in sys.stdin: s.sendto(line.strip().encode(), ('10.77.0.1', 5000)); print('sent', flush=True)")
    n = 0
    at = a
    for to in (b, c, a, None):
        for _ in range(10):
            sender(str(n))
            n += 1
        if to:
            time.sleep(n % 3 / 10)  # some have arrived at the new place by then, some have not
            at.ctl("migrate", "server", to.name)
            at = to
    for host in three.hosts:
        host.file("go")
    server.wait_for(f"from {b.ip}:6000 {n - 1}")
    assert sorted(int(line.split()[2]) for line in server.lines() if line.startswith(f"from {b.ip}:6000")) == list(range(n))
    sender.end()
    at.ctl("kill", "server")
    server.wait()


def test_rolled_back_elsewhere(three):
    """A listening socket that has moved is found after a rollback, however long the rollback takes."""
    a, b, c = three.hosts
    a.scip_run("python3", "-c", REBINDER, a.ip, "5000", "x", name="server").wait_for("ready")
    a.ctl("migrate", "server", "b")
    name = f"{a.ip}:5000"
    image = b.checkpoint("server", "-o", b.home / "image", "--kill")
    a.wait_until(lambda: not entries(a), 20, "the registry to be empty")
    b.start(["scip", "restore", image], "restored")
    b.wait_until(lambda: entries(a) == [f"tcp/{name}"], 20, "the name to be there again")
    for host in three.hosts:
        assert ask(host, a.ip, 5000, "names") == ["x", name, name, name]
    b.ctl("kill", "server")


LATE = """
import os, socket, sys, time
name = lambda a: f"{a[0]}:{a[1]}"
s = socket.create_server((sys.argv[1], 5000))
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
while True:
    c, peer = s.accept()
    c.sendall(f"{name(peer)} {name(c.getpeername())} {name(c.getsockname())} ".encode() + c.recv(1000))
    c.close()
"""
WAITER = """
import socket, sys
name = lambda a: f"{a[0]}:{a[1]}"
c = socket.create_connection((sys.argv[1], 5000), timeout=60)
c.sendall(b"early")
print(name(c.getsockname()), name(c.getpeername()), flush=True)
print(c.makefile().read(), flush=True)
"""


def test_callers_that_wait(three):
    """A caller that waits to be accepted while the listener moves is accepted on the new host, inside and outside of the name space."""
    a, b, c = three.hosts
    server = a.scip_run("python3", "-c", LATE, a.ip, name="server")
    server.wait_for("ready")
    name = f"{a.ip}:5000"
    callers = []

    def call(host, *before):
        callers.append(host.popen([*before, "python3", "-c", WAITER, a.ip], stdout=-1, text=True))
        return callers[-1].stdout.readline().split()

    names = [call(host, *before) for host in (b, c) for before in (["scip", "run", "--"], [])]
    at = a
    for to in (b, c):
        at.ctl("migrate", "server", to.name)
        at = to
        names += [call(host, *before) for host in (b, c) for before in (["scip", "run", "--"], [])]
    a.file("go")
    for (own, peer), caller in zip(names, callers):
        assert peer == name
        said = caller.stdout.readline().split()
        assert said == [own, own, name, "early"], (own, names, [each.poll() for each in callers])
        assert caller.wait(20) == 0
    at.ctl("kill", "server")
    server.wait()
