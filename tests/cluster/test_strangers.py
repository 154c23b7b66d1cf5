"""Strangers without the key, or with it and malformed messages: refused, named in the log, and without effect on others."""
import hashlib
import hmac
import os
import pathlib
import re
import struct
import subprocess
import time

import pytest

pytestmark = pytest.mark.timeout(120)

PORT = 7113
IDENTITY = "pbeam cluster 1"
VERSION = int(re.search(r"CHANNEL_VERSION\s+(\d+)u", (pathlib.Path(__file__).parents[2] / "channel" / "channel.h").read_text())[1])
HELLO, REFUSED, PEER_HOST, PEER_REQUEST, PEER_REPLY, PEER_REGISTRY, PEER_REGISTRY_REPLY, PEER_CHANGES = 1, 2, 10, 11, 13, 14, 15, 16
PEER, MIGRATE, SESSION = 1, 2, 3


def psk_of(key):
    """The channel's key, derived from the cluster's key (RFC 5869)."""
    secret = hmac.new(b"pbeam", bytes.fromhex(key.decode().strip()), hashlib.sha256).digest()
    return hmac.new(secret, b"pbeam channel tls psk\x01", hashlib.sha256).digest()


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def frame(kind, body=b"", magic=0x4D454250, version=1, length=None):
    return struct.pack("<IHHII", magic, version, 0, kind, len(body) if length is None else length) + body


def hello(kind=PEER, host="stranger", version=VERSION, cookie=b""):
    return frame(HELLO, field(1, version) + field(2, kind) + field(3, host) + (field(4, cookie) if cookie else b""))


def host_info(name="stranger", instance=b"0123456789abcdef", more=b""):
    return frame(PEER_HOST, field(1, name) + field(19, instance) + more)


