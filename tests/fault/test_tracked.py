"""`scip run --track DIR`: a rollback puts the directory back as a whole, or leaves it as it is, whatever fails."""
import hashlib
import json
import os
import signal
import subprocess

import pytest
from programs import fill_disk

pytestmark = pytest.mark.timeout(120)

# Makes a tree, and after "go" (outside of it) changes everything in it by name. One file stays open.
PROGRAM = """
import os, shutil, socket, sys, time
os.chdir(sys.argv[1])
def write(name, data, mode=0o644):
    with open(name, "wb") as file:
        file.write(data)
    os.chmod(name, mode)
os.makedirs("deep/er")
os.mkdir("gone")
os.mkdir("empty")
os.mkdir("closed", 0o750)
for i in range(20):
    write(f"deep/er/{i}", b"%d" % i * 5000, 0o600 + i)
    write(f"gone/{i}", b"gone %d" % i)
write("same", b"same")
write("renamed", b"old" * 3000)
write("in-place", bytes(200000), 0o640)
write("one-name", b"linked")
os.link("one-name", "other-name")
write("apart", b"apart")
os.symlink("deep/er/1", "link")
os.symlink("nowhere", "was-link")
write("was-file", b"file")
with open("sparse", "wb") as file:
    file.truncate(50 << 20)
    file.seek(30 << 20)
    file.write(b"data")
os.utime("deep", (1, 1000000000))
os.utime("same", (1, 1000000001))
held = open("held", "w+b", 0)
held.write(b"first")
special = socket.socket(socket.AF_UNIX)
print("ready", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
shutil.rmtree("gone")
write("renamed.new", b"new" * 3000)
os.rename("renamed.new", "renamed")
with open("in-place", "r+b") as file:
    file.seek(100000)
    file.write(b"changed")
os.unlink("other-name")
write("other-name", b"not linked any more")
os.unlink("apart")
os.link("same", "apart")
os.unlink("link")
os.symlink("same", "link")
os.unlink("was-link")
os.mkdir("was-link")
write("was-link/inside", b"inside")
os.unlink("was-file")
os.symlink("same", "was-file")
os.unlink("sparse")
os.makedirs("created/deep")
write("created/deep/file", b"new")
write("deep/er/new", b"new")
os.symlink("x", "created/link")
os.unlink("deep/er/3")
os.chmod("closed", 0o700)
os.chmod("same", 0o600)
held.seek(0)
held.write(b"second and longer")
print("changed", flush=True)
n = 0
while True:
    print(n, flush=True)
    n += 1
    time.sleep(0.02)
"""


