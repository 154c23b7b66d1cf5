"""The laboratory: hosts reach each other, and a cut link is cut."""
import errno

TRY = "import socket, sys\ns = socket.socket(); s.settimeout(2); print(s.connect_ex((sys.argv[1], 9)))"


def reaches(host, other):
    """True also if the connection is refused."""
    return int(host.run(["python3", "-c", TRY, other.ip]).stdout) == errno.ECONNREFUSED


def test_hosts_reach_each_other(make_lab):
    lab = make_lab(3)
    a, _, c = lab.hosts
    assert reaches(a, c)
    c.cut()
    assert not reaches(a, c)
    c.mend()
    assert reaches(a, c)


def test_private_files(make_lab):
    a, b = make_lab(2, private=["/srv"]).hosts
    a.run(["sh", "-c", "echo a > /srv/which"])
    b.run(["sh", "-c", "echo b > /srv/which"])
    assert a.run(["cat", "/srv/which"]).stdout == "a\n"