class Stranger:
    """A program on a host of the laboratory, with or without the key."""

    def __init__(self, lab, host):
        self.lab = lab
        self.host = host
        self.target = f"{lab.hosts[0].ip}:{PORT}"
        self.key = lab.key_of(host).read_bytes()

    def tls(self, data, psk=None, options=(), wait=1.0, version="-tls1_3"):
        """Sends over TLS and returns the answer."""
        words = ["openssl", "s_client", "-quiet", version, "-connect", self.target, *options]
        if psk:
            words += ["-psk_identity", IDENTITY, "-psk", psk.hex(), "-ciphersuites", "TLS_AES_128_GCM_SHA256"]
        child = self.host.popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            child.stdin.write(data)
            child.stdin.flush()
            child.wait(wait)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            pass
        child.kill()
        out, err = child.communicate()
        return out

    def say(self, data, wait=1.0):
        """The same with the right key."""
        return self.tls(data, psk_of(self.key), wait=wait)

    def tcp(self, data, wait=1.0):
        """Sends plain bytes and returns the answer; None if the connection stays open."""
        program = ("import socket,sys,time\ns=socket.create_connection((sys.argv[1],int(sys.argv[2])),5)\ns.settimeout(float(sys.argv[3]))\n"
                   "s.sendall(sys.stdin.buffer.read())\ntry:\n while s.recv(65536): pass\n print('ended')\nexcept socket.timeout: print('open')\nexcept OSError: print('ended')")
        child = self.host.popen(["python3", "-c", program, *self.target.split(":"), str(wait)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return child.communicate(data, 30)[0].decode().strip()


@pytest.fixture
def stranger(make_lab):
    lab = make_lab(3)
    for host in lab.hosts[:2]:
        host.start_daemon()
    lab.hosts[0].wait_until(lambda: len(lab.up(lab.hosts[0])) == 2, 15, "b to be up")
    yield Stranger(lab, lab.hosts[2])
    for host in lab.hosts[:2]:
        assert lab.up(host) == ["a", "b"] or lab.up(host) == ["b", "a"]
        assert host.daemon.process.poll() is None
    assert "is lost" not in "".join(line for line in lab.hosts[0].daemon.errors().splitlines() if "host b" in line)
    lab.hosts[1].run([lab.stage.tools / "registry", "set", "after", "all", "0"])


def logged(stranger, text, times=1):
    a = stranger.lab.hosts[0]
    a.wait_until(lambda: a.daemon.errors().count(text) >= times, 15, f"`{text}` in the log:\n{a.daemon.errors()}")
    assert f"{stranger.host.ip}:" in a.daemon.errors()


def forget(stranger):
    """Removes it where it was briefly accepted."""
    for host in stranger.lab.hosts[:2]:
        host.wait_until(lambda host=host: "stranger" not in stranger.lab.up(host), 10, "it to be lost")
    stranger.lab.hosts[1].ctl("hosts", "--remove", "stranger")


def test_without_the_key(stranger):
    for data in (b"GET / HTTP/1.0\r\n\r\n", os.urandom(4096), b"\x16\x03\x01\xff\xff" + os.urandom(600), hello()):
        assert stranger.tcp(data, 5) == "ended"
    logged(stranger, "is turned away", 4)
    stranger.tls(hello())
    logged(stranger, "it has no cluster key")
    stranger.tls(hello(), bytes(32))
    logged(stranger, "it has another cluster key")
    stranger.tls(hello(), version="-tls1_2")
    logged(stranger, "does not speak TLS 1.3")


def test_pbeamd_with_another_key(stranger):
    c = stranger.host
    other = c.home / "other.key"
    c.run(["pbeamd", "--make-key", other])
    assert c.run(["pbeamd", "--make-key", other], check=False).returncode == 1
    other.chmod(0o644)
    done = c.run(["pbeamd", "--join", stranger.target, "--cluster-key", other], check=False)
    assert done.returncode == 1 and "chmod 600" in done.stderr
    other.chmod(0o600)
    job = c.start(["pbeamd", "--join", stranger.target, "--cluster-key", other, "--host-name", "c"], "wrong")
    c.wait_until(lambda: "it has another cluster key" in job.errors(), 15, "the refusal")
    logged(stranger, "it has another cluster key")


GREETED = [
    (os.urandom(64), "does not speak this protocol"),
    (frame(HELLO, length=0xFFFFFFFF), "over the limit"),
    (frame(HELLO, b"\xff" * 40), "is not a ChannelHello"),
    (frame(77), "instead of a greeting"),
    (hello(version=1), "speaks version 1"),
    (hello(host="a"), "the same name as this host, a;"),
    (hello(host="../etc"), "invalid host name"),
    (hello(host="x" * 200), "invalid host name"),
    (hello(kind=99), "no channels of kind 99"),
    (hello(kind=SESSION, cookie=bytes(16)), "no process expects"),
    (hello(kind=SESSION), "no process expects"),
]


def test_with_the_key_but_no_greeting(stranger):
    for data, text in GREETED:
        stranger.say(data, 0.7)
        logged(stranger, text)


PEERS = [
    (frame(PEER_HOST, b"\xff" * 9), "it describes no host"),
    (host_info(name="other"), "and then another"),
    (host_info(name="a/b"), "it describes no host"),
    (host_info(more=field(21, "a/b")), "it describes no host"),
    (host_info(more=field(23, b"three")), "it describes no host"),
    (host_info(more=field(20, 1 << 40)), "it describes no host"),
    (frame(999), "message 999"),
    (frame(PEER_REQUEST, field(1, 1) + field(2, 2)), "a malformed request or reply"),
    (frame(PEER_REGISTRY, field(2, 4)), "invalid message about the registry"),
    (host_info() + frame(PEER_CHANGES), "invalid message about the registry"),
    (host_info() + frame(PEER_REGISTRY, b"\xff" * 8), "invalid message about the registry"),
    (host_info() + frame(PEER_REQUEST, b"\xff" * 8), "a malformed request or reply"),
]


def test_peers_that_send_what_is_none(stranger):
    for i, (data, text) in enumerate(PEERS):
        before = stranger.lab.hosts[0].daemon.errors().count(text)
        stranger.say(hello() + data, 0.7)
        logged(stranger, text, before + 1)
    forget(stranger)


def test_requests_that_peers_may_not_make(stranger):
    refused = stranger.say(hello() + host_info() + frame(PEER_REQUEST, field(1, 7) + field(2, 7)), 1.5)
    assert b"cannot be passed to another host" in refused
    # another one of its name is another host
    stranger.say(hello() + host_info(instance=b"fedcba9876543210"), 0.7)
    logged(stranger, "another host is called stranger")
    forget(stranger)


def test_slow_ones(stranger):
    """Many silent or slow connections do not keep others out, and are closed."""
    program = ("import socket,sys,time\nall=[]\nfor i in range(40):\n all.append(socket.create_connection((sys.argv[1],int(sys.argv[2])),5))\n"
               "print('open',flush=True)\nend=time.time()+14\nleft=set(range(40))\n"
               "while time.time()<end and left:\n"
               " for i in list(left):\n"
               "  try:\n   all[i].setblocking(False)\n   if i%2: all[i].send(b'\\x16')\n   if not all[i].recv(1): left.discard(i)\n"
               "  except BlockingIOError: pass\n  except OSError: left.discard(i)\n"
               " time.sleep(0.3)\nprint(len(left),flush=True)")
    child = stranger.host.popen(["python3", "-c", program, *stranger.target.split(":")], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "open\n"
    logged(stranger, "too many connections")
    b = stranger.lab.hosts[1]
    b.run([stranger.lab.stage.tools / "registry", "set", "meanwhile", "x", "0"])
    # a host with another address gets through
    time.sleep(0.5)
    echo = stranger.lab.hosts[0].start([stranger.lab.stage.tools / "channel", "echo", "cookie", "1"], "echo")
    stranger.lab.hosts[0].wait_until(lambda: "expecting" in echo.errors(), what="it to expect")
    assert b.run([stranger.lab.stage.tools / "channel", "talk", "a", "cookie"], stdin="hello").stdout == "hello"
    assert echo.wait() == 0
    assert child.communicate(timeout=30)[0].strip() == "0"


SILENT = ("import socket,sys,time\nall=[]\nfor i in range(int(sys.argv[3])):\n s=socket.create_connection((sys.argv[1],int(sys.argv[2])),5)\n"
          " s.send(b'\\x16\\x03'[:i%3])\n all.append(s)\nprint('open',flush=True)\ntime.sleep(30)")


def channels(host):
    """The processes that speak TLS for its daemon."""
    return sum(pathlib.Path(f"/proc/{pid}/comm").read_text() == "pbeam-channel\n" for pid in host.processes())


def test_silent_strangers_do_not_keep_hosts_out(make_lab):
    lab = make_lab(3)
    a, b, c = lab.hosts
    a.start_daemon("--max-startups", "4:100:8")
    b.start_daemon()
    a.wait_until(lambda: len(lab.up(a)) == 2, 15, "b to be up")
    before = channels(a)
    child = c.popen(["python3", "-c", SILENT, a.ip, str(PORT), "12"], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "open\n"
    a.wait_until(lambda: "too many connections without a greeting from its address" in a.daemon.errors(), 10, "them to be refused")
    assert channels(a) == before  # no process for one that has not spoken
    # A host of the cluster gets through meanwhile.
    echo = a.start([lab.stage.tools / "channel", "echo", "cookie", "1"], "echo")
    a.wait_until(lambda: "expecting" in echo.errors(), what="it to expect")
    assert b.run([lab.stage.tools / "channel", "talk", "a", "cookie"], stdin="hello").stdout == "hello"
    assert echo.wait() == 0
    # A host that is not known yet is told the reason, and joins later by itself.
    joining = c.start_daemon(wait=False)
    c.wait_until(lambda: "it has too many connections without a greeting" in joining.errors(), 10, "the reason")
    assert "key" not in joining.errors()
    c.wait_until(lambda: len(lab.up(a)) == 3, 20, "c to be up")
    assert "it sent no message within 5 s" in a.daemon.errors()
    child.kill()
    child.wait()


def test_max_startups_is_checked(make_lab):
    a = make_lab(1).hosts[0]
    done = a.run(["pbeamd", "--listen", "127.0.0.1", "--max-startups", "10:30"], check=False)
    assert done.returncode == 2 and "is not START:RATE:FULL" in done.stderr
