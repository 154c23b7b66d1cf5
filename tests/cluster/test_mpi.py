"""MPI over TCP with ranks on two hosts, started by its own launcher through a remote shell, all supervised."""
import mpi
import pytest
import remote_shell


def finish(job):
    assert job.wait(100) == 0, job.text() + job.errors()
    assert "every sum is right" in job.text(), job.text() + job.errors()


@pytest.mark.parametrize("kind", sorted(mpi.KINDS))
def test_supervised(make_lab, kind):
    lab = make_lab(2)
    shells = remote_shell.Shells(lab, ["scip", "run", "--"])
    finish(lab.hosts[0].scip_run(*mpi.command(lab, kind, shells, 300)))
    shells.end()


def rank_on(host):
    """The vpid of the rank on that host."""
    return next(row["vpid"] for row in host.ps()["processes"] if row["host"] == host.name and row["name"].startswith("reduce-"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", sorted(mpi.KINDS))
def test_rank_moves(make_lab, kind):
    """A rank moves to a third host amid the sums, and back. MPICH's launcher leaves sockets of its own open in its ranks."""
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    shells = remote_shell.Shells(lab, ["scip", "run", "--"])
    job = a.scip_run(*mpi.command(lab, kind, shells, 6000, hosts=[a, b]))
    job.wait_for("round 100", 100)
    rank = rank_on(b)
    for here, there in ((b, c), (c, b)):
        rounds = job.text().count("round")
        here.ctl("migrate", *(["--leave-shared"] if kind == "mpich" else []), str(rank), there.name, timeout=120)
        a.wait_until(lambda rounds=rounds: job.text().count("round") > rounds + 1, 60, "the sums to go on")
    finish(job)
    shells.end()
