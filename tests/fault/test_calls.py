"""Each system call of each actor of a checkpoint, a restore and a rollback fails once, and kills its actor once (docs/TESTING.md)."""
import pytest
from faulty import COORDINATOR, REMOTE, World, campaign

pytestmark = pytest.mark.timeout(240)
ACTORS = {"checkpoint": ["pbeamctl", "pbeamd,pbeamd+", "scip-keeper", COORDINATOR, "scip"],
          "restore": ["pbeamd,pbeamd+", "scip-keeper", COORDINATOR, "scip"],
          "rollback": ["pbeamctl", "pbeamd,pbeamd+", "scip-keeper", COORDINATOR, "scip"]}


def try_calls(host, long, operation):
    world = World(host)
    world.begin()
    host.checkpoint("work")
    campaign(getattr(world, operation), world.revive, ACTORS[operation], long, operation)
    world.end()


@pytest.mark.long
@pytest.mark.parametrize("operation", ["checkpoint", "restore"])
def test_calls(host, long, operation):
    """The program runs exactly once, and nothing is left over."""
    try_calls(host, long, operation)


@pytest.mark.long
def test_calls_rollback(host, long):
    """The old program goes on or the new one runs, exactly once."""
    try_calls(host, long, "rollback")


@pytest.mark.long
def test_calls_in_the_program(host, long):
    """The calls that a scip makes in its process fail."""
    world = World(host, remote=True)
    world.begin()
    host.checkpoint("work")
    for operation in ("checkpoint", "restore"):
        campaign(getattr(world, operation), world.revive, [REMOTE], long, operation)
    world.end()
