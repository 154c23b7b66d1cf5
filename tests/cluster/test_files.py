"""Programs whose files the target lacks, has under another path, or has with other contents."""
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest


@pytest.fixture
def place():
    """A path below which each host has files of its own."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="pbeam-files-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def three(make_lab, place):
    hosts = make_lab(3, private=(place,)).start().hosts
    for host in hosts:
        (host.files(place) / "work").mkdir()
        host.own(host.files(place) / "work")
    return hosts


class Told:
    """The program of files/moved.c: a line down, a line up."""

    def __init__(self, host, place, *args):
        self.host = host
        self.process = host.popen(["sh", "-c", 'cd "$1" && shift && exec scip run -- "$@"', "sh", place / "work", place / "moved", *args],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"
        self.vpid = host.vpids()[0]

    def __call__(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().rstrip("\n")

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(30) == 0


def install(host, place, library="libanswer.so"):
    """Installs the program, its library and a file to read below the host's own path."""
    own = host.files(place)
    shutil.copy(host.stage.cluster / "moved", own / "moved")
    shutil.copy(host.stage.cluster / library, own / "libanswer.so")
    (own / "lines").write_text("".join(f"line {i} of {host.name}\n" for i in range(1000)))
    for name in ("moved", "libanswer.so", "lines"):
        host.own(own / name)
    return own


def migrate(host, vpid, to, *options, check=True):
    return host.run(["pbeamctl", "migrate", *options, vpid, to.name], check=check)


def test_sent_along(three, place):
    """Program, library and an open file that only one host has are sent along, to the next host and home again."""
    a, b, c = three
    install(a, place)
    told = Told(a, place, place / "lines")
    assert told("next") == "line 0 of a"
    migrate(a, told.vpid, b)
    assert told("next") == "line 1 of a"
    assert told("answer") == "42"
    assert told(f"show {place}/lines") == "line 0 of a"
    assert told("show ../lines") == "line 0 of a"
    assert told("link /proc/self/exe") == f"{place}/moved"
    assert told(f"put {place}/lines") == "Read-only file system"
    assert told(f"remove {place}/lines") == "Read-only file system"
    assert told(f"size {place}/lines") == str((a.files(place) / "lines").stat().st_size)
    assert told(f"show {place}/nothing") == "No such file or directory"
    assert told("cwd") == f"{place}/work"
    migrate(b, told.vpid, c)
    assert told("next") == "line 2 of a"
    assert told(f"show {place}/lines") == "line 0 of a"
    migrate(c, told.vpid, a)
    assert told("next") == "line 3 of a"
    assert told("answer") == "42"
    told.end()
    for host in (b, c):
        host.wait_until(lambda host=host: not list((host.state / "pbeam" / ".files" / host.name).glob("job/*")), 10, "the job's files to be gone")


def test_other_contents(three, place):
    """The target has a different library and file under the same paths: they are not taken for the program's."""
    a, b, _ = three
    install(a, place)
    install(b, place, "libanswer_other.so")
    told = Told(a, place, place / "lines")
    assert told("next") == "line 0 of a"
    migrate(a, told.vpid, b)
    assert told("answer") == "42"
    assert told("next") == "line 1 of a"
    assert told(f"show {place}/lines") == "line 0 of a"
    assert told(f"run grep -q {place}/libanswer.so /proc/$PPID/maps") == "0"
    told.end()
    assert (b.files(place) / "lines").read_text().startswith("line 0 of b")


def test_own_interpreter(three, place):
    """A program with its own ld.so and libc: its own programs use them, the target's programs use the target's."""
    a, b, c = three
    own = install(a, place)
    loader = os.path.realpath("/lib64/ld-linux-x86-64.so.2")
    libc = pathlib.Path(loader).with_name("libc.so.6")
    for library in (loader, libc):
        shutil.copy(library, own / pathlib.Path(library).name)
    shutil.copy(loader, own / "ld.so")
    (own / "ld.so").open("ab").write(b"\n")  # contents that no other file has
    source = pathlib.Path(__file__).parent / "files"
    subprocess.run(["cc", "-O2", "-o", own / "moved", source / "moved.c", own / "libanswer.so", f"-Wl,-rpath,{place}", f"-Wl,--dynamic-linker={place}/ld.so"], check=True)
    told = Told(a, place, place / "lines")
    migrate(a, told.vpid, b)
    for here, there in ((b, c), (c, a)):
        assert told(f"run echo answer | {place}/moved | grep -q 42") == "0"
        assert told("run test $(readlink /proc/self/exe) = $(readlink -f $(command -v readlink))") == "0"
        migrate(here, told.vpid, there)
    assert told(f"run echo answer | {place}/moved | grep -q 42") == "0"
    told.end()


