"""Process state beyond descriptors that cannot be saved: one sentence names it, and the program goes on."""
import pytest

pytestmark = pytest.mark.timeout(60)

LIBC = "import ctypes, os, time\nlibc = ctypes.CDLL(None, use_errno=True)\n"
READY = "print('ready', flush=True)\nwhile True:\n    time.sleep(0.02)\n"

ODD = {
    "native AIO": ("asynchronous I/O", LIBC + """
context = ctypes.c_ulong(0)
assert libc.syscall(206, 16, ctypes.byref(context)) == 0
"""),
    "removed directory": ("was removed", LIBC + """
os.mkdir("gone")
os.chdir("gone")
os.rmdir("../gone")
"""),
    "a strict filter": ("seccomp filter that forbids", LIBC + """
import struct
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 27), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)]
filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(filters))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program) == 0
"""),
    "a user namespace": ("namespace of its own", LIBC + """
if libc.unshare(0x10000000) < 0:
    print("none")
"""),
    "shared memory of a child": ("it shares its memory", LIBC + """
import threading
STACK = ctypes.create_string_buffer(1 << 20)
ENTRY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
pause = ctypes.cast(libc.pause, ctypes.c_void_p)
assert libc.clone(pause, ctypes.c_void_p(ctypes.addressof(STACK) + (1 << 20) - 64), 0x100 | 17, None) > 0
"""),
}


@pytest.mark.parametrize("odd", list(ODD))
def test_refused(host, odd):
    what, source = ODD[odd]
    vpid, out = host.detach("python3", "-uc", source + READY, name="odd")
    host.wait_until(lambda: out.read_text() or not host.program_pids(), what="it to be ready")
    if out.read_text() != "ready\n":
        host.ctl("kill", "-s", "KILL", "odd", check=False)
        pytest.skip(f"this machine gives a user no {odd}: {out.read_text()[-200:]}")
    before = host.program_pids()
    done = host.ctl("checkpoint", "odd", check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and not done.stdout, (done.returncode, done.stdout, done.stderr)
    assert f"vpid {vpid} (python3)" in done.stderr or "shares" in done.stderr, done.stderr
    assert what in done.stderr and ";" in done.stderr, done.stderr
    assert host.program_pids() == before
    assert not list(host.state.rglob("*.tmp-*"))
    for pid in before:
        host.ctl("kill", "-s", "KILL", str(pid), check=False)
