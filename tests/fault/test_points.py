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


@pytest.mark.parametrize("point", ["restore-frozen", "restore-condemned"])
def test_rollback_killed(host, point):
    """The processes to be replaced go on, all of them, or are gone, all of them; the image restores them."""
    fault = host.file("fault")
    for name in "abc":
        host.file(name)
    host.file("counter.py", COUNTER)
    host.detach("sh", "-c", 'for n in a b; do python3 counter.py $n & done; exec python3 counter.py c', name="tree", env={"PBEAM_FAULT": str(fault)})
    files = [host.home / name for name in "abc"]

    def go_on():
        before = [numbers(path)[1] for path in files]
        host.wait_until(lambda: all(numbers(path)[1] > n + 3 for path, n in zip(files, before)), what="all three to count")

    go_on()
    image = host.checkpoint("tree")
    fault.write_text(f"{point}:kill\n")
    refused(host.ctl("rollback", "tree", check=False))
    fault.write_text("")
    if point == "restore-frozen":
        go_on()
        host.rollback("tree")
    else:
        host.wait_until(lambda: not host.program_pids(), what="all of it to end")
        host.run(["scip", "restore", "-d", image])
    go_on()
    host.kill_programs()


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
