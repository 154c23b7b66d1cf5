"""PVM tasks on two hosts with direct connections, daemons and tasks supervised."""
import pvm
import pytest


def test_supervised(make_lab):
    machine = pvm.Machine(make_lab(2), ["scip", "run", "--"])
    ring = machine.ring(200, 4)
    assert ring.wait(60) == 0, ring.text() + ring.errors()
    assert "every token is right" in ring.text()
    machine.halt()


def task_on(host):
    """The vpid of a task on that host."""
    return next(row["vpid"] for row in host.ps()["processes"] if row["host"] == host.name and row["name"].startswith("ring_pvm") and row["state"] != "zombie")


@pytest.mark.timeout(300)
def test_task_moves(make_lab):
    """One task of the ring moves to a third host and back, and to the host of the others; the daemons stay."""
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    machine = pvm.Machine(lab, ["scip", "run", "--"], hosts=[a, b])
    ring = machine.ring(3000, 4, 2000)
    ring.wait_for("round 10", 60)
    task = task_on(b)
    for here, there in ((b, c), (c, b), (b, a)):
        rounds = ring.text().count("round")
        here.ctl("migrate", str(task), there.name, timeout=120)
        a.wait_until(lambda rounds=rounds: ring.text().count("round") > rounds + 1, 60, "the token to go on")
    assert ring.wait(150) == 0, ring.text() + ring.errors()
    assert "every token is right" in ring.text()
    machine.halt()
