"""checkpoint, log, rollback, restore, kill, image: each statement of the manual."""
import os
import signal
import stat
import subprocess
import time

import pytest
from programs import COUNT, TREE, counted, counts

pytestmark = pytest.mark.timeout(60)


@pytest.mark.short
def test_goes_on(host, count):
    vpid, out = count
    image = host.checkpoint("count")
    mode = os.stat(image)
    assert stat.S_IMODE(mode.st_mode) & 0o077 == 0 and image.is_relative_to(host.state / "pbeam")
    counts(host, out)
    assert host.checkpoint(str(vpid)) != image
    counts(host, out)


@pytest.mark.short
def test_rollback(host, count):
    vpid, out = count
    host.checkpoint("count")
    at = counted(out)
    counts(host, out, 30)
    reached = counted(out)
    host.rollback("count")
    counts(host, out)
    assert at <= counted(out) < reached + 200
    assert vpid in host.vpids()


def test_rollback_cuts_off_what_was_appended(host):
    """The file is restored at the rollback, not merely overwritten."""
    vpid, out = host.detach("sh", "-c", "echo first; sleep 2; echo second; exec sleep 60", name="two")
    host.wait_until(lambda: "first" in out.read_text(), what="the first line")
    host.checkpoint("two")
    host.wait_until(lambda: "second" in out.read_text(), what="the second line")
    host.rollback("two")
    assert out.read_text() == "first\n"
    host.wait_until(lambda: out.read_text() == "first\nsecond\n", what="the second line again")
    host.ctl("kill", "-s", "KILL", "two")


@pytest.mark.short
@pytest.mark.parametrize("times", [5])
def test_killed_and_rolled_back(host, count, times):
    """kill -9, then rollback by name, repeatedly."""
    vpid, out = count
    for _ in range(times):
        host.checkpoint("count")
        host.kill_programs()
        host.rollback("count")
        counts(host, out)
        assert vpid in host.vpids()


def test_log_and_numbers(host, count):
    vpid, out = count
    images = []
    reached = []
    for _ in range(3):
        reached.append(counted(out))
        images.append(host.checkpoint("count"))
        counts(host, out, 10)
    text = host.ctl("log", "count").stdout
    assert len(set(images)) == 3 and all(image.exists() for image in images)
    for number in ("1", "2", "3"):
        assert any(line.split()[:1] == [number] for line in text.splitlines()), text
    host.rollback("count", "--to", "1")
    assert counted(out) < reached[2]
    counts(host, out)
    host.rollback("count", "--to", str(images[1]))
    counts(host, out)
    done = host.ctl("rollback", "--to", "1@elsewhere", "count", check=False)
    assert done.returncode == 1 and "no host elsewhere" in done.stderr


def test_keep(host):
    vpid, out = host.detach(*COUNT, name="kept", options=["--keep", "2"])
    host.wait_until(lambda: counted(out) > 3, what="counting")
    images = [host.checkpoint("kept") for _ in range(4)]
    assert [image.exists() for image in images] == [False, False, True, True]
    host.ctl("kill", "-s", "KILL", "kept")


def test_interval(host):
    vpid, out = host.detach(*COUNT, name="regular", options=["--interval", "1s", "--keep", "3"])
    host.wait_until(lambda: len(list(host.state.rglob("*.ckpt"))) >= 3, 20, "three checkpoints")
    counts(host, out)
    host.ctl("kill", "-s", "KILL", "regular")
    host.wait_until(lambda: vpid not in host.vpids(), what="its end")
    host.rollback("regular", "--to", str(max(host.state.rglob("*.ckpt"), key=lambda path: path.stat().st_mtime)))
    counts(host, out)
    host.ctl("kill", "-s", "KILL", "regular")


@pytest.mark.short
def test_output_and_kill(host, count):
    vpid, out = count
    image = host.home / "here.ckpt"
    assert host.checkpoint("count", "-o", str(image), "--kill") == image
    assert vpid not in host.vpids()
    at = counted(out)
    job = host.start(["scip", "restore", image], "restored")
    host.wait_until(lambda: counted(out) > at + 5, what="counting")
    host.ctl("kill", "-s", "TERM", str(vpid))
    assert job.wait() == 143


def test_image_is_executable(host, count):
    vpid, out = count
    image = host.checkpoint("count", "-o", "here.ckpt", "--kill")
    at = counted(out)
    job = host.start(["./here.ckpt"], "restored")
    host.wait_until(lambda: counted(out) > at + 5, what="counting")
    host.ctl("kill", "-s", "TERM", str(vpid))
    assert job.wait() == 143
    assert image.name == "here.ckpt"


def test_restore_detached(host, count):
    vpid, out = count
    image = host.checkpoint("count", "--kill")
    assert int(host.run(["scip", "restore", "-d", image]).stdout) == vpid
    counts(host, out)