def test_same_contents(three, place):
    """Contents that the target already has in other files are not sent."""
    a, b, _ = three
    install(a, place)
    shutil.copytree(a.files(place), b.files(place), dirs_exist_ok=True)
    told = Told(a, place, place / "lines")
    migrate(a, told.vpid, b)
    assert told("next") == "line 0 of a"
    assert not list((b.state / "pbeam" / ".files").glob("*/cache/*"))
    told.end()


@pytest.mark.parametrize("configured", [False, True])
def test_map(make_lab, place, configured):
    """A directory with another path on the target: what is open there, the working directory, and names used later."""
    a, b = make_lab(2, private=(place,)).hosts
    there = b.file("there", "")
    there.unlink()
    there.mkdir()
    b.own(there)
    config = b.file("config", f"map = {place}={there}\n")
    a.start_daemon()
    b.start_daemon(*(["--config", config] if configured else []))
    a.wait_until(lambda: "pbeamd: ready" in b.daemon.errors() and '"b"' in a.ctl("hosts", "--json").stdout, 20, "b to be there")
    own = a.files(place)
    (own / "work").mkdir()
    install(a, place)
    (own / "later").write_text("later\n")
    (own / "kept").write_text("kept\n")
    for name in ("work", "later", "kept"):
        a.own(own / name)
    subprocess.run(["cp", "-a", f"{own}/.", there], check=True)
    told = Told(a, place, place / "lines", place / "work" / "out")
    assert told("write one") == "3"
    done = migrate(a, told.vpid, b, *(() if configured else ("--map", f"{place}={there}")), check=False)
    assert done.returncode == 1 and "open for writing" in done.stderr and "work/out" in done.stderr
    told.end()
    subprocess.run(["cp", "-a", f"{own}/.", there], check=True)
    told = Told(a, place, place / "lines")
    migrate(a, told.vpid, b, *(() if configured else ("--map", f"{place}={there}")))
    assert told("next") == "line 0 of a"
    assert told("cwd") == f"{place}/work"
    assert told(f"show {place}/later") == "later"
    assert told("show ../later") == "later"
    assert told("link /proc/self/exe") == f"{place}/moved"
    assert told("link /proc/self/fd/3") == f"{place}/lines"
    assert told(f"make {place}/new") == "done" and (there / "new").exists()
    assert told(f"remove {place}/kept") == "done" and not (there / "kept").exists()
    assert told(f"run test $(pwd) = {place}/work && ../moved </dev/null | grep -q ready") == "0"
    migrate(b, told.vpid, a)
    assert told(f"show {place}/kept") == "kept"
    assert told("cwd") == f"{place}/work"
    told.end()


def test_written_file(three, place):
    """A written file that is only here is refused with that reason, or is sent along and returns with the program."""
    a, b, c = three
    out = install(a, place) / "work" / "out"
    told = Told(a, place, place / "lines", place / "work" / "out")
    assert told("write one ") == "4"
    done = migrate(a, told.vpid, b, check=False)
    assert done.returncode == 1 and f"{place}/work/out, open for writing, which is only on a" in done.stderr
    assert "(moved): fd 4" in done.stderr and "--send-files" in done.stderr
    assert told("write two ") == "4"
    migrate(a, told.vpid, b, "--send-files")
    assert told("write three ") == "6"
    assert told(f"show {place}/work/out") == "one two three "
    assert told("link /proc/self/fd/4") == f"{place}/work/out"
    assert out.read_text() == "one two "
    migrate(b, told.vpid, c)
    assert told("write four ") == "5"
    assert not list((b.state / "pbeam" / ".files" / "b").glob("written/*"))
    migrate(c, told.vpid, a)
    assert told("write five") == "4"
    told.end()
    assert out.read_text() == "one two three four five"
    assert not list((c.state / "pbeam" / ".files" / "c").glob("written/*"))


def test_written_at_home(three, place):
    """The file at home was changed meanwhile: it is not overwritten without the option. Where the program ends the file stays."""
    a, b, _ = three
    out = install(a, place) / "work" / "out"
    told = Told(a, place, place / "lines", place / "work" / "out")
    told("write one")
    migrate(a, told.vpid, b, "--send-files")
    out.write_text("somebody's")
    done = migrate(b, told.vpid, a, check=False)
    assert done.returncode == 1 and "was changed on a" in done.stderr and "--send-files" in done.stderr
    assert told("write two") == "3"
    told.end()
    assert out.read_text() == "somebody's"
    left = list((b.state / "pbeam" / ".files" / "b" / "written").rglob("out"))
    assert [path.read_text() for path in left] == ["onetwo"]


