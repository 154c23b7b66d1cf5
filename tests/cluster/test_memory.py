"""Memory that changes during pre-copy arrives as it was, whatever was mapped, moved and unmapped between two rounds."""
import pytest


@pytest.fixture
def two(make_lab):
    return make_lab(2).start().hosts


# Slow enough for many changes within a round, and for some rounds.
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("options", [(), ("--bandwidth", "40000000", "--max-pause", "1ms")], ids=["fast", "slow"])
def test_churn(two, stage, options, seed):
    a, b = two
    job = a.scip_run(stage.cluster / "churn", seed, "out")
    out = a.home / "out"

    def ticks():
        return out.read_text().count("tick") if out.exists() else 0

    def goes_on():
        before = ticks()

        def seen():
            assert job.process.poll() is None, job.errors()
            return ticks() > before + 1

        a.wait_until(seen, 30, "the program to go on")

    goes_on()
    vpid = a.vpids()[0]
    now, there = a, b
    for _ in range(6):
        now.ctl("migrate", *options, str(vpid), there.name)
        now, there = there, now
        goes_on()
    a.file("go")
    assert job.wait(30) == 0, job.errors()
    assert out.read_text().splitlines()[-1] == "result ok"
