"""Servers with a run-time system of their own move under clients inside and outside the name space."""
import os
import pathlib
import random
import subprocess

import pytest

PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"

# name: (how it is built, how it is run). OUT is a directory that users can read.
SERVERS = {
    "go": (["go", "build", "-o", "OUT/serve", "."], PROGRAMS / "serve", ["OUT/serve"]),
    "java": (["javac", "-d", "OUT", "Serve.java"], PROGRAMS, ["java", "-Xmx128m", "-cp", "OUT", "Serve"]),
}

CLIENT = """
import os, socket, sys
host, port, go = sys.argv[1:]
s = socket.create_connection((host, int(port)), 60)
f = s.makefile("rw")
n = 0
while not os.path.exists(go):
    with socket.create_connection((host, int(port)), 60) as other:
        g = other.makefile("rw")
        for n in range(n, n + 20):
            for one in (f, g):
                print(n, file=one, flush=True)
                assert one.readline() == f"{n * n}\\n", n
        g.close()
    print("tick", n, flush=True)
print("result ok", flush=True)
"""


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", SERVERS)
def test_server(make_lab, stage, name):
    build, folder, argv = SERVERS[name]
    environment = {**os.environ, "GOCACHE": str(stage.build / "gocache"), "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local"}
    subprocess.run([word.replace("OUT", str(stage.flavours)) for word in build], cwd=folder, env=environment, check=True)
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    port = random.randrange(20000, 30000)
    server = a.scip_run(*(word.replace("OUT", str(stage.flavours)) for word in argv), port, name="server")
    server.wait_for("ready", 30)
    inside = b.scip_run("python3", "-c", CLIENT, a.ip, port, a.home / "go", name="inside")
    outside = c.start(["python3", "-c", CLIENT, a.ip, port, a.home / "go"], "outside")
    clients = (inside, outside)
    for here, there in ((a, b), (b, c), (c, a)):
        here.ctl("migrate", "server", there.name, timeout=60)
        before = [client.text().count("tick") for client in clients]
        a.wait_until(lambda before=before: all(client.text().count("tick") > count + 1 or client.process.poll() is not None for client, count in zip(clients, before)), 60, "the clients to go on")
    a.file("go")
    for client in clients:
        assert client.wait(60) == 0, client.text()[-500:] + client.errors()
    a.ctl("kill", "server")
    assert server.wait(30) == 128 + 15