def test_dry_run(three, place):
    """One sentence for each obstacle; nothing is touched."""
    a, b, _ = three
    install(a, place)
    (b.files(place) / "work").rmdir()
    told = Told(a, place, place / "lines", place / "work" / "out")
    done = migrate(a, told.vpid, b, "--dry-run", check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and len(lines) == 2, lines
    assert any("its working directory" in line and f"--map {place}/work=DIRECTORY" in line for line in lines)
    assert any("open for writing" in line for line in lines)
    (b.files(place) / "work").mkdir()
    done = migrate(a, told.vpid, b, "--dry-run", "--send-files", check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert not list((b.state / "pbeam" / ".files").glob("*/cache/*"))
    assert told("next") == "line 0 of a"
    told.end()


def test_dry_run_of_many_obstacles(three, place):
    """200 files that the target lacks are 200 lines, each with its file."""
    a, b, _ = three
    paths = [place / "work" / f"{'result-' * 4}{i}" for i in range(200)]
    code = f"import time; files = [open(f'{place}/work/{'result-' * 4}{{i}}', 'w') for i in range(200)]; print('ready', flush=True); time.sleep(600)"
    job = a.start(["scip", "run", "--", "python3", "-c", code], "many")
    a.wait_until(lambda: "ready" in job.text(), 20, "the files to be open")
    done = migrate(a, a.vpids()[0], b, "--dry-run", check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and len(lines) == len(paths), len(lines)
    assert all(any(f" {path}," in line for line in lines) for path in paths), lines[:3]
    a.ctl("kill", "-s", "KILL", str(a.vpids()[0]))
    job.wait(20)


def test_big_file(three, place):
    """A large sparse file is sent once, without its holes."""
    a, b, c = three
    own = install(a, place)
    with open(own / "big", "wb") as file:
        file.write(b"begin\n")
        file.seek(300 << 20)
        file.write(os.urandom(8 << 20))
    a.own(own / "big")
    told = Told(a, place, place / "big")
    assert told("next") == "begin"
    migrate(a, told.vpid, b)
    kept, = [path for path in (b.state / "pbeam" / ".files").glob("*/cache/*") if path.stat().st_size > 300 << 20]
    assert kept.stat().st_blocks * 512 < 12 << 20
    migrate(b, told.vpid, a)
    again = migrate(a, told.vpid, b).stderr
    assert told(f"size {place}/big") == str((300 << 20) + (8 << 20))
    sent = float(again.split(":")[1].split()[0].rstrip("KMG"))
    assert "K sent" in again or sent < 4, again
    told.end()


def test_python(three, place):
    """An interpreter with its modules, some of them shared objects, none of which the target has."""
    a, b, _ = three
    own = a.files(place)
    subprocess.run(["cp", "-aL", os.path.realpath("/usr/bin/python3"), own / "python3"], check=True)
    library = next(pathlib.Path("/usr/lib").glob("python3.*/lib-dynload")).parent
    (own / "lib").mkdir()
    shutil.copytree(library, own / "lib" / library.name, ignore=lambda folder, names: [name for name in names if name in ("test", "dist-packages", "__pycache__")])
    (own / "data.json").write_text('{"n": 7}\n')
    program = ("import ctypes, decimal, json, os, sys, zlib\n"
               f"data = open('{place}/data.json')\n"
               "print('ready', flush=True)\n"
               "for line in sys.stdin: print(repr(eval(line)), flush=True)\n")
    process = a.popen(["scip", "run", "--", "env", f"PYTHONHOME={place}", place / "python3", "-B", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"

    def say(line):
        process.stdin.write(line + "\n")
        process.stdin.flush()
        return process.stdout.readline().rstrip("\n")

    migrate(a, a.vpids()[0], b)
    assert say("json.load(data)") == "{'n': 7}"
    assert say("zlib.crc32(b'abc'), str(decimal.Decimal(1) / 3)[:5]") == f"({0x352441c2}, '0.333')"
    assert say("sys.executable") == repr(f"{place}/python3")
    assert say(f"open('{place}/data.json').read()") == repr('{"n": 7}\n')
    assert say(f"os.spawnv(os.P_WAIT, '{place}/python3', ['python3', '-c', 'pass'])") == "1"  # found; its library is not here
    process.stdin.close()
    assert process.wait(30) == 0


@pytest.mark.parametrize("point", ["migrate-file-part", "migrate-file-sent"])
def test_killed_in_the_middle(make_lab, place, point):
    """Any part is killed while files are sent: the program goes on, no partial file is left, and it can move later."""
    lab = make_lab(2, private=(place,))
    a, b = lab.hosts
    failing = b if point == "migrate-file-part" else a
    wish = failing.home / "wish"
    failing.env["PBEAM_FAULT"] = str(wish)
    lab.start()
    install(a, place)
    for host in (a, b):
        (host.files(place) / "work").mkdir()
    told = Told(a, place, place / "lines")
    failing.file("wish", f"{point}:kill\n")
    assert migrate(a, told.vpid, b, check=False).returncode == 1
    assert told("next") == "line 0 of a"
    assert not list((b.state / "pbeam" / ".files").glob("*/cache/*"))
    b.wait_until(lambda: not list((b.state / "pbeam" / ".files").glob("*/job/*")), 20, "the links to be gone")
    wish.unlink()
    migrate(a, told.vpid, b)
    assert told("next") == "line 1 of a"
    assert told("answer") == "42"
    told.end()


@pytest.fixture
def small_store(three):
    """A small disk for the file store of host b, and our path of it; small_store.unmount() gives b its own again."""
    b = three[1]
    store = b.state / "pbeam" / ".files"
    store.mkdir(parents=True, exist_ok=True)
    b.own(store)
    b.space.do("mount", "-t", "tmpfs", "-o", f"size=4m,mode=700,uid={store.stat().st_uid}", "none", str(store))
    seen = pathlib.Path(f"/proc/{b.space.pid}/root{store}")
    yield seen
    b.space.do("umount", "-l", str(store))


def left_in(store):
    """The files in the store, but no directory: what is there is whole, and no temporary file is."""
    found = [path for path in store.rglob("*") if path.is_file()]
    assert not [path for path in found if path.name.startswith("new-")], found
    return found


@pytest.mark.parametrize("hole", [0, 300 << 20], ids=["solid", "sparse"])
def test_full_disk(three, place, small_store, hole):
    """A file that does not fit is refused before its contents come; nothing of it is left, and the program goes on and can move later."""
    a, b, c = three
    own = install(a, place)

    def big(data):
        with open(own / "big", "wb") as file:
            file.write(b"begin\n")
            file.seek(hole, os.SEEK_CUR)
            file.write(os.urandom(data))
        a.own(own / "big")

    big(8 << 20)
    told = Told(a, place, place / "big")
    assert told("next") == "begin"
    for _ in range(2):
        done = migrate(a, told.vpid, b, check=False)
        assert done.returncode == 1 and "make room for a file of 8" in done.stderr and "No space left" in done.stderr, done.stderr
        assert told("answer") == "42"
        b.wait_until(lambda: not list(small_store.glob("*/job/*")), 20, "the links to be gone")
        assert all(path.stat().st_size < 4 << 20 for path in left_in(small_store))
    migrate(a, told.vpid, c)
    assert told("answer") == "42" and told(f"size {place}/big") == str(6 + hole + (8 << 20))
    told.end()
    big(1 << 20)
    told = Told(a, place, place / "big")
    migrate(a, told.vpid, b)
    assert told("answer") == "42" and told(f"size {place}/big") == str(6 + hole + (1 << 20))
    told.end()


def test_full_disk_for_written_file(three, place, small_store):
    """A written file that goes along does not fit: the program goes on where it was, with its file, and nothing half is left."""
    a, b, c = three
    out = install(a, place) / "work" / "out"
    told = Told(a, place, place / "lines", place / "work" / "out")
    told("write " + "x" * 1000)
    with open(out, "ab") as file:
        file.write(bytes(range(256)) * (8 << 12))
    done = migrate(a, told.vpid, b, "--send-files", check=False)
    assert done.returncode == 1 and "there is no room for the" in done.stderr and "No space left" in done.stderr, done.stderr
    assert not [path for path in left_in(small_store) if "written" in path.parts]
    told("write end")
    assert out.read_bytes()[1000:1003] == b"end"
    before = out.read_bytes()
    migrate(a, told.vpid, c, "--send-files")
    migrate(c, told.vpid, a)
    assert out.read_bytes() == before
    told.end()
