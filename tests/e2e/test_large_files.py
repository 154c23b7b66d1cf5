"""Large files that are changed in place: every checkpoint can be rolled back to, and costs what has changed."""
import hashlib
import json
import os
import time

import pytest

pytestmark = pytest.mark.timeout(120)
SIZE = 300 << 20
TABLES = 24 << 20

# A file of SIZE bytes, of which pages are changed whenever the symbolic link "go" names a new number: by pwrite(), or through a mapping.
DATABASE = """
import mmap, os, random, sys, time
size, mapped = int(sys.argv[1]), sys.argv[2] == "mapped"
fd = os.open("database", os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(fd, size + 1000)
block = random.Random(0).randbytes(1 << 20)
for at in range(0, size, 1 << 20):
    os.pwrite(fd, at.to_bytes(8, "little") + block[8:], at)
view = mmap.mmap(fd, 0) if mapped else None
if mapped:
    os.close(fd)
print("ready", flush=True)
done = 0
while True:
    time.sleep(0.01)
    try:
        wish = int(os.readlink("go"))  # a file would be open now and then, and part of a checkpoint
    except FileNotFoundError:
        continue
    if wish == done:
        continue
    done, source = wish, random.Random(wish)
    for _ in range(40):
        at, page = source.randrange(size // 4096) * 4096 + 50, source.randbytes(4096)
        if mapped:
            view[at:at + 4096] = page
        else:
            os.pwrite(fd, page, at)
    print("changed", wish, flush=True)
"""


class Database:
    def __init__(self, host, how="written", size=SIZE, options=()):
        self.host, self.how, self.size = host, how, size
        host.file("database.py", DATABASE)
        self.vpid, self.out = host.detach("python3", "database.py", size, how, name="base", options=options)
        host.wait_until(lambda: "ready" in self.out.read_text(), what="the database")

    @property
    def path(self):
        return self.host.home / "database"

    def change(self, number):
        (self.host.home / "go.new").symlink_to(str(number))
        (self.host.home / "go.new").rename(self.host.home / "go")
        self.host.wait_until(lambda: f"changed {number}\n" in self.out.read_text(), what="the change")

    def contents(self):
        with open(self.path, "rb") as file:
            return hashlib.file_digest(file, "sha1").hexdigest()

    def rollback(self, *options):
        (self.host.home / "go").unlink(missing_ok=True)
        return self.host.rollback("base", *options)


def stored(host):
    """Bytes on disk of each file of the job's directory, by name."""
    return {path.name: path.stat().st_blocks * 512 for path in (host.state / "pbeam" / "base").glob("*")}


@pytest.mark.parametrize("how", ["written", "mapped"])
def test_changed_in_place(host, how):
    """Three checkpoints, of which the later ones store only changed blocks, and a rollback to each."""
    database = Database(host, how)
    versions = []
    for number in (1, 2, 3):
        if number > 1:
            database.change(number)
        versions.append(database.contents())
        host.checkpoint("base")
    database.change(4)
    sizes = stored(host)
    assert sizes["1.blocks"] >= SIZE and sizes["2.blocks"] <= 100 * 65536 and sizes["3.blocks"] <= 100 * 65536, sizes
    assert all(sizes[f"{number}.ckpt"] < SIZE // 4 for number in (1, 2, 3)), sizes
    host.ctl("image", "verify", host.state / "pbeam" / "base" / "3.ckpt")
    for number in (1, 3):
        database.rollback("--to", str(number))
        assert database.contents() == versions[number - 1], number
        assert database.path.stat().st_size == SIZE + 1000
    database.change(5)
    host.kill_programs()
    database.rollback()
    assert database.contents() == versions[2]
    host.kill_programs()


def test_pruned(host):
    """--keep removes images, and gives back the blocks that only these had."""
    database = Database(host, size=TABLES, options=["--keep", "2"])
    versions = {}
    for number in range(1, 7):
        database.change(number)
        versions[number] = database.contents()
        host.checkpoint("base")
    sizes = stored(host)
    assert [name for name in sorted(sizes) if name.endswith(".ckpt")] == ["5.ckpt", "6.ckpt"]
    assert sum(size for name, size in sizes.items() if name.endswith(".blocks")) < TABLES + 80 * 65536 + (1 << 20), sizes
    for number in (5, 6):
        database.rollback("--to", str(number))
        assert database.contents() == versions[number]
    for path in (host.state / "pbeam" / "base").glob("*.ckpt"):
        path.unlink()
    host.checkpoint("base")
    assert [name for name in stored(host) if name.endswith(".blocks")] == ["7.blocks"]
    host.kill_programs()


def test_unchanged_costs_nothing(host):
    database = Database(host, size=TABLES)
    host.wait_until(lambda: os.stat(database.path).st_ctime + 0.2 < time.time(), what="the file's ctime to be of the past")
    host.checkpoint("base")
    host.checkpoint("base")
    assert "2.blocks" not in stored(host)
    database.change(1)
    before = database.contents()
    database.rollback("--to", "2")
    assert database.contents() != before
    host.kill_programs()


def test_named_image_is_complete(host):
    """An image with -o has the contents itself."""
    database = Database(host, size=TABLES)
    first = database.contents()
    host.checkpoint("base", "-o", "image")
    database.change(1)
    database.rollback("--to", "image")
    assert database.contents() == first
    assert not [name for name in stored(host) if name.endswith(".blocks")]
    host.kill_programs()


def test_damaged_blocks(host):
    """A changed or missing file with blocks is found before anything changes."""
    database = Database(host, size=TABLES)
    host.checkpoint("base")
    database.change(1)
    after = database.contents()
    blocks = host.state / "pbeam" / "base" / "1.blocks"
    with open(blocks, "r+b") as file:
        file.seek(65536 * 5 + 100)
        was = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([was[0] ^ 1]))
    done = host.ctl("rollback", "base", check=False)
    assert done.returncode == 1 and "contents of files in 1.blocks do not match" in done.stderr, done.stderr
    blocks.rename(host.home / "aside")
    done = host.ctl("rollback", "base", check=False)
    assert done.returncode == 1 and "1.blocks" in done.stderr and "No such file" in done.stderr, done.stderr
    assert database.contents() == after
    database.change(2)
    host.kill_programs()


