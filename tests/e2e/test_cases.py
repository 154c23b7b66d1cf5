"""Each program of tests/cases, natively, supervised, checkpointed, and rolled back more than once."""
import pathlib

import pytest

CASES = {path.stem: path.read_text() for path in sorted((pathlib.Path(__file__).parent.parent / "cases").glob("*.c"))}


def marked(name):
    return pytest.param(name, marks=[pytest.mark.timeout(150 if "case: slow" in CASES[name] else 60)])


def as_root():
    return [marked(name) for name in CASES if "case: root" in CASES[name]]


def verdict(status, text, errors):
    """Skips or fails the test according to the case's exit."""
    if status == 77:
        pytest.skip(next((line[6:] for line in text.splitlines() if line.startswith("skip: ")), "the case said so"))
    assert status == 0 and text.rstrip().endswith("pass"), f"exit {status}: {text}{errors}"


@pytest.mark.parametrize("name", [marked(name) for name in CASES])
def test_native(host, name):
    done = host.run([host.stage.cases / name], check=False, timeout=120)
    verdict(done.returncode, done.stdout, done.stderr)


def supervised(host, name, cycles, kill):
    """Checkpoints and rolls back `cycles` times between "ready" and the check; 0 only checkpoints."""
    go = host.home / "go"
    program = host.stage.cases / name
    if "case: terminal" in CASES[name]:
        program = ["script", "-qefc", program, "/dev/null"]
    job = host.scip_run(*(program if isinstance(program, list) else [program]), name=name, env={"CASE_GO": str(go)})

    def ready():
        if job.process.poll() is not None:
            verdict(job.wait(), job.text(), job.errors())
            raise AssertionError(f"ended before it was ready: {job.text()}{job.errors()}")
        return "ready" in job.text()

    host.wait_until(ready, 30, "the case to be ready")
    host.checkpoint(name)
    for _ in range(cycles):
        host.rollback(name)
        host.checkpoint(name)
    first = job
    if kill:
        job = killed(host, name, job)
    host.file("go")
    status = job.wait(110)
    # Standard output is a file, and is that file after a restore as well.
    verdict(status, first.text() + job.text(), first.errors() + job.errors())


def killed(host, name, job):
    """Kills the case and restores it from the image with a new console."""
    image = host.checkpoint(name, "--kill")
    job.wait(20)
    return host.start(["scip", "restore", image], "restored")


@pytest.mark.parametrize("name", [marked(name) for name in CASES])
def test_supervised(host, name):
    job = host.scip_run(host.stage.cases / name, name=name)
    verdict(job.wait(110), job.text(), job.errors())


@pytest.mark.parametrize("name", [marked(name) for name in CASES])
def test_checkpointed(host, name):
    supervised(host, name, 0, False)


@pytest.mark.parametrize("name", [marked(name) for name in CASES])
def test_rolled_back(host, name):
    supervised(host, name, 3, False)


@pytest.mark.parametrize("name", [marked(name) for name in CASES])
def test_killed_and_restored(host, name):
    supervised(host, name, 0, True)


@pytest.mark.parametrize("name", as_root())
def test_rolled_back_as_root(root_host, name):
    supervised(root_host, name, 2, False)
