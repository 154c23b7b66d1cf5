"""Images whose pages are in their parents: restored, shown, compared, and refused when a parent is missing."""
import os

import pytest
from programs import COUNT, counted, counts

CASES = ["large_memory", "shared_pages", "shared_memory", "memory_kinds", "sysv_objects", "stack_and_heap", "threads", "files"]

pytestmark = pytest.mark.timeout(90)


def split(host, parent):
    """Writes the image's next number: the same state, with two thirds of the memory in `parent`."""
    child = parent.with_name(f"{int(parent.stem) + 1}.ckpt")
    host.run([host.stage.tools / "split_image", parent, child])
    return child


@pytest.mark.parametrize("way", ["rollback", "restore"])
@pytest.mark.parametrize("name", CASES)
def test_goes_on_from_a_chain(host, name, way):
    """A self-checking program, from a chain of three images."""
    go = host.home / "go"
    job = host.scip_run(host.stage.cases / name, name=name, env={"CASE_GO": str(go)})
    job.wait_for("ready")
    whole = host.checkpoint(name)
    image = split(host, split(host, whole))
    assert image.stat().st_size < whole.stat().st_size
    assert "parent     2.ckpt" in host.ctl("image", "show", image).stdout
    assert host.ctl("image", "verify", image).stdout.strip() == f"{image}: whole"
    if way == "rollback":
        host.rollback(name, "--to", image.stem)
        jobs = [job]
    else:
        host.kill_programs()
        job.wait(20)
        host.wait_until(lambda: name not in host.ctl("ps").stdout, what="the end of the job")
        jobs = [job, host.start(["scip", "restore", image], "restored")]
    host.file("go")
    status = jobs[-1].wait(60)
    text = "".join(each.text() + each.errors() for each in jobs)
    assert status == 0 and text.rstrip().endswith("pass"), text


def test_diff_reads_the_pages_of_parents(host, count):
    vpid, out = count
    whole = host.checkpoint("count")
    child = split(host, split(host, whole))
    text = host.ctl("image", "diff", whole, child).stdout
    assert "total: 0 pages changed, 0 new, 0 gone" in text, text
    # A page that has changed is one, wherever it is.
    host.run(["rm", child])
    counts(host, out, 5)
    later = host.checkpoint("count")
    assert "total: 0 pages" not in host.ctl("image", "diff", child.with_name("2.ckpt"), later).stdout


def test_missing_parent(host, count):
    """The rollback is refused before anything is stopped."""
    vpid, out = count
    whole = host.checkpoint("count")
    child = split(host, whole)
    os.rename(whole, whole.with_suffix(".away"))
    before = counted(out)
    for words in (["rollback", "--to", "2", "count"], ["image", "verify", child]):
        done = host.ctl(*words, check=False)
        assert done.returncode == 1 and f"{whole}, which is missing; use another checkpoint" in done.stderr, done.stderr
    assert "parent     1.ckpt" in host.ctl("image", "show", child).stdout
    counts(host, out)
    assert counted(out) > before
    os.rename(whole.with_suffix(".away"), whole)
    host.rollback("count", "--to", "2")
    counts(host, out)


def test_replaced_parent(host, count):
    vpid, out = count
    whole = host.checkpoint("count")
    child = split(host, whole)
    other = host.checkpoint("count")
    os.rename(other, whole)
    done = host.ctl("rollback", "--to", "2", "count", check=False)
    assert done.returncode == 1 and "another checkpoint has that name now" in done.stderr, done.stderr
    counts(host, out)
    assert child.exists()


def test_keep_spares_parents(host):
    """--keep does not remove an image that a kept one needs."""
    vpid, out = host.detach(*COUNT, name="kept", options=["--keep", "2"])
    host.wait_until(lambda: counted(out) > 3, what="counting")
    whole = host.checkpoint("kept")
    child = split(host, whole)
    images = [whole, child, host.checkpoint("kept")]
    assert [image.exists() for image in images] == [True, True, True]
    host.rollback("kept", "--to", "2")
    counts(host, out)
    images.append(host.checkpoint("kept"))
    assert [image.exists() for image in images] == [False, False, True, True]
    host.ctl("kill", "-s", "KILL", "kept")
