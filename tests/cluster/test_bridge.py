"""bridges: connections to the outside, pipes and UNIX sockets of a program that has moved."""

import pytest

ECHO = """
import socket, sys
s = socket.create_server(("0.0.0.0", 5005))
print("ready", flush=True)
while True:
    c, peer = s.accept()
    print("from", c.getpeername()[0], "to", c.getsockname()[0], flush=True)
    while True:
        data = c.recv(65536)
        if not data:
            break
        if data == b"quit\\n":
            sys.exit(7)
        c.sendall(data)
    c.close()
"""
QUIT = "import socket, sys; s = socket.create_connection((sys.argv[1], 5005)); s.sendall(b'quit\\n'); s.recv(1)"
TALK = """
import socket, sys
s = socket.create_connection((sys.argv[1], 5005), timeout=20)
s.settimeout(20)
for n, line in enumerate(sys.stdin):
    s.sendall(line.encode())
    assert s.recv(100).decode() == line
    print("echo", n, flush=True)
s.shutdown(socket.SHUT_WR)
assert s.recv(1) == b""
print("end", flush=True)
"""

FAMILY = """
import os, socket, subprocess, sys, threading
kind, size = sys.argv[1], int(sys.argv[2])
CHILD = '''
import os, socket, sys
kind, fd, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if kind == "pipes":
    while data := os.read(0, 65536):
        while data:
            data = data[os.write(1, data):]
else:
    s = socket.socket(fileno=fd)
    while data := s.recv(200000):
        s.sendall(data) if kind == "stream" else s.send(data)
'''
block = bytes(range(251)) * (size // 251 + 1)
block = block[:size]
if kind == "pipes":
    child = subprocess.Popen([sys.executable, "-c", CHILD, kind, "0", str(size)], stdin=-1, stdout=-1, bufsize=0)
    send = lambda data: os.write(child.stdin.fileno(), data)
    receive = lambda: os.read(child.stdout.fileno(), 65536)
    shut = child.stdin.close
else:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM if kind == "stream" else socket.SOCK_SEQPACKET)
    child = subprocess.Popen([sys.executable, "-c", CHILD, kind, str(other.fileno()), str(size)], pass_fds=[other.fileno()], stdin=subprocess.DEVNULL)
    other.close()
    send = one.send
    receive = lambda: one.recv(200000)
    shut = lambda: one.shutdown(socket.SHUT_WR)
print("child", child.pid, flush=True)
for line in sys.stdin:
    rounds = int(line)
    def writer():
        for _ in range(rounds):
            left = block
            while left:
                left = left[send(left):]
    thread = threading.Thread(target=writer)
    thread.start()
    got = b""
    while len(got) < rounds * size:
        piece = receive()
        assert piece
        assert kind != "packets" or piece == block, len(piece)
        got += piece
    thread.join()
    assert got == block * rounds
    print("right", rounds, flush=True)
shut()
assert receive() == b""
print("status", child.wait(), flush=True)
"""


@pytest.fixture
def three(make_lab):
    lab = make_lab(3)
    lab.start()
    return lab


def vpid_of(host):
    return host.vpids()[0]


def move(vpid, now, where):
    now.ctl("migrate", str(vpid), where.name)


def test_session_from_outside(three):
    a, b, c = three.hosts
    server = a.scip_run("python3", "-c", ECHO)
    server.wait_for("ready")
    vpid = vpid_of(a)
    client = c.popen(["python3", "-c", TALK, a.ip], stdin=-1, stdout=-1, text=True)
    n, now = 0, a
    for where in (None, b, c, b):
        if where:
            move(vpid, now, where)
            now = where
        client.stdin.write(f"line {n}\n")
        client.stdin.flush()
        assert client.stdout.readline() == f"echo {n}\n"
        n += 1
    a.wait_until(lambda: f"vpid {vpid} (python3): 2 connections through this host" in a.ctl("hosts").stdout, 10, "hosts to say who depends on it")
    client.stdin.close()
    assert client.stdout.readline() == "end\n"
    assert client.wait(10) == 0
    second = c.run(["python3", "-c", TALK, a.ip], stdin="hello\n")
    assert second.stdout == "echo 0\nend\n"
    assert "from 10.77.0.3 to 10.77.0.1" in server.lines()
    assert server.lines()[-1].startswith("from 10.77.0.3"), server.lines()
    a.ctl("kill", str(vpid))
    server.wait()