def test_console_stays(host):
    """The console of a foreground job shows the rolled back program and exits with its status."""
    job = host.scip_run("python3", "-uc", """
import os, time
print("ready")
while not os.path.exists("go"):
    time.sleep(0.02)
print("done")
raise SystemExit(9)
""", name="front")
    job.wait_for("ready")
    host.checkpoint("front")
    for _ in range(3):
        host.rollback("front")
        assert job.process.poll() is None
    host.file("go")
    assert job.wait() == 9 and job.lines().count("done") == 1


@pytest.mark.short
def test_tree(host):
    job = host.scip_run(*TREE, name="tree")
    job.wait_for("ids")
    host.wait_until(lambda: len(host.vpids()) == 3, what="the grandchild")
    host.checkpoint("tree")
    for _ in range(3):
        host.rollback("tree")
        assert len(host.vpids()) == 3
        host.checkpoint("tree")
    host.file("go")
    assert job.wait() == 0 and job.lines().count("pass") == 1


def test_pipe_output(host):
    """Output to a pipe: what was written after the checkpoint is written again, and nothing is lost."""
    process = host.popen(["scip", "run", "--name", "piped", "--", *COUNT], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    read = [int(process.stdout.readline()) for _ in range(5)]
    host.checkpoint("piped")
    read += [int(process.stdout.readline()) for _ in range(10)]
    host.rollback("piped")
    read += [int(process.stdout.readline()) for _ in range(40)]
    back = [n for n in range(1, len(read)) if read[n] != read[n - 1] + 1]
    assert len(back) == 1 and 0 <= read[back[0]] <= read[back[0] - 1], read
    host.ctl("kill", "-s", "KILL", "piped")
    process.stdout.close()
    assert process.wait(20) == 137


def test_image_commands(host, count):
    image = host.checkpoint("count")
    assert "python" in host.ctl("image", "show", str(image)).stdout
    host.ctl("image", "verify", str(image))
    stack = host.ctl("stack", "count").stdout
    assert stack
    assert host.ctl("stack", str(image)).stdout


def test_image_diff(host, count):
    older = host.checkpoint("count")
    assert " 0 pages changed, 0 new, 0 gone" in host.ctl("image", "diff", str(older), str(older)).stdout
    counts(host, count[1])
    changed = host.ctl("image", "diff", str(older), str(host.checkpoint("count"))).stdout
    assert f"vpid {count[0]}: " in changed and " 0 pages changed" not in changed.splitlines()[0], changed
    assert host.ctl("image", "diff", str(older), check=False).returncode == 2


@pytest.mark.parametrize("mode", ["cow", "incremental", "nonsense"])
def test_modes_that_are_not_there(host, count, mode):
    done = host.ctl("checkpoint", "--mode", mode, "count", check=False)
    assert done.returncode in (1, 2) and mode in done.stderr and not done.stdout
    counts(host, count[1])


def test_doctor(host):
    done = host.ctl("doctor", check=False)
    assert done.returncode in (0, 1) and "ptrace" in done.stdout.lower()


def test_no_wait(host, count):
    host.ctl("checkpoint", "--no-wait", "count")
    counts(host, count[1])
    host.wait_until(lambda: list(host.state.rglob("*.ckpt")), what="the image")


def test_alone(host):
    """--alone saves one process only."""
    job = host.scip_run("sh", "-c", "sleep 60 & child=$!; echo ready; while [ ! -e go ]; do sleep 0.05; done; kill $child", name="parent")
    job.wait_for("ready")
    whole = host.checkpoint("parent")
    alone = host.checkpoint("parent", "--alone")
    assert whole != alone
    show = host.ctl("image", "show", str(alone)).stdout
    assert show
    host.file("go")
    job.wait()


def test_as_root(root_host):
    vpid, out = root_host.detach(*COUNT, name="count")
    root_host.wait_until(lambda: counted(out) > 3, what="counting")
    root_host.checkpoint("count")
    root_host.kill_programs()
    root_host.rollback("count")
    counts(root_host, out)
    root_host.ctl("kill", "-s", "KILL", "count")


SOON = """
import ctypes, os, socket, time
libc = ctypes.CDLL(None)
watch = libc.inotify_init()
assert libc.inotify_add_watch(watch, b".", 0x100) > 0
listener = socket.socket(socket.AF_UNIX)
listener.bind("soon"); listener.listen()
client = socket.socket(socket.AF_UNIX)
client.connect("soon"); client.send(b"early")
print("ready", flush=True)
time.sleep(0.1)
server, _ = listener.accept()
os.read(watch, 4096)
print("read", server.recv(5).decode(), flush=True)
time.sleep(60)
"""


def test_what_is_under_way_is_waited_for(host):
    """Unread events and unaccepted connections cannot be saved: the checkpoint waits a little for them."""
    job = host.scip_run("python3", "-c", SOON, name="soon").wait_for("ready")
    host.checkpoint("soon")
    job.wait_for("read early")
    host.rollback("soon")
    host.ctl("kill", "-s", "KILL", "soon")
    job.wait(20)


VFORK = """
import ctypes, sys
libc = ctypes.CDLL(None)
stack = ctypes.create_string_buffer(65536)
print("waits", flush=True)
libc.clone(ctypes.cast(getattr(libc, sys.argv[1]), ctypes.c_void_p), ctypes.c_void_p(ctypes.addressof(stack) + 65000 & ~15),
           0x4100 | 17, ctypes.c_void_p(int(sys.argv[2])))  # CLONE_VFORK | CLONE_VM | SIGCHLD
print("goes on", flush=True)
while True:
    pass
"""


def test_vfork_that_does_not_end(host):
    """A thread in vfork cannot be stopped: refused at once, with the child to wait for; afterwards it can be saved."""
    job = host.scip_run("python3", "-c", VFORK, "pause", "0", name="vfork").wait_for("waits")
    child = host.wait_until(lambda: [vpid for vpid in host.vpids() if vpid != host.vpids()[0]], what="the child")[0]
    start = time.monotonic()
    done = host.run(["pbeamctl", "checkpoint", "vfork"], check=False)
    assert done.returncode == 1 and time.monotonic() - start < 3
    assert f"waits in vfork for its child, vpid {child}, which" in done.stderr, done.stderr
    host.ctl("kill", str(child))
    job.wait_for("goes on")
    host.checkpoint("vfork")
    host.ctl("kill", "-s", "KILL", "vfork")
    job.wait(20)


def test_vfork_that_ends_in_time(host):
    """The checkpoint waits for a child that runs."""
    job = host.scip_run("sh", "-c", "while :; do true & wait; python3 -c 'import subprocess; subprocess.run([\"true\"])'; done", name="busy")
    host.wait_until(lambda: len(host.vpids()) > 1, what="children")
    for _ in range(5):
        host.checkpoint("busy")
    host.ctl("kill", "-s", "KILL", "busy")
    job.wait(20)


def test_daemons_with_children(host):
    """Servers that have left their parents, as tmux does: parents come first in the image, whatever their order in the name table."""
    three = "sh -c 'sleep 1000; :'; :"
    vpid, _ = host.detach("sh", "-c", "for i in 1 2 3 4 5 6 7 8; do (sh -c \"$1\" &); done; exec sleep 1000", "sh", three, name="servers")

    def family():
        return sorted((row["vpid"], row["parent"], row["name"]) for row in host.ps()["processes"])

    host.wait_until(lambda: sum(row[2] == "sleep" for row in family()) >= 8, what="the servers' children")
    before = family()
    host.checkpoint("servers", "--kill")
    host.rollback("servers")
    after = family()
    assert [(row[0], row[2]) for row in after] == [(row[0], row[2]) for row in before]
    assert [row for row in after if row[2] == "sleep"] == [row for row in before if row[2] == "sleep"]
    for row in after:
        host.ctl("kill", "-s", "KILL", row[0], check=False)


CALLS = """
import os, socket, time
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", 0))
listener.listen()
if os.fork() == 0:
    calling = socket.create_connection(listener.getsockname())
    listener.close()
    own = calling.getsockname()
    for n in range(10 ** 9):
        calling.sendall(b"%d\\n" % n)
        assert int(calling.recv(20)) == n and calling.getsockname() == own
        print(n, os.getpid(), flush=True)
        time.sleep(0.005)
accepted, peer = listener.accept()
while data := accepted.recv(20):
    assert accepted.getpeername() == peer
    accepted.sendall(data)
"""


def test_connection_whose_port_is_not_free(host):
    """The end that is killed first stays in TIME_WAIT: first the server's, so that the client's port is bound, then the client's on that port."""
    host.file("calls.py", CALLS)
    server, out = host.detach("python3", "calls.py", name="calls")

    def goes_on():
        before = len(out.read_text().splitlines())
        host.wait_until(lambda: len(out.read_text().splitlines()) > before + 3, what="the client to go on")

    goes_on()
    client = int(out.read_text().split()[1])
    host.checkpoint("calls")
    host.rollback("calls")
    goes_on()
    for first in (server, client, client, server, client):
        real = {row["vpid"]: row["pid"] for row in host.ps()["processes"]}
        os.kill(real[first], signal.SIGKILL)
        host.wait_until(lambda: not host.vpids(), what="the other one to end")
        host.rollback("calls")
        goes_on()
    host.kill_programs()


def test_action_of_sigtrap_stays(host):
    """The code that scip runs in a program ends with a forced SIGTRAP, which resets the action of a program that ignores it."""
    for action in ("SIG_IGN", "SIG_DFL"):
        program = f"import signal, time; signal.signal(signal.SIGTRAP, signal.{action}); print('set', flush=True); time.sleep(1000)"
        vpid, out = host.detach("python3", "-c", program, name=action)
        host.wait_until(out.read_text, what="the action to be set")
        for _ in range(2):
            host.checkpoint(action)
            ignored = next(line for line in open(f"/proc/{vpid}/status") if line.startswith("SigIgn"))
            assert bool(int(ignored.split()[1], 16) >> signal.SIGTRAP - 1 & 1) == (action == "SIG_IGN")
        host.ctl("kill", "-s", "KILL", action)
