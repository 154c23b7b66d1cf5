"""Images of every version that was released (tests/images, made by tools/save_image.sh) are restored by this one."""
import pathlib
import subprocess

import pytest

pytestmark = pytest.mark.timeout(60)

IMAGES = sorted((pathlib.Path(__file__).parent.parent / "images").glob("*.ckpt.zst"))


@pytest.fixture
def image(nobody_host, request):
    host = nobody_host
    path = host.home / "old.ckpt"
    path.write_bytes(subprocess.run(["zstd", "-dcq", request.param], capture_output=True, check=True).stdout)
    path.chmod(0o700)
    host.own(path)
    return path


def test_there_are_images():
    assert IMAGES


@pytest.mark.parametrize("image", IMAGES, ids=[path.name[:-len(".ckpt.zst")] for path in IMAGES], indirect=True)
def test_restored(nobody_host, image):
    """The program of an old image has all its state, and is saved and restored by this version as well."""
    host = nobody_host
    check = host.run(["scip", "restore", "--check", str(image)], check=False)
    if check.returncode and "processor" in check.stderr + check.stdout:
        pytest.skip("the image was made on a processor with features that this one lacks: " + check.stderr)
    host.ctl("image", "verify", image)
    old = host.popen(["scip", "restore", str(image)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    host.wait_until(lambda: [row["state"] for row in host.ps()["processes"]] == ["sleeping"] * 2 or old.poll() is not None, what="both processes to run")
    assert old.poll() is None, old.communicate()
    new = host.checkpoint(str(min(host.vpids())), "--kill", "-o", str(host.home / "new.ckpt"))
    old.communicate(timeout=20)
    for path in image, new:
        done = host.run(["scip", "restore", str(path)], stdin="\n", check=False)
        assert (done.returncode, done.stdout) == (0, "pass\n"), (done.stdout, done.stderr)