def state(folder):
    """Each name with what it is: type, mode, time, contents, and the names of the same inode."""
    found, inodes = {}, {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        st, name = path.lstat(), str(path.relative_to(folder))
        inodes.setdefault(st.st_ino, []).append(name)
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[name] = ("directory", st.st_mode, st.st_mtime_ns)
        else:
            found[name] = (hashlib.sha256(path.read_bytes()).hexdigest(), st.st_mode, st.st_mtime_ns, inodes[st.st_ino][0])
    return found


def left(host, folder):
    return [path for path in folder.rglob("*") if ".pbeam-" in path.name] + list((host.state / "pbeam" / ".undo").glob("*"))


def begin(host, folder, **more):
    """Saves the program, lets it change the tree. Returns the image, the first and the second version."""
    host.file("program.py", PROGRAM)
    vpid, out = host.detach("python3", "program.py", folder, host.home / "go", name="tree", options=("--track", str(folder)), **more)
    host.wait_until(lambda: "ready" in out.read_text(), what="the program")
    image = host.checkpoint("tree")
    first = state(folder)
    host.file("go")
    host.wait_until(lambda: "changed" in out.read_text(), what="the program's change")
    second = state(folder)
    assert first != second
    return image, first, second


def goes_back(host, folder, first):
    (host.home / "go").unlink(missing_ok=True)
    host.rollback("tree")
    assert state(folder) == first
    assert not left(host, folder)


@pytest.fixture
def folder(host):
    path = host.home / "folder"
    path.mkdir()
    host.own(path)
    return path


def test_running(host, folder):
    image, first, second = begin(host, folder)
    assert (folder / "sparse").exists() is False
    for _ in range(2):
        goes_back(host, folder, first)
        assert (folder / "sparse").stat().st_blocks < 1000
        host.file("go")
        out = host.home / "tree.out"
        host.wait_until(lambda: "changed" in out.read_text(), what="the program's change")
    assert json.loads(host.ctl("log", "--json", "tree").stdout)["checkpoints"][0]["track"] == [str(folder)]
    assert f"(tracks {folder})" in host.ctl("log", "tree").stdout
    host.kill_programs()


def test_ended(host, folder):
    """A job that has ended is restored with its tree; what others have written since is refused, or kept beside."""
    image, first, second = begin(host, folder)
    host.ctl("kill", "tree")
    host.wait_until(lambda: not host.program_pids() and (host.state / "pbeam" / "tree" / "ended").exists(), what="the end")
    (host.home / "go").unlink()
    done = json.loads(host.ctl("rollback", "--dry-run", "--json", "tree").stdout)
    fates = {os.path.relpath(file["path"], folder): file["fate"] for file in done["files"]}
    assert fates["deep/er/new"] == fates["created/deep/file"] == "removed" and fates["deep/er/3"] == fates["gone/7"] == "created"
    assert fates["renamed"] == fates["in-place"] == "replaced" and not any(file["foreign"] for file in done["files"])
    assert state(folder) == second
    for name in ("created/foreign", "renamed"):
        (folder / name).write_text("of others")
        host.own(folder / name)
    refused = host.ctl("rollback", "tree", check=False)
    assert refused.returncode == 1 and "has been written to since the job ended" in refused.stderr
    done = json.loads(host.ctl("rollback", "--dry-run", "--json", "tree").stdout)
    assert {os.path.relpath(file["path"], folder) for file in done["files"] if file["foreign"]} == {"created/foreign", "renamed"}
    host.ctl("rollback", "--force", "tree")
    kept = {path.name: path.read_text() for path in folder.rglob("*.before-rollback-*")}
    assert kept == {"foreign.before-rollback-1": "of others", "renamed.before-rollback-1": "of others"}
    now = {name: entry for name, entry in state(folder).items() if ".before-rollback-" not in name}
    assert now.keys() - {"created"} == first.keys() and all(now[name] == first[name] for name in first)
    assert not left(host, folder)
    host.checkpoint("tree")  # the job tracks the directory still
    assert [entry["track"] for entry in json.loads(host.ctl("log", "--json", "tree").stdout)["checkpoints"]] == [[str(folder)]] * 2
    host.kill_programs()


@pytest.mark.parametrize("action", ["fail", "kill"])
@pytest.mark.parametrize("point", ["restore-frozen", "restore-made-objects", "restore-before-run", "restore-before-commit", "files-copied", "files-prepared",
                                   "files-range", "files-switched", "tree-made", "tree-placed"])
def test_step(host, folder, point, action):
    """A step before the commit fails, or the coordinator is killed there: the tree is as the program left it."""
    fault = host.file("fault")
    image, first, second = begin(host, folder, env={"PBEAM_FAULT": str(fault)})
    fault.write_text(f"{point}:{action}\n")
    done = host.ctl("rollback", "tree", check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    fault.write_text("")
    assert state(folder) == second
    assert not left(host, folder)
    goes_back(host, folder, first)
    host.kill_programs()


@pytest.mark.parametrize("point", ["restore-condemned", "restore-adopted", "files-settled"])
def test_killed_after_the_commit(host, folder, point):
    fault = host.file("fault")
    image, first, _ = begin(host, folder, env={"PBEAM_FAULT": str(fault)})
    (host.home / "go").unlink()
    fault.write_text(f"{point}:kill\n")
    host.ctl("rollback", "tree", check=False)
    fault.write_text("")
    assert host.program_pids() and state(folder) == first
    assert not left(host, folder)
    host.kill_programs()


@pytest.mark.parametrize("point", ["tree-made", "tree-placed", "files-switched"])
def test_keeper_killed_as_well(host, folder, point):
    """No process is left to put the tree back: the next pbeamd does."""
    fault = host.file("fault")
    image, first, second = begin(host, folder, env={"PBEAM_FAULT": str(fault)})
    fault.write_text(f"{point}:sleep\n")
    asked = host.popen(["pbeamctl", "rollback", "tree"], stderr=subprocess.DEVNULL)
    host.wait_until(lambda: fault.read_text() == f"{point}:reached", what="the step")
    for name in ("pbeamd", "scip-keeper", "scip-coordinate"):
        for pid in host.named(name):
            os.kill(pid, signal.SIGKILL)
    asked.wait()
    fault.write_text("")
    host.wait_until(lambda: not host.program_pids() and not host.named("scip-coordinate"), what="all to end")
    (host.home / "go").unlink()
    host.ctl("ps")
    assert state(folder) == second
    assert not left(host, folder)
    host.wait_until_swept()


@pytest.mark.parametrize("small_disk", ["2m"], indirect=True)
def test_full_disk(host, small_disk):
    """There is no room for what is put back: nothing changes, and the program goes on."""
    folder = small_disk / "folder"
    folder.mkdir()
    host.own(folder)
    image, first, second = begin(host, folder)
    ballast = small_disk / "ballast"
    fill_disk(ballast)
    done = host.ctl("rollback", "tree", check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "No space left" in done.stderr, done.stderr
    assert state(folder) == second
    assert not left(host, small_disk)
    ballast.unlink()
    goes_back(host, folder, first)
    host.kill_programs()


def test_refused(host, folder):
    """Directories that cannot be put back as a whole."""
    (folder / "inside").mkdir()
    host.own(folder / "inside")
    for words, reason in [(["--track", "/"], "the whole system"), (["--track", str(host.state)], "must not be in each other"),
                          (["--track", "missing"], "No such file"), (["--track", str(folder), "--track", str(folder / "inside")], "tracked as well"),
                          (["--track", str(folder), "--dir", str(folder / "inside")], "where the images are")]:
        done = host.run(["scip", "run", *words, "--", "true"], check=False)
        assert done.returncode == 125 and reason in done.stderr and done.stderr.count("\n") == 1, done.stderr
    host.detach("sleep", "1000", name="tree", options=("--track", str(folder)))
    done = host.ctl("checkpoint", "-o", folder / "image", "tree", check=False)
    assert done.returncode == 1 and "an image cannot be there" in done.stderr, done.stderr
    host.kill_programs()
