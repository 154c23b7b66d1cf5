"""Limits that a program keeps, and its rollback too."""
import pytest

PIPES = """
import fcntl, os, sys, time
small = [os.pipe() for n in range(1000)]
for reader, writer in small:
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
large = [os.pipe() for n in range(800)]
sizes = lambda: [fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ) for reader, writer in small + large]
first = sizes()
os.write(large[0][1], b"x" * 60000)
print(first.count(65536), flush=True)
while True:
    time.sleep(0.05)
    print("same" if sizes() == first else "other", flush=True)
"""

@pytest.mark.parametrize("ended", [False, True])
def test_pages_of_pipes(host, ended):
    """The old and the new pipes together would exceed fs.pipe-user-pages-soft."""
    host.file("pipes.py", PIPES)
    root, out = host.detach("python3", "pipes.py", name="pipes")
    host.wait_until(lambda: "same" in out.read_text(), what="the pipes")
    assert out.read_text().split()[0] == "800"
    host.checkpoint("pipes")
    if ended:
        host.ctl("kill", "-s", "KILL", "pipes")
        host.rollback("pipes")
    else:
        done = host.ctl("rollback", "pipes", check=False)
        assert done.returncode == 1 and "pipe-user-pages-soft" in done.stderr and "--replace" in done.stderr, done.stderr
        host.rollback("pipes", "--replace")
    before = len(out.read_text())
    host.wait_until(lambda: len(out.read_text()) > before + 20, what="it to go on")
    assert "other" not in out.read_text()
    host.kill_programs()
