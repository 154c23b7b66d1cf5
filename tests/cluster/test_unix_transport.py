"""Hosts whose daemons reach each other over UNIX sockets: one machine without a network in common, or ssh -L."""
import os
import signal
import stat

import pytest

WORKER = """import hashlib, os, sys
memory = os.urandom(100 << 20)
digest = hashlib.sha256(memory).digest()
print("ready", flush=True)
for line in sys.stdin:
    print(line.strip(), hashlib.sha256(memory).digest() == digest, os.getpid(), flush=True)
"""


@pytest.fixture
def lab(make_lab):
    lab = make_lab(2)
    for host in lab.hosts:
        host.address = f"unix:{host.home}/pbeamd.socket"
    return lab.start()


def test_migration(lab):
    """A program with 100 MB and a console goes over the socket and returns; pages take the streams' short cut."""
    a, b = lab.hosts
    assert stat.S_IMODE(os.stat(a.home / "pbeamd.socket").st_mode) == 0o600
    process = a.popen(["scip", "run", "--", "python3", "-c", WORKER], stdin=-1, stdout=-1)
    assert process.stdout.readline() == b"ready\n"
    vpid = a.vpids()[0]
    for here, there in ((a, b), (b, a), (a, b)):
        here.ctl("migrate", vpid, there.name)
        assert lab.where(vpid) == there.name
        process.stdin.write(f"on {there.name}\n".encode())
        process.stdin.flush()
        assert process.stdout.readline() == f"on {there.name} True {vpid}\n".encode()
    process.stdin.close()
    assert process.wait(20) == 0


def test_killed_daemon(lab):
    """The socket that a killed daemon leaves is replaced by the next one, and the others find it."""
    a, b = lab.hosts
    for host in (b, a):
        host.daemon.process.send_signal(signal.SIGKILL)
        host.daemon.wait()
        for pid in host.pids_of("pbeamd"):
            os.kill(pid, signal.SIGKILL)
        assert (host.home / "pbeamd.socket").is_socket()
        host.start_daemon()
        for other in lab.hosts:
            other.wait_until(lambda other=other: len(lab.up(other)) == 2, 20, f"both hosts to be up on {other.name}")


def test_addresses(lab):
    """pbeamctl hosts shows the address; malformed ones and one that is in use are refused."""
    a, b = lab.hosts
    assert a.address in a.ctl("hosts", "--json").stdout
    for words, text in ((["--listen", "unix:pbeamd.socket"], "write unix:/PATH"), (["--listen", "unix:/" + "x" * 120], "at most 107 bytes"),
                        (["--join", f"unix:{a.home}/none"], "No such file or directory")):
        b.env["XDG_RUNTIME_DIR"] = str(b.home)
        other = b.start(["pbeamd", *words, "--cluster-key", lab.key_of(b), "--host-name", "c"], "other")
        b.wait_until(lambda: text in other.errors(), 10, f"{text} in {other.errors()}")
        other.process.terminate()
        other.wait()
