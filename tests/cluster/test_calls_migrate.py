"""Each system call of each actor of a migration fails once, and kills its actor once (docs/TESTING.md)."""
import pytest
from faulty import COORDINATOR, Pair, campaign

pytestmark = pytest.mark.timeout(240)
ACTORS = {"source": ["pbeamctl", "pbeamd,pbeamd+", "pbeam-channel", "scip-keeper", COORDINATOR, "scip", "scip-link"],
          "target": ["pbeamd,pbeamd+", "pbeam-channel", "scip-keeper", COORDINATOR, "scip", "scip-link"]}


@pytest.mark.long(only=True)
@pytest.mark.parametrize("side", ACTORS)
def test_calls(make_lab, long, side):
    """It runs on one host, and nothing is left over."""
    pair = Pair(make_lab(2))
    pair.begin()
    campaign(lambda fault: pair.migrate(fault, side), pair.revive, ACTORS[side], long, side, sample=2)
    pair.end()
