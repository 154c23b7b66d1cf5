"""Shared memory that is swapped out during a checkpoint."""
import ctypes
import os
import pathlib
import subprocess
import tempfile
import time

import pytest

PIDFD_OPEN, PROCESS_MADVISE, MADV_PAGEOUT = 434, 440, 21
PROGRAM = """import hashlib, mmap, os, time
memory = mmap.mmap(-1, 96 << 20)
memory.write(os.urandom(96 << 20))
digest = hashlib.sha256(memory).digest()
print('ready', flush=True)
while not os.path.exists('go'):
    time.sleep(.02)
print('the same' if hashlib.sha256(memory).digest() == digest else 'lost', flush=True)
"""


@pytest.fixture
def swap_space():
    """The machine's swap space, or a file of the test."""
    if len(open("/proc/swaps").readlines()) > 1:
        yield
        return
    with tempfile.NamedTemporaryFile(dir="/var/tmp", prefix="pbeam-swap-") as file:
        os.posix_fallocate(file.fileno(), 0, 256 << 20)
        for command in (["mkswap", file.name], ["swapon", file.name]):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"needs swap space: {done.stderr.strip()}")
        yield
        subprocess.run(["swapoff", file.name], check=True)


def page_out(vpid):
    """Swaps out all shared anonymous memory of the process, as the kernel does when memory is short."""

    class Range(ctypes.Structure):
        _fields_ = [("start", ctypes.c_void_p), ("len", ctypes.c_size_t)]

    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = libc.syscall(PIDFD_OPEN, vpid, 0)
    for line in pathlib.Path(f"/proc/{vpid}/maps").read_text().splitlines():
        if "/dev/zero" in line:
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            done = libc.syscall(PROCESS_MADVISE, pidfd, ctypes.byref(Range(start, end - start)), ctypes.c_size_t(1), MADV_PAGEOUT, 0)
            assert done == end - start, os.strerror(ctypes.get_errno())
    os.close(pidfd)


def swapped(vpid):
    return int(pathlib.Path(f"/proc/{vpid}/smaps_rollup").read_text().split("\nSwap:")[1].split()[0]) << 10


@pytest.mark.long(only=True)
def test_between_two_looks(swap_space, host):
    """Swapped-out pages are detected before pages are listed: mincore() shows them for some seconds after they were written out."""
    word = host.file("fault")
    job = host.scip_run("python3", "-c", PROGRAM, env={"PBEAM_FAULT": str(word)})
    job.wait_for("ready")
    vpid = host.vpids()[0]
    word.write_text("after-dump:sleep")
    saving = host.start(["pbeamctl", "checkpoint", vpid], "saving")
    host.wait_until(lambda: word.read_text() == "after-dump:reached", 20, "the processes to be dumped")
    page_out(vpid)
    assert swapped(vpid) > 90 << 20
    time.sleep(7)
    word.write_text("")
    assert saving.wait(60) == 0, saving.errors()
    host.rollback(str(vpid))
    host.file("go")
    assert job.wait(30) == 0 and job.lines()[-1] == "the same"