@pytest.mark.parametrize("kind,size", [("pipes", 4096), ("pipes", 300000), ("stream", 100000), ("packets", 30000)])
def test_child_moves_away(three, kind, size):
    a, b, c = three.hosts
    parent = a.popen(["scip", "run", "--", "python3", "-c", FAMILY, kind, str(size)], stdin=-1, stdout=-1, text=True)
    child = int(parent.stdout.readline().split()[1])

    def exchange(rounds):
        parent.stdin.write(f"{rounds}\n")
        parent.stdin.flush()
        return parent.stdout.readline()

    now = a
    for where in (None, b, c, b):
        if where:
            move(child, now, where)
            now = where
        assert exchange(20) == "right 20\n"
    parent.stdin.write("500\n" if size < 50000 else "60\n")
    parent.stdin.flush()
    for where in (c, b, c):  # in the middle of it
        move(child, now, where)
        now = where
    assert parent.stdout.readline().startswith("right")
    parent.stdin.close()
    assert parent.stdout.readline() == "status 0\n"
    assert parent.wait(20) == 0



@pytest.mark.parametrize("point", ["migrate-frozen", "migrate-held", "migrate-before-commit"])
@pytest.mark.parametrize("failing", ["a", "b"])
def test_given_up(make_lab, failing, point):
    """A migration that fails leaves every connection as it was: on the first host, and on one that has floats."""
    lab = make_lab(3)
    a, b, c = lab.hosts
    (a if failing == "a" else b).env["PBEAM_FAULT"] = f"{point}:fail"
    lab.start()
    server = a.scip_run("python3", "-c", ECHO)
    server.wait_for("ready")
    vpid = vpid_of(a)
    client = c.popen(["python3", "-c", TALK, a.ip], stdin=-1, stdout=-1, text=True)
    now = a if failing == "a" else travel(None, vpid, a, b)
    for n in range(3):
        client.stdin.write(f"line {n}\n")
        client.stdin.flush()
        assert client.stdout.readline() == f"echo {n}\n"
        done = now.ctl("migrate", str(vpid), c.name, check=False)
        assert done.returncode != 0, done.stderr
    client.stdin.close()
    assert client.stdout.readline() == "end\n"
    assert client.wait(10) == 0
    c.run(["python3", "-c", QUIT, a.ip])
    assert server.wait() == 7


SHARED = """
import os, subprocess, sys, time
r, w = os.pipe()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], pass_fds=[r], stdin=subprocess.DEVNULL)
print("child", child.pid, flush=True)
time.sleep(1000)
"""


def test_shared_reader_is_refused(three):
    a, b, _ = three.hosts
    parent = a.scip_run("python3", "-c", SHARED)
    parent.wait_for("child")
    child = int(parent.lines()[0].split()[1])
    for words in (["--dry-run"], []):
        done = a.ctl("migrate", *words, str(child), b.name, check=False)
        assert done.returncode != 0 and "the read end of a pipe that process" in done.stdout + done.stderr, (done.stdout, done.stderr)
    assert child in a.vpids()
    a.ctl("kill", str(min(a.vpids())))
    a.ctl("kill", str(child), check=False)


# A launcher with descriptors that it has not closed in its child.
LAUNCHER = """
import os, socket, subprocess, sys, time
r, w = os.pipe()
connection = socket.create_connection((sys.argv[1], 5005), timeout=20)
listener = socket.create_server(("127.0.0.1", 5007))
named = socket.socket(socket.AF_UNIX)
named.bind(os.getcwd() + "/named")
named.listen()
port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
port.bind(("127.0.0.1", 5008))
CHILD = '''
import os, socket, sys
def says(what):
    try:
        return repr(what())
    except OSError as e:
        return e.strerror
pipe, *sockets = map(int, sys.argv[1:])
connection, listener, named, port = [socket.socket(fileno=fd) for fd in sockets]
if sys.stdin.readline():
    print(says(lambda: os.read(pipe, 9)), says(lambda: connection.recv(9)), says(lambda: connection.send(b"x")), says(listener.accept), says(named.accept), says(lambda: port.recv(9)), sep="; ", file=open("closed", "w"))
'''
fds = [str(fd) for fd in (r, connection.fileno(), listener.fileno(), named.fileno(), port.fileno())]
child = subprocess.Popen([sys.executable, "-c", CHILD, *fds], pass_fds=list(map(int, fds)), stdin=-1, text=True)
print("ready", child.pid, flush=True)
while not os.path.exists("now"):
    time.sleep(.01)
child.stdin.write("now\\n")
child.stdin.flush()
os.write(w, b"mine")
connection.sendall(b"mine")
caller = socket.create_connection(("127.0.0.1", 5007))
guest = socket.socket(socket.AF_UNIX)
guest.connect(os.getcwd() + "/named")
port.sendto(b"mine", ("127.0.0.1", 5008))
print("parent", os.read(r, 9), connection.recv(9), len(listener.accept()), len(named.accept()), port.recv(9), flush=True)
sys.exit(child.wait())
"""


