"""Each system call of the host that takes over fails once, and kills its actor once (docs/TESTING.md)."""
import pytest
from faulty import campaign, inject, names_cause
from harness import comm
from test_hosts import kill_daemon, states
from test_take_over import all_follow, central, started

pytestmark = pytest.mark.timeout(240)
ACTORS = ["pbeamctl", "pbeamd,pbeamd+", "pbeam-channel"]

OF_SQLITE = ["disk I/O error", "disk is full", "out of memory", "unable to open database file"]  # it has no texts for other errors


class Throne:
    """Three hosts. Each round the central one is lost, the next one takes over, and the lost one returns."""

    def __init__(self, lab):
        self.lab = started(lab)
        self.last = 0  # the central host

    def take_over(self, fault):
        """It has taken over or it has not, all hosts agree about which is central, and it can be tried again."""
        hosts = self.lab.hosts
        old, new, other = (hosts[(self.last + n) % 3] for n in range(3))
        kill_daemon(old)
        for host in (new, other):
            host.wait_until(lambda host=host: states(host)[old.name] == "lost", 15, f"{old.name} to be lost on {host.name}")
        pids = [pid for pid in new.processes() if comm(pid) in ("pbeamd", "pbeam-channel")]
        outcome = inject(new, fault, ["pbeamctl", "hosts", "--take-over"], pids)
        if outcome.hit and not fault.kill and outcome.returncode:
            assert names_cause(outcome) or any(text in outcome.err for text in OF_SQLITE), f"cause: {outcome.err!r}"
        if central(new) != [new.name]:
            assert outcome.returncode, f"{outcome.err!r}: {central(new)}"
            new.ctl("hosts", "--take-over")
        for host in (old, other):
            host.ctl("hosts", check=False)  # starts a pbeamd that was killed
        self.last = (self.last + 1) % 3
        all_follow(self.lab, hosts, new.name)
        for host in hosts:
            assert host.run(["scip", "run", "--", "echo", "alive"]).stdout == "alive\n"
        return outcome

    def revive(self):
        """Makes one host central by any means."""
        for host in self.lab.hosts:
            host.ctl("hosts", check=False)
        names = [central(host) for host in self.lab.hosts]
        self.last = next((n for n, host in enumerate(self.lab.hosts) if [host.name] in names), 0)
        all_follow(self.lab, self.lab.hosts, self.lab.hosts[self.last].name)


@pytest.mark.long
def test_calls(make_lab, long):
    """The cluster has one central host, which all others follow."""
    throne = Throne(make_lab(3))
    campaign(throne.take_over, throne.revive, ACTORS if long else ACTORS[1:2], long, "take-over", sample=1)