def test_left_out(host):
    """--save-files leaves the file out: the checkpoint is incomplete, and does not push a complete one out."""
    database = Database(host, size=TABLES, options=["--keep", "2"])
    first = database.contents()
    host.checkpoint("base")
    for number in (2, 3, 4):
        database.change(number)
        done = host.ctl("checkpoint", "--save-files", "1M", "base", check=False)
        assert done.returncode == 3 and "incomplete" in done.stderr and "database" in done.stderr, done.stderr
    listed = json.loads(host.ctl("log", "--json", "base").stdout)["checkpoints"]
    assert [entry["number"] for entry in listed] == [1, 3, 4]
    assert not listed[0]["incomplete"] and all("--save-files" in entry["incomplete"][0] for entry in listed[1:])
    assert "incomplete: " in host.ctl("log", "base").stdout.splitlines()[-1]
    database.change(5)
    done = host.ctl("rollback", "base", check=False)
    assert done.returncode == 1 and "database has changed" in done.stderr, done.stderr
    database.rollback("--to", "1")
    assert database.contents() == first
    host.checkpoint("base")
    host.checkpoint("base")
    assert [name for name in sorted(stored(host)) if name.endswith(".ckpt")] == ["5.ckpt", "6.ckpt"]
    host.kill_programs()


def test_written_by_others(host):
    """What somebody writes after the job's end is not overwritten without --force, and then kept beside."""
    database = Database(host, size=TABLES)
    first = database.contents()
    host.checkpoint("base")
    database.change(1)
    host.kill_programs()
    host.wait_until(lambda: (host.state / "pbeam" / "base" / "ended").exists() and not host.ps()["processes"], what="the end of the job")
    database.rollback()
    assert database.contents() == first and not (host.state / "pbeam" / "base" / "ended").exists()
    database.change(2)
    host.kill_programs()
    host.wait_until(lambda: (host.state / "pbeam" / "base" / "ended").exists() and not host.ps()["processes"], what="the end of the job")
    with open(database.path, "r+b") as file:
        file.write(b"mine")
    mine = database.contents()
    found = json.loads(host.ctl("rollback", "--dry-run", "--json", "base").stdout)["files"]
    assert {os.path.basename(entry["path"]): entry["foreign"] for entry in found}["database"], found
    done = host.ctl("rollback", "base", check=False)
    assert done.returncode == 1 and "written to since the job ended" in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert database.contents() == mine and not list(host.home.glob("*.before-rollback-*"))
    done = database.rollback("--force")
    assert "database.before-rollback-1" in done.stderr, done.stderr
    assert database.contents() == first
    assert hashlib.sha1((host.home / "database.before-rollback-1").read_bytes()).hexdigest() == mine
    host.kill_programs()


@pytest.mark.parametrize("ended", [False, True])
def test_dry_run(host, ended):
    """--dry-run lists what a rollback would do, of a running job and of one that has ended, and changes nothing."""
    database = Database(host, size=TABLES)
    host.checkpoint("base")
    database.change(1)
    after = database.contents()
    if ended:
        host.kill_programs()
        host.wait_until(lambda: not host.ps()["processes"], what="the end of the job")
    found = json.loads(host.ctl("rollback", "--dry-run", "--json", "base").stdout)["files"]
    fates = {os.path.basename(entry["path"]): entry for entry in found}
    assert fates["database"]["fate"] == "replaced" and 40 * 4096 <= fates["database"]["bytes"] <= 80 * 4096, found
    assert fates["database"]["before"] == fates["database"]["size"] == TABLES + 1000
    text = host.ctl("rollback", "--dry-run", "base").stdout
    assert any(line.startswith("replaced") and line.endswith("/database") for line in text.splitlines()), text
    assert database.contents() == after
    database.path.unlink()
    found = json.loads(host.ctl("rollback", "--dry-run", "--json", "base").stdout)["files"]
    assert {os.path.basename(entry["path"]): entry["fate"] for entry in found}["database"] == "created"
    assert not database.path.exists()
    host.kill_programs()