def test_left_to_who_stays(three):
    """With --leave-shared a launcher keeps what it has left open in its child; in the child it is closed."""
    a, b, c = three.hosts
    echo = c.popen(["python3", "-u", "-c", ECHO], stdout=-1, text=True)
    assert echo.stdout.readline() == "ready\n"
    job = a.scip_run("python3", "-c", LAUNCHER, c.ip)
    job.wait_for("ready")
    child = job.lines()[0].split()[1]
    said = a.ctl("migrate", "--dry-run", child, b.name, check=False).stdout
    assert said.count("has open too") == 5, said
    refused = a.ctl("migrate", child, b.name, check=False)
    assert refused.returncode == 1 and "--leave-shared" in refused.stderr, refused.stderr
    said = a.ctl("migrate", "--leave-shared", "--dry-run", child, b.name).stderr
    assert "can go" in said and said.count("will be closed") == 5, said
    said = a.ctl("migrate", "--leave-shared", child, b.name).stderr
    assert said.count("is closed for it") == 5, said
    a.file("now")
    assert job.wait() == 0, job.errors()
    assert job.lines()[1:] == ["parent b'mine' b'mine' 2 2 b'mine'"]
    assert (a.home / "closed").read_text() == "b''; b''; Broken pipe; Invalid argument; Invalid argument; b''\n"
    echo.kill()
    echo.wait()


def travel(three, vpid, now, *hosts):
    for where in hosts:
        move(vpid, now, where)
        now = where
    return now


ASYNC_SERVER = """
import asyncio
async def serve(reader, writer):
    try:
        while data := await reader.readexactly(1000):
            writer.write(data[::-1])
            await writer.drain()
    except asyncio.IncompleteReadError:
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "0.0.0.0", 5006)
    print("ready", flush=True)
    await server.serve_forever()
asyncio.run(main())
"""
ASYNC_CLIENTS = """
import asyncio, os, sys, time
end = time.time() + 600
done = 0
async def one(number):
    global done
    while not os.path.exists(sys.argv[2]):
        reader, writer = await asyncio.open_connection(sys.argv[1], 5006)
        for _ in range(20):
            block = os.urandom(1000)
            writer.write(block)
            assert await asyncio.wait_for(reader.readexactly(1000), 30) == block[::-1]
            done += 1
        writer.close()
        assert await asyncio.wait_for(reader.read(), 30) == b""
async def main():
    await asyncio.gather(*(one(i) for i in range(10)))
asyncio.run(main())
print("done", done)
"""


def test_asyncio_server(three):
    a, b, c = three.hosts
    server = a.scip_run("python3", "-c", ASYNC_SERVER)
    server.wait_for("ready")
    vpid = vpid_of(a)
    stop = c.home / "stop"
    client = c.popen(["python3", "-c", ASYNC_CLIENTS, a.ip, str(stop)], stdout=-1, text=True)
    travel(three, vpid, a, b, c, b)
    c.file("stop")
    out = client.communicate(timeout=60)[0]
    assert client.returncode == 0 and int(out.split()[1]) > 100
    a.ctl("kill", str(vpid))
    server.wait()


def test_redis(three):
    a, b, c = three.hosts
    server = a.scip_run("redis-server", "--port", "6399", "--protected-mode", "no", "--save", "", "--appendonly", "no")
    server.wait_for("Ready to accept")
    vpid = vpid_of(a)
    client = c.popen(["redis-benchmark", "-h", a.ip, "-p", "6399", "-n", "60000", "-c", "20", "-t", "set,get", "-q"], stdout=-1, stderr=-2, text=True)
    travel(three, vpid, a, b, c, b)
    out = client.communicate(timeout=90)[0]
    assert client.returncode == 0 and "GET" in out and "Error" not in out, out
    a.ctl("kill", str(vpid))
    server.wait()


FETCH = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode(), end='')"
NGINX = """
daemon off; worker_processes 2; pid {top}/pid; error_log {top}/error; working_directory {top};
events {{ worker_connections 256; }}
http {{ access_log off; client_body_temp_path {top}/t1; proxy_temp_path {top}/t2; fastcgi_temp_path {top}/t3; uwsgi_temp_path {top}/t4; scgi_temp_path {top}/t5;
  server {{ listen 8088; location / {{ return 200 "hello from here\\n"; }} }} }}
"""


def fetch(host, url):
    return host.run(["python3", "-c", FETCH, url], check=False).stdout


def test_nginx(three):
    a, b, c = three.hosts
    url = f"http://{a.ip}:8088/"
    conf = a.file("nginx.conf", NGINX.format(top=a.home).encode())
    server = a.scip_run("nginx", "-c", str(conf))
    a.wait_until(lambda: fetch(a, url) == "hello from here\n", 20, "nginx to serve")
    vpid = min(a.vpids())
    client = c.popen(["wrk", "-t", "1", "-c", "10", "-d", "6", url], stdout=-1, stderr=-2, text=True)
    travel(three, vpid, a, b, c, b)
    out = client.communicate(timeout=60)[0]
    assert client.returncode == 0 and "Requests/sec" in out and "Non-2xx" not in out and "Socket errors" not in out, out
    assert fetch(c, url) == "hello from here\n"
    a.ctl("kill", str(vpid))
    server.wait()
