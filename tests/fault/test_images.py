"""Damaged, foreign or misplaced images: a clear sentence, an exit status, the program still runs, nothing is touched."""
import os
import random
import shutil
import socket

import pytest
from programs import COUNT, counted, counts

pytestmark = pytest.mark.timeout(120)


def refused(done, *words):
    assert done.returncode not in (0, 2) and done.stderr.count("\n") == 1 and not done.stdout, (done.returncode, done.stdout, done.stderr)
    assert all(word in done.stderr for word in words), done.stderr


def altered(host, image, change):
    """A copy of the image with some bytes changed."""
    data = bytearray(image.read_bytes())
    change(data)
    copy = host.file("altered.ckpt", bytes(data))
    copy.chmod(0o700)
    return copy


def flip(at):
    def change(data):
        data[at] ^= 1 << at % 8

    return change


def test_any_byte(host, count):
    """Flipped, missing or added bytes are found by verify: bytes all over the file, and the first and last of every page of structure."""
    image = host.checkpoint("count")
    size = image.stat().st_size
    generator = random.Random(1998)
    places = {0, 1, 100, 16384, 16392, 16400, 20480, size - 1, size - 96, size - 50, size // 2, *(generator.randrange(size) for _ in range(60))}
    host.ctl("image", "verify", image)
    for at in sorted(places):
        refused(host.ctl("image", "verify", altered(host, image, flip(at)), check=False))
    for cut in (1, 96, 4096, size // 2, size - 10, size):
        refused(host.ctl("image", "verify", altered(host, image, lambda data: data.__delitem__(slice(size - cut, size))), check=False))
    refused(host.ctl("image", "verify", altered(host, image, lambda data: data.append(0)), check=False))
    refused(host.ctl("image", "verify", altered(host, image, lambda data: data.insert(size // 3, 7)), check=False))
    host.ctl("image", "verify", image)


@pytest.mark.parametrize("change", [flip(20480 + 5000), lambda data: data.__delitem__(slice(30000, None))], ids=["flipped", "truncated"])
def test_rollback_touches_nothing(host, count, change):
    vpid, out = count
    pid, = host.program_pids()
    copy = altered(host, host.checkpoint("count"), change)
    refused(host.ctl("rollback", "--to", copy, "count", check=False))
    assert host.program_pids() == [pid]
    counts(host, out)
    refused(host.run(["scip", "restore", copy], check=False))
    host.rollback("count")
    counts(host, out)


LARGE = """
import hashlib, mmap, os, sys, time
data = bytearray(os.urandom(40 << 20))
digest = hashlib.sha256(data).hexdigest()
shared = mmap.mmap(os.open("mapped", os.O_RDWR), 4096)
with open("log", "a", buffering=1) as log:
    n = 0
    while True:
        assert n % 20 or hashlib.sha256(data).hexdigest() == digest
        log.write(f"{n}\\n")
        shared[:8] = b"%08d" % n
        n += 1
        time.sleep(0.02)
"""


def test_large_memory_damaged(host):
    """The pages of a large process are verified while they are copied: with one damaged byte nothing runs and no file is changed."""
    log, mapped = host.file("log"), host.file("mapped", b"0" * 4096)
    host.detach("sh", "-c", f"cd {host.home}; exec python3 -c '{LARGE}'", name="large")
    host.wait_until(lambda: counted(log) > 3, what="counting")
    image = host.checkpoint("large")
    saved = counted(log)
    counts(host, log)
    host.ctl("kill", "-s", "KILL", "large")
    host.wait_until(lambda: not host.vpids(), what="its end")
    left, held, size = log.read_bytes(), mapped.read_bytes(), image.stat().st_size
    for at in (size // 4 | 1, size // 2, size - size // 4, size - (1 << 20)):
        refused(host.run(["scip", "restore", altered(host, image, flip(at))], check=False), "damaged")
        assert log.read_bytes() == left and mapped.read_bytes() == held and not host.vpids()
    whole = image.read_bytes()
    image.write_bytes(whole[: size // 2] + bytes([whole[size // 2] ^ 1]) + whole[size // 2 + 1 :])
    refused(host.ctl("rollback", "large", check=False), "damaged")
    image.write_bytes(whole)
    mapped.write_bytes(b"mine" * 1024)  # the failed rollback has not made the job's files forgotten
    refused(host.ctl("rollback", "large", check=False), "written to since the job ended")
    assert mapped.read_bytes() == b"mine" * 1024
    host.rollback("large", "--force")
    assert (host.home / "mapped.before-rollback-1").read_bytes() == b"mine" * 1024
    host.wait_until(lambda: saved <= counted(log) < saved + 300 and log.read_bytes() != left, what="the file as it was")
    counts(host, log, more=45)
    assert int(mapped.read_bytes()[:8]) >= saved
    host.ctl("kill", "-s", "KILL", "large")


def test_another_format(host, count):
    def newer(data):
        data[16392] ^= 64

    copy = altered(host, host.checkpoint("count"), newer)
    refused(host.ctl("rollback", "--to", copy, "count", check=False), "format")
    refused(host.ctl("image", "show", copy, check=False), "format")


def test_not_an_image(host, count):
    for content in (b"", b"#!/bin/sh\n", os.urandom(100000), bytes(100000)):
        path = host.file("garbage", content)
        refused(host.ctl("rollback", "--to", path, "count", check=False), "garbage")
        refused(host.ctl("image", "verify", path, check=False), "garbage")
        refused(host.run(["scip", "restore", path], check=False), "garbage")
    refused(host.run(["scip", "restore", "/"], check=False))
    refused(host.run(["scip", "restore", "/dev/null"], check=False))
    counts(host, count[1])


def test_of_another_user(host, root_host):
    """Root's image is refused to a user and a user's to root."""
    for owner, other in ((host, root_host), (root_host, host)):
        owner.detach(*COUNT, name="count")
        image = owner.checkpoint("count", "--kill")
        copy = other.file("foreign.ckpt", image.read_bytes())
        copy.chmod(0o700)
        refused(other.run(["scip", "restore", copy], check=False), "user")


def test_number_in_use(host, count):
    """The process still runs: its number cannot be given again."""
    vpid, out = count
    image = host.checkpoint("count")
    refused(host.run(["scip", "restore", image], check=False), str(vpid))
    counts(host, out)


def test_unwritable_directory(host, count):
    vpid, out = count
    before = host.checkpoint("count")
    folder = host.home / "closed"
    folder.mkdir(mode=0o555)
    for path in (folder / "x.ckpt", "/proc/x.ckpt", host.home / "no" / "such" / "x.ckpt"):
        done = host.ctl("checkpoint", "-o", path, "count", check=False)
        refused(done)
    counts(host, out)
    host.ctl("image", "verify", before)


@pytest.mark.parametrize("small_disk", ["6m"], indirect=True)
def test_full_disk(host, small_disk):
    """The dump does not fit: the older image is whole, no part of the new one remains, the program runs."""
    hold = ["python3", "-uc", """
import os, time
data = b""
n = 0
while True:
    if os.path.exists("grow"):
        data = data or os.urandom(20 << 20)
    print(n, flush=True)
    n += 1
    time.sleep(0.02)
"""]
    vpid, out = host.detach("sh", "-c", "exec sleep 1000", name="little")
    image = small_disk / "x.ckpt"
    host.checkpoint("little", "-o", image)
    bytes_before = image.read_bytes()
    _, out = host.detach(*hold, name="big")
    host.file("grow")
    host.wait_until(lambda: counted(out) > 20, what="counting")
    for target in (image, small_disk / "y.ckpt"):
        refused(host.ctl("checkpoint", "-o", target, "big", check=False), "space")
    counts(host, out)
    assert image.read_bytes() == bytes_before and list(small_disk.iterdir()) == [image]
    host.ctl("kill", "-s", "KILL", "big")
    host.ctl("kill", "-s", "KILL", "little")


def test_limit_on_file_size(host):
    """RLIMIT_FSIZE of the caller does not affect the program; a dump that cannot be written is reported."""
    vpid, out = host.detach("sh", "-c", 'ulimit -f 100; exec "$@"', "sh", *COUNT, name="limited")
    host.wait_until(lambda: counted(out) > 3, what="counting")
    done = host.ctl("checkpoint", "limited", check=False)
    assert done.returncode == 0 or done.stderr.count("\n") == 1
    counts(host, out)
    host.ctl("kill", "-s", "KILL", "limited")


def test_missing_program_file(host):
    """The program's own file is missing or replaced: the refusal names it."""
    program = host.home / "sleeper"
    shutil.copy("/bin/sleep", program)
    program.chmod(0o755)
    host.detach(program, "1000", name="sleeper")
    host.checkpoint("sleeper", "--kill")
    program.unlink()
    refused(host.ctl("rollback", "sleeper", check=False), "sleeper")
    shutil.copy("/bin/cat", program)
    program.chmod(0o755)
    refused(host.ctl("rollback", "sleeper", check=False), "sleeper")


def has_open(host, path):
    """True if a supervised program has the file open. Descriptors may be closed, and programs end, meanwhile."""
    for pid in host.program_pids():
        try:
            if any(os.readlink(entry.path) == str(path) for entry in os.scandir(f"/proc/{pid}/fd")):
                return True
        except OSError:
            continue
    return False


def test_missing_open_file(host):
    """A file that was open for reading is missing."""
    path = host.file("data", "content")
    host.detach("python3", "-c", "import time; f = open('data'); time.sleep(1000)", name="reader")
    host.wait_until(lambda: has_open(host, path), what="the open file")
    host.checkpoint("reader")
    pid, = host.program_pids()
    path.unlink()
    refused(host.ctl("rollback", "reader", check=False), "data")
    assert host.program_pids() == [pid]
    host.ctl("kill", "-s", "KILL", "reader")


ODD = {
    "tcp": ("a TCP connection to a peer outside", """
import socket, time
s = socket.create_connection(("127.0.0.1", PORT))
"""),
    "io_uring": ("io_uring", """
import ctypes
if ctypes.CDLL(None).syscall(425, 4, (ctypes.c_char * 120)()) < 0:
    print("none")
"""),
    "userfaultfd": ("userfaultfd", """
import ctypes
if ctypes.CDLL(None).syscall(323, 1) < 0:
    print("none")
"""),
}


@pytest.mark.parametrize("odd", ["tcp", "io_uring", "userfaultfd"])
def test_unsupported_is_refused(host, odd):
    """The sentence names process and descriptor; the program goes on."""
    what, source = ODD[odd]
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = source.replace("PORT", str(server.getsockname()[1])) + "print('ready', flush=True)\nimport time\ntime.sleep(1000)\n"
        _, out = host.detach("python3", "-uc", source, name="odd")
        host.wait_until(lambda: "ready" in out.read_text() or not host.program_pids(), what="it to be ready")
        if out.read_text() != "ready\n":
            host.ctl("kill", "-s", "KILL", "odd", check=False)
            pytest.skip(f"this kernel gives a user no {what}: {out.read_text()[-200:]}")
        refused(host.ctl("checkpoint", "odd", check=False), "fd ", ODD[odd][0].split()[0] if odd != "tcp" else "TCP")
        assert host.program_pids()
        host.ctl("kill", "-s", "KILL", "odd")
