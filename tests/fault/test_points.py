"""A checkpoint that fails, or whose coordinator or scip dies, at each of its fault points (base/fault.h)."""
import pytest
from programs import COUNT, COUNTER, counted, counts, numbers

pytestmark = pytest.mark.timeout(120)
COORDINATOR = ["after-freeze", "after-dump", "before-commit"]


def started(host):
    fault = host.file("fault")
    vpid, out = host.detach(*COUNT, name="count", env={"PBEAM_FAULT": str(fault)})
    host.wait_until(lambda: counted(out) > 3, what="counting")
    return fault, out


def refused(done):
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and not done.stdout, (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("point", COORDINATOR + ["mid-dump"])
def test_failure(host, point):
    """The program goes on, the older image is whole, no temporary file is left, the next checkpoint works."""
    fault, out = started(host)
    older = host.checkpoint("count")
    fault.write_text(f"{point}:fail\n")
    done = host.ctl("checkpoint", "count", check=False)
    refused(done)
    assert point in done.stderr
    counts(host, out)
    assert not list(host.state.rglob("*.tmp-*"))
    host.ctl("image", "verify", older)
    fault.write_text("")
    host.ctl("image", "verify", host.checkpoint("count"))
    host.rollback("count")
    counts(host, out)
    host.ctl("kill", "-s", "KILL", "count")


@pytest.mark.parametrize("way", ["numbered", "new file", "old file"])
def test_directory_not_synced(host, way):
    """The image has its name already: it is taken back, and a file that had it before has it again."""
    fault, out = started(host)
    older = host.checkpoint("count")
    file = host.home / "count.ckpt"
    options = [] if way == "numbered" else ["--output", file]
    if way == "old file":
        host.checkpoint("count", *options)

    def images():
        return {path: path.read_bytes() for top in (host.state, host.home) for path in top.rglob("*.ckpt*")}

    before = images()
    fault.write_text("image-renamed:fail\n")
    done = host.ctl("checkpoint", *options, "count", check=False)
    refused(done)
    assert "image-renamed" in done.stderr
    assert images() == before and older in before
    counts(host, out)
    fault.write_text("")
    host.ctl("image", "verify", host.checkpoint("count", *options))
    host.rollback("count")
    counts(host, out)
    host.ctl("kill", "-s", "KILL", "count")


@pytest.mark.parametrize("point", COORDINATOR)
def test_coordinator_killed(host, point):
    """Its connections end, which thaws the processes; the next checkpoint removes its temporary file."""
    fault, out = started(host)
    older = host.checkpoint("count")
    fault.write_text(f"{point}:kill\n")
    refused(host.ctl("checkpoint", "count", check=False))
    counts(host, out)
    host.ctl("image", "verify", older)
    fault.write_text("")
    host.ctl("image", "verify", host.checkpoint("count"))
    assert not list(host.state.rglob("*.tmp-*"))
    counts(host, out)
    host.ctl("kill", "-s", "KILL", "count")


class Tree:
    """A job of three counters."""

    def __init__(self, host):
        self.host, self.fault = host, host.file("fault")
        for name in "abc":
            host.file(name)
        host.file("counter.py", COUNTER)
        host.detach("sh", "-c", 'for n in a b; do python3 counter.py $n & done; exec python3 counter.py c', name="tree", env={"PBEAM_FAULT": str(self.fault)})
        self.files = [host.home / name for name in "abc"]
        self.go_on()

    def go_on(self):
        before = [numbers(path)[1] for path in self.files]
        self.host.wait_until(lambda: all(numbers(path)[1] > n + 3 for path, n in zip(self.files, before)), what="all three to count")

    def pids(self):
        """The real pids by vpid."""
        return {row["vpid"]: row["pid"] for row in self.host.ps()["processes"]}

    def disturbed(self, point, action):
        """A rollback that does not get beyond this point."""
        self.fault.write_text(f"{point}:{action}\n")
        refused(self.host.ctl("rollback", "tree", check=False))
        self.fault.write_text("")

    def finish(self):
        """The next rollback works, and nothing is left over."""
        old = self.pids()
        self.host.rollback("tree")
        assert not set(old.values()) & set(self.pids().values()) and old.keys() == self.pids().keys()
        self.go_on()
        assert not list(self.host.home.glob(".*pbeam*")) and not list(self.host.state.rglob("*.journal"))
        self.host.kill_programs()


# In the order in which a rollback passes them.
BEFORE_COMMIT = ["restore-checked", "files-copied", "files-prepared", "restore-frozen", "restore-made-objects", "restore-made-tree",
                 "files-switched", "restore-before-run", "restore-before-commit"]


@pytest.mark.parametrize("action", ["fail", "kill"])
def test_rollback_before_commit(host, action):
    """The same processes go on as if nothing had happened."""
    tree = Tree(host)
    host.checkpoint("tree")
    tree.go_on()
    before = tree.pids()
    # The last one is in the keeper, without which no process of the job goes on, and which passes a point once.
    for point in BEFORE_COMMIT + ["husk-launched"] * (action == "fail"):
        tree.disturbed(point, action)
        assert tree.pids() == before, point
        tree.go_on()
    tree.finish()


def test_rollback_killed_after_commit(host):
    """The new processes run without their coordinator, and pbeamctl reports that the rollback is done."""
    tree = Tree(host)
    host.checkpoint("tree")
    tree.go_on()
    before = tree.pids()
    tree.fault.write_text("restore-condemned:kill\n")
    host.ctl("rollback", "tree")
    tree.fault.write_text("")
    host.wait_until(lambda: len(tree.pids()) == 3 and not set(before.values()) & set(tree.pids().values()), what="the new processes")
    tree.go_on()
    tree.finish()


def test_killed_with_kill_option(host):
    """--kill ends the program only when the image is durable."""
    fault, out = started(host)
    fault.write_text("before-commit:fail\n")
    refused(host.ctl("checkpoint", "--kill", "count", check=False))
    counts(host, out)
    host.ctl("kill", "-s", "KILL", "count")


def test_cancelled(host):
    """pbeamctl is killed midway: the program goes on."""
    fault, out = started(host)
    fault.write_text("after-freeze:sleep\n")
    asked = host.popen(["pbeamctl", "checkpoint", "count"])
    host.wait_until(lambda: list(host.state.rglob("*.tmp-*")), what="the checkpoint to begin")
    asked.kill()
    asked.wait()
    fault.write_text("")
    counts(host, out)
    host.wait_until(lambda: not list(host.state.rglob("*.tmp-*")), what="the temporary file to be gone")
    host.checkpoint("count")
    host.ctl("kill", "-s", "KILL", "count")
