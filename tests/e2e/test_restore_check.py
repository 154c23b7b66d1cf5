"""`scip restore --check` and `pbeamctl doctor IMAGE`: what would prevent a restore, without touching anything."""
import json
import os
import socket

import pytest

SERVER = """
import os, socket, sys, time
tcp = socket.create_server(("127.0.0.1", int(sys.argv[1])))
name = socket.socket(socket.AF_UNIX)
name.bind("\\0" + sys.argv[2])
name.listen()
mapped = open("mapped", "rb")
import mmap
pages = mmap.mmap(mapped.fileno(), 0, prot=mmap.PROT_READ)
mapped.close()
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@pytest.fixture
def saved(host):
    """The image of a server that has ended, its port and its abstract name."""
    port, name = free_port(), f"check-{os.getpid()}-{host.home.name}"
    host.file("server.py", SERVER)
    host.file("mapped", b"x" * 5000)
    job = host.scip_run("python3", "server.py", str(port), name, name="server")
    job.wait_for("ready")
    image = host.checkpoint("server", "--kill")
    job.wait(20)
    return image, port, name


def check(host, image):
    """The obstacles by both commands, which agree."""
    done = host.run(["scip", "restore", "--check", image], check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == (1 if lines else 0) and not done.stderr, done
    asked = host.ctl("doctor", "--json", image, check=False)
    assert json.loads(asked.stdout) == {"image": str(image), "obstacles": lines, "restorable": not lines}
    assert asked.returncode == done.returncode
    return lines


def test_nothing_prevents_it(host, saved):
    image, port, name = saved
    assert check(host, image) == []
    assert "Nothing prevents" in host.ctl("doctor", image).stdout
    assert "server" not in host.ctl("ps").stdout
    host.run(["scip", "restore", "-d", image])
    host.ctl("kill", "-s", "KILL", "server")


def test_lists_all_obstacles(host, saved):
    """Each is one line, and none hides another."""
    image, port, name = saved
    host.file("mapped", b"y" * 6000)
    with socket.create_server(("127.0.0.1", port)), socket.socket(socket.AF_UNIX) as other:
        other.bind("\0" + name)
        lines = check(host, image)
    assert len(lines) == 4, lines  # the file twice: a mapping, and the descriptor that Python's mmap duplicates
    assert any(f"127.0.0.1:{port}" in line and "stop" in line for line in lines)
    assert any(name in line for line in lines)
    assert any("mapped, which has changed" in line and "--force" in line for line in lines)
    assert any("mapped has changed" in line and "put it back" in line for line in lines)
    host.file("mapped", b"x" * 5000)
    (host.home / "mapped").unlink()
    assert any("mapped" in line and "put it back" in line for line in check(host, image))


def test_running_and_damaged(host, saved):
    image, port, name = saved
    host.run(["scip", "restore", "-d", image])
    assert any("is in use by a running program" in line for line in check(host, image))
    host.ctl("kill", "-s", "KILL", "server")
    with open(image, "r+b") as f:
        f.seek(30000)
        byte = f.read(1)
        f.seek(30000)
        f.write(bytes([byte[0] ^ 1]))
    (line,) = check(host, image)
    assert "damaged" in line or "digest" in line
    (line,) = check(host, host.file("nothing", b"no image"))


def test_limits(host, saved):
    image, port, name = saved
    done = host.run(["sh", "-c", f"ulimit -n 16; exec scip restore --check {image}"], check=False)
    assert done.returncode == 1 and "ulimit -Hn" in done.stdout and done.stdout.count("\n") == 1, done


def test_wrong_use(host):
    assert host.run(["scip", "restore", "--check"], check=False).returncode == 125


PIPES = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        break
has = [os.pipe() for _ in range(12)]
print("ready", flush=True)
while True:
    time.sleep(1)
"""


def test_descriptors_suffice(host):
    """The smallest limit with which the restore works is that from which on nothing prevents it."""
    job = host.scip_run("python3", "-c", PIPES, name="pipes")
    host.wait_until(lambda: job.text().count("ready") == 5, what="five processes")
    image = host.checkpoint("pipes", "--kill")
    job.wait(20)

    def restores(limit):
        return host.run(["sh", "-c", f"ulimit -n {limit}; exec scip restore -d {image}"], check=False).returncode == 0

    def allowed(limit):
        return host.run(["sh", "-c", f"ulimit -n {limit}; exec scip restore --check {image}"], check=False).returncode == 0

    least = next(limit for limit in range(100, 300) if allowed(limit))
    assert not restores(least - 2)
    assert restores(least)
    host.kill_programs()
