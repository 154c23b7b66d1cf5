"""A host that has the key and lies: in counts, sizes, digests, order and numbers. Nothing ends, hangs or changes for it."""
import os
import pathlib
import re
import struct

import pytest
from test_strangers import HELLO, MIGRATE, PEER_CHANGES, PEER_REGISTRY, PEER_REPLY, Stranger, field, frame, hello, host_info, varint

pytestmark = pytest.mark.timeout(150)

RECONNECT, CUT, CONSOLE = 4, 5, 6  # kinds of channels
DIGEST = bytes(range(16))
SCHEMA = pathlib.Path(__file__).parents[2] / "proto" / "cluster.proto"
N = {name: int(number) for name, number in re.findall(r"^  ([A-Z_]+) = (\d+);", SCHEMA.read_text(), re.M)}


@pytest.fixture
def liar(make_lab):
    """Two hosts and a program on the first; afterwards all goes on, and what the program writes grows."""
    lab = make_lab(3)
    for host in lab.hosts[:2]:
        host.start_daemon()
    a = lab.hosts[0]
    a.wait_until(lambda: len(lab.up(a)) == 2, 15, "b to be up")
    job = a.scip_run("sh", "-c", "while :; do echo beat; sleep 0.1; done", name="steady")
    a.wait_until(lambda: "beat" in job.text(), 10, "the program to run")
    files = sorted(str(path.relative_to(a.home)) for path in a.home.rglob("*"))
    yield Stranger(lab, lab.hosts[2])
    before = job.text().count("beat")
    a.wait_until(lambda: job.text().count("beat") > before + 5, 10, "the program to go on")
    assert "steady" in a.ctl("ps").stdout
    for host in lab.hosts[:2]:
        assert host.daemon.process.poll() is None
        assert sorted(lab.up(host))[:2] == ["a", "b"]
    grown = {str(path.relative_to(a.home)) for path in a.home.rglob("*")} - set(files)
    assert not [path for path in grown if "liar" in path or "escaped" in path], grown
    a.ctl("migrate", "steady", "b")
    before = job.text().count("beat")
    a.wait_until(lambda: job.text().count("beat") > before, 10, "the program to go on elsewhere")
    a.ctl("kill", "steady")
    job.wait()


def nested(depth, number, inner=b""):
    for _ in range(depth):
        inner = field(number, inner)
    return inner


def talk(liar, kind, *frames, wait=0.6):
    return liar.say(hello(kind, host="liar") + b"".join(frames), wait)


def peer(liar, *frames):
    return talk(liar, 1, host_info("liar"), *frames)


def test_as_a_peer(liar):
    entry = field(1, "vpid/7") + field(2, field(1, "liar")) + field(3, 9)
    for lie in [
        frame(PEER_REGISTRY, field(1, 1) + field(2, 2) + nested(60000, 8)),  # requests in requests
        frame(PEER_REGISTRY, field(1, 1) + field(2, 1) + field(3, "lease/numbers") + field(6, 1 << 62)),
        frame(PEER_REGISTRY, field(1, 1) + field(2, 2) + field(3, "vpid/1") + field(5, 77) + field(9, 1 << 40)),
        frame(PEER_CHANGES, field(1, entry) + field(2, 1 << 63) + field(4, 1 << 60)),  # a revision and term of the far future
        frame(PEER_CHANGES, field(3, 1) + b"".join(field(1, entry) for _ in range(5000))),
        frame(PEER_REPLY, field(1, 12345) + field(2, 1000) + field(3, os.urandom(500))),  # to no request
        frame(N["PEER_HEARD"], field(2, 1 << 63)),
        frame(N["PEER_REGISTRY_REPLY"], field(1, 99) + field(6, 1 << 62)),
        frame(PEER_REPLY, length=(256 << 20)),  # a body that never comes
    ]:
        peer(liar, lie)
    for host in liar.lab.hosts[:2]:
        host.wait_until(lambda host=host: "liar" not in liar.lab.up(host), 15, "it to be lost")
    liar.lab.hosts[1].ctl("hosts", "--remove", "liar")


def user_of(liar):
    return int(liar.lab.hosts[0].run(["id", "-u"]).stdout)


