"""The files that a rollback changes are one of two versions, whatever fails: a full disk, an error at any step, a kill -9 of any actor."""
import hashlib
import os
import signal
import subprocess

import pytest
from programs import fill_disk

pytestmark = pytest.mark.timeout(120)

# Has three files open: "data", which it overwrites in place when told to, "gone", which is removed, "log", to which it appends. Those that are
# removed or changed are so for good after "go": it then waits.
PROGRAM = """
import os, sys, time
os.chdir(sys.argv[1])
first, second = bytes([1]) * (2 << 20), bytes([2]) * (1 << 20)
data = open("data", "r+b", 0) if os.path.exists("data") else open("data", "w+b", 0)
gone, log = open("gone", "w+b", 0), open("log", "ab", 0)
data.write(first)
gone.write(b"still here" * 1000)
log.write(b"one\\n")
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
mode = open("go").read()
data.seek(0)
data.write(second)
if mode == "shrink":
    data.truncate(0)
log.write(b"two\\n" * 5000)
os.unlink("gone")
os.chmod("data", 0o640)
print("changed", flush=True)
n = 0
while True:
    print(n, flush=True)
    n += 1
    time.sleep(0.02)
"""
STEPS = ["restore-frozen", "restore-made-objects", "restore-made-tree", "restore-before-run", "restore-before-commit", "files-copied", "files-prepared",
         "files-placed", "files-range", "files-switched"]


def state(folder):
    """Each file's contents, mode and time of change."""
    found = {}
    for name in ("data", "gone", "log"):
        path = folder / name
        if path.exists():
            st = path.stat()
            found[name] = (hashlib.sha256(path.read_bytes()).hexdigest(), st.st_size, st.st_mode & 0o7777, st.st_mtime_ns)
    return found


def contents(files):
    return {name: entry[:2] for name, entry in files.items()}


def left(host, folder):
    return [path for path in folder.iterdir() if ".pbeam-" in path.name] + list((host.state / "pbeam" / ".undo").glob("*"))


def begin(host, folder, mode="overwrite", **more):
    """Saves the program, lets it change its files. Returns the image, the first and the second version."""
    host.file("program.py", PROGRAM)
    vpid, out = host.detach("python3", "program.py", folder, name="files", **more)
    host.wait_until(lambda: "ready" in out.read_text(), what="the program")
    image = host.checkpoint("files")
    first = state(folder)
    (folder / "go.new").write_text(mode)
    (folder / "go.new").rename(folder / "go")
    host.wait_until(lambda: "changed" in out.read_text(), what="the program's change")
    return image, first, state(folder)


def goes_back(host, folder, image, first):
    """A rollback, or a restore if the program has ended, restores the first version."""
    (folder / "go").unlink(missing_ok=True)
    if host.program_pids():
        host.rollback("files")
    else:
        host.run(["scip", "restore", "-d", image])
    assert contents(state(folder)) == contents(first)
    assert not left(host, folder)
    host.kill_programs()


@pytest.fixture
def folder(host):
    path = host.home / "folder"
    path.mkdir()
    host.own(path)
    return path


@pytest.mark.parametrize("small_disk", ["5m"], indirect=True)
@pytest.mark.parametrize("mode", ["overwrite", "shrink"])
def test_full_disk(host, small_disk, mode):
    """There is no room for the earlier contents, or for the later ones: nothing changes, and the program goes on."""
    image, first, second = begin(host, small_disk, mode)
    ballast = small_disk / "ballast"
    fill_disk(ballast)
    done = host.ctl("rollback", "files", check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "No space left" in done.stderr, done.stderr
    assert state(small_disk) == second
    assert not left(host, small_disk)
    out = host.home / "files.out"
    before = len(out.read_text())
    host.wait_until(lambda: len(out.read_text()) > before, what="the program to go on")
    ballast.unlink()
    goes_back(host, small_disk, image, first)


@pytest.mark.parametrize("action", ["fail", "kill"])
@pytest.mark.parametrize("point", STEPS)
def test_step(host, folder, point, action):
    """A step before the commit fails, or the coordinator is killed there: the files are as the program left them."""
    fault = host.file("fault")
    image, first, second = begin(host, folder, env={"PBEAM_FAULT": str(fault)})
    fault.write_text(f"{point}:{action}\n")
    done = host.ctl("rollback", "files", check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    fault.write_text("")
    assert state(folder) == second
    assert not left(host, folder)
    goes_back(host, folder, image, first)


@pytest.mark.parametrize("point", ["restore-condemned", "restore-adopted", "files-settled"])
def test_killed_after_the_commit(host, folder, point):
    """The coordinator is killed when the new contents are in place: they stay, and what is left to do is done."""
    fault = host.file("fault")
    image, first, _ = begin(host, folder, env={"PBEAM_FAULT": str(fault)})
    (folder / "go").unlink()
    fault.write_text(f"{point}:kill\n")
    host.ctl("rollback", "files", check=False)
    fault.write_text("")
    assert host.program_pids() and contents(state(folder)) == contents(first)
    assert not left(host, folder)
    goes_back(host, folder, image, first)


@pytest.mark.parametrize("point", ["files-copied", "files-prepared", "files-placed", "files-switched"])
def test_keeper_killed_as_well(host, folder, point):
    """No process is left to put the files back: the next pbeamd does."""
    fault = host.file("fault")
    image, first, second = begin(host, folder, env={"PBEAM_FAULT": str(fault)})
    fault.write_text(f"{point}:sleep\n")
    asked = host.popen(["pbeamctl", "rollback", "files"], stderr=subprocess.DEVNULL)
    host.wait_until(lambda: fault.read_text() == f"{point}:reached", what="the step")
    for name in ("pbeamd", "scip-keeper", "scip-coordinate"):  # pbeamd would restore the job, whose keeper has ended
        for pid in host.named(name):
            os.kill(pid, signal.SIGKILL)
    asked.wait()
    fault.write_text("")
    host.wait_until(lambda: not host.program_pids() and not host.named("scip-coordinate"), what="all to end")
    (folder / "go").unlink()
    host.ctl("ps")
    assert state(folder) == second
    assert not left(host, folder)
    goes_back(host, folder, image, first)
    host.wait_until_swept()
