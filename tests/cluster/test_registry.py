"""The registry: every host reads what one writes, whichever daemon is killed; channels between local programs."""
import os
import signal
import subprocess

import pytest
from test_hosts import daemon_pids, kill_daemon

pytestmark = pytest.mark.timeout(120)


def ask(host, *words, check=True):
    return host.run([host.stage.tools / "registry", *words], check=check)


def test_entries(make_lab):
    lab = make_lab(3).start()
    a, b, c = lab.hosts
    version = ask(b, "set", "k1", "v1", "0", "k2", "v2", "0").stdout.strip()
    for host in lab.hosts:
        assert ask(host, "get", "k1").stdout == f"{version} v1\n"
    for words in (("set", "k1", "x", "0"), ("set", "k3", "x", "0", "k1", "x", "999999"), ("remove", "k2", "999999"), ("get", "k3"), ("set", "bad key", "x", "0"),
                  ("lease", "lease/numbers", "99999999"), ("lease", "range", "10")):
        done = ask(c, *words, check=False)
        assert done.returncode == 1 and done.stderr, words
    newer = ask(c, "set", "k1", "w", version, "k3", "z", "0").stdout.strip()
    assert int(newer) > int(version)
    assert ask(a, "list", "k").stdout.splitlines() == [f"k1 {newer} w", f"k2 {version} v2", f"k3 {newer} z"]
    ask(b, "remove", "k1", newer)
    assert ask(c, "get", "k1", check=False).returncode == 1
    firsts = [int(ask(host, "lease", "lease/range", "10").stdout) for host in (a, b, c, b)]
    assert firsts == [1, 11, 21, 31]


def test_numbers_are_given_back(make_lab):
    """Blocks of pids that the kernel has passed are available to other hosts, unless a process has a number of them."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    ask(b, "set", "block/3000", "b", "0", "block/3001", "b", "0", f"vpid/{3001 * 1024 + 5}", "\n\x01a", "0")
    b.wait_until(lambda: ask(a, "get", "block/3000", check=False).returncode == 1, 60, "the block to be given back")
    assert ask(a, "get", "block/3001").stdout.endswith(" b\n")


def test_one_of_many_wins(make_lab):
    """Many concurrent writers of one entry: one succeeds."""
    lab = make_lab(2).start()
    racers = [lab.hosts[i % 2].popen([lab.stage.tools / "registry", "set", "prize", str(i), "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) for i in range(16)]
    won = [i for i, racer in enumerate(racers) if racer.communicate(timeout=30) and racer.returncode == 0]
    assert len(won) == 1
    assert ask(lab.hosts[0], "get", "prize").stdout.split()[1] == str(won[0])


def test_what_was_answered_stays(make_lab):
    """The central daemon is killed repeatedly while a host writes: every acknowledged write is there."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    written = []
    for i in range(30):
        done = ask(b, "set", f"entry/{i}", str(i), "0", check=False)
        if done.returncode == 0:
            written.append(i)
        if i % 6 == 3:
            os.kill(daemon_pids(a)[0], signal.SIGKILL)
            a.ctl("hosts")
    assert len(written) >= 20
    b.wait_until(lambda: len(lab.up(b)) == 2, 15, "a to be back")
    found = {line.split()[0]: line.split()[2] for line in ask(b, "list", "entry/").stdout.splitlines()}
    for i in written:
        assert found.get(f"entry/{i}") == str(i)


def test_nobody_to_ask(make_lab):
    lab = make_lab(2).start()
    a, b = lab.hosts
    a.cut()
    b.wait_until(lambda: len(lab.up(b)) == 1, 10, "a to be lost")
    done = ask(b, "set", "k", "v", "0", check=False)
    assert done.returncode == 1 and "central host" in done.stderr
    # programs are started all the same
    assert b.run(["scip", "run", "--", "echo", "alive"]).stdout == "alive\n"
    a.mend()
    b.wait_until(lambda: len(lab.up(b)) == 2, 15, "a to be back")
    ask(b, "set", "k", "v", "0")


def test_channels(make_lab):
    """Bytes pass completely, both ways, to the expected receiver; the daemons may be killed meanwhile."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    data = os.urandom(20 << 20)
    blob = b.file("blob", data)
    echo = a.start([a.stage.tools / "channel", "echo", "cookie", "1"], "echo")
    a.wait_until(lambda: "expecting" in echo.errors(), what="it to expect")
    go = b.home / "go"
    talk = b.popen(["sh", "-c", f"until [ -e {go} ]; do sleep .05; done; cat {blob}"], stdout=subprocess.PIPE)
    through = b.popen([b.stage.tools / "channel", "talk", "a", "cookie"], stdin=talk.stdout, stdout=open(b.file("back"), "wb"))
    a.wait_until(lambda: "taken" in echo.errors(), what="the channel")
    b.file("go")
    for host in lab.hosts:
        kill_daemon(host)
    assert through.wait(60) == 0 and echo.wait() == 0
    assert (b.home / "back").read_bytes() == data


def test_channels_refused(make_lab):
    lab = make_lab(2).start()
    a, b = lab.hosts
    for words, text in ((("talk", "a", "nobody"), "no process expects"), (("talk", "z", "x"), "no host z")):
        done = b.run([b.stage.tools / "channel", *words], check=False)
        assert done.returncode == 1 and text in done.stderr
    # a cookie is valid only while a process expects it
    echo = a.start([a.stage.tools / "channel", "echo", "once", "1"], "echo")
    a.wait_until(lambda: "expecting" in echo.errors(), what="it to expect")
    assert b.run([b.stage.tools / "channel", "talk", "a", "once"], stdin="hello").stdout == "hello"
    assert echo.wait() == 0
    done = b.run([b.stage.tools / "channel", "talk", "a", "once"], check=False)
    assert done.returncode == 1 and "no process expects" in done.stderr
    assert "no process expects" in a.daemon.errors()