def begin(uid, more=b""):
    job = field(1, "liar") + field(2, "11111111-2222-3333-4444-555555555555")
    host = field(1, "liar") + field(3, "x86_64") + field(8, 4096)
    return frame(N["MIGRATE_BEGIN"], field(1, "liar-migration") + field(2, host) + field(3, job) + field(4, 7777) + field(5, varint(7777)) + field(12, uid) +
                 field(9, "liar") + field(17, "liar") + more)


def test_as_a_migration(liar):
    uid = user_of(liar)
    data = os.urandom(4096)
    page = field(1, 7777) + field(4, field(1, 0x10000) + field(3, 1 << 50)) + field(6, 4096) + field(9, 4096)
    file = field(1, "/liar") + field(2, "/../../escaped") + field(3, 8)
    assert struct.pack("<I", N["MIGRATE_READY"]) in talk(liar, MIGRATE, begin(uid), wait=5), "the lies after it are not reached"
    for lie in [
        frame(N["MIGRATE_PAGES"], page) + data,  # before there is a process
        frame(N["MIGRATE_ROUND"], field(1, 1 << 31)),
        frame(N["MIGRATE_STATE"], field(1, 1 << 62)),
        frame(N["MIGRATE_STATE"], field(1, (1 << 64) - 1)),
        frame(N["MIGRATE_STATE"], field(1, 8192)) + data * 2,  # no image
        frame(N["MIGRATE_SKELETON"], field(1, 4096)) + data,
        frame(N["MIGRATE_FILES"], field(1, file)),
        frame(N["MIGRATE_FILE"], field(1, DIGEST) + field(3, 1 << 40) + field(4, 1 << 41)),
        frame(N["MIGRATE_FILE"], field(1, b"short") + field(3, 4) + field(4, 4)) + b"data",
        frame(N["MIGRATE_HELD"]),
        frame(4711, os.urandom(3000)),
    ]:
        talk(liar, MIGRATE, begin(uid), lie)
    for odd in (begin(uid + 1), begin(uid, field(6, (1 << 64) - 1)), begin(uid, field(16, "no map")), frame(N["MIGRATE_BEGIN"]),
                begin(uid, field(23, field(1, "../liar") + field(2, 1))), begin(uid, field(19, "x" * 5000))):
        talk(liar, MIGRATE, odd)


def test_as_another_end(liar):
    own = struct.pack("<HH4s8s", 2, 80, bytes(4), bytes(8))

    def request(operation, *more):
        return frame(N["RECONNECT_REQUEST"], field(1, operation) + b"".join(more))

    hold = request(1, field(3, field(1, own) + field(2, own)))
    for lie in [hold * 50, request(6), request(5), hold + request(4), hold + request(3) * 20, request(7, field(4, field(3, own))),
                request(1, field(3, field(1, b"x") + field(2, b""))), request(1, *[field(6, 5) for _ in range(20000)]), request(99)]:
        talk(liar, RECONNECT, lie)

    def cut(operation, *more):
        return frame(N["CUT_REQUEST"], field(1, operation) + b"".join(more))

    for lie in [cut(10, field(2, "../liar"), field(3, 1), field(10, 4)) + b"data", cut(10, field(2, "liar"), field(3, 1), field(10, 1 << 63)),
                cut(9, field(2, "/etc"), field(3, 1)), cut(11, field(2, ".."), field(3, 1)), cut(2, field(2, "steady"), field(6, 1)), cut(3), cut(7), cut(8),
                cut(5, *[field(9, field(3, n)) for n in range(5000)])]:
        talk(liar, CUT, lie)
    for lie in [frame(110, os.urandom(100)), frame(HELLO)]:
        talk(liar, CONSOLE, lie)


def test_many_at_once(liar):
    """Lies without an end, and connections that break within one."""
    for _ in range(20):
        talk(liar, MIGRATE, begin(user_of(liar)), frame(N["MIGRATE_STATE"], field(1, 1 << 30)), os.urandom(1 << 16), wait=0.05)
    a = liar.lab.hosts[0]
    a.wait_until(lambda: a.run(["pgrep", "-fc", "scip receive"], check=False).stdout.strip() == "0", 20, "the receivers to end")
