"""Images of kernels with another vdso, which is led to this kernel's."""
import pytest

CASE = "vdso_functions"


def places(pid):
    """The addresses of the kernel's vdso, and of the one that the program knows."""
    with open(f"/proc/{pid}/maps") as f:
        real = [int(line.split("-")[0], 16) for line in f if line.rstrip().endswith("[vdso]")]
    with open(f"/proc/{pid}/auxv", "rb") as f:
        words = memoryview(f.read()).cast("Q")
    known = dict(zip(words[::2], words[1::2]))[33]  # AT_SYSINFO_EHDR
    return real, known


def other(host, image, way):
    copy = image.with_name(f"{way}.ckpt")
    host.run([host.stage.tools / "other_vdso", way, image, copy])
    return copy


def started(host, **env):
    go = host.home / "go"
    job = host.scip_run(host.stage.cases / CASE, name=CASE, env={"CASE_GO": str(go), **env})
    job.wait_for("ready")
    return job


def restored(host, image, name="restored"):
    job = host.start(["scip", "restore", image], name)
    host.wait_until(lambda: any(row["name"] == CASE and row["state"] in ("running", "sleeping") for row in host.ps()["processes"]), what="the restored job")
    return job


@pytest.mark.parametrize("way", ["build", "shape"])
def test_restores_an_image_of_another_kernel(host, way):
    job = started(host, **({"CASE_SHAPE": "1"} if way == "shape" else {}))
    image = other(host, host.checkpoint(CASE, "--kill"), way)
    job.wait(20)
    again = restored(host, image)
    real, known = places(host.pids_of(CASE)[0])
    assert len(real) == 1 and known not in real
    # Its next image needs nothing more, here or on a third kernel.
    image = host.checkpoint(CASE, "--kill")
    again.wait(20)
    last = restored(host, other(host, image, "build"), "third") if way == "build" else restored(host, image, "same")
    host.file("go")
    status = last.wait(60)
    text = "".join(each.text() + each.errors() for each in (job, again, last))
    assert status == 0 and text.rstrip().endswith("pass"), text
