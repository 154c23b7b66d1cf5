"""Parts of one job that were on several hosts when they were saved are rolled back on one that is left."""
import pytest

from test_group import lose
from test_tree_cut import Pair


@pytest.mark.messy
@pytest.mark.parametrize("how, ahead", [("pipe", 60000), ("socket", 60000)])
def test_child_lost(make_lab, how, ahead):
    """The host of the child is lost: it goes on beside its parent, what was on its way between them arrives, and both are one tree as if it had never been
    away: saved and rolled back, sent away and brought home."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    pair = Pair(a, b, how, ahead)
    pair.until_counts()
    a.checkpoint("pair")
    pair.until_counts()
    lose(lab, b)
    a.ctl("rollback", "--on", "b=a", "pair")
    pair.until_counts()
    assert pair.where() == ("a", "a")
    a.checkpoint("pair")
    pair.goes_back(a)
    pair.until_counts()
    pair.end()
