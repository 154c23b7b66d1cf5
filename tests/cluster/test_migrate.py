"""A program that moves between hosts: its numbers, its signals, its console."""
import os
import signal
import subprocess
import threading
import time

import pexpect
import pytest

COUNTER = """import os, signal, time
out = open('out', 'w', buffering=1)
signal.signal(signal.SIGUSR1, lambda *a: out.write('signal\\n'))
for i in range(%d):
    out.write(f'{os.getpid()} {os.getppid()} {i}\\n')
    time.sleep(.05)
os._exit(%d)
"""


def move(host, vpid, to):
    return host.run(["pbeamctl", "migrate", vpid, to.name]).stderr


def start_counter(host, rounds, status=7):
    job = host.start(["scip", "run", "--", "python3", "-u", "-c", COUNTER % (rounds, status)], "counter")
    host.wait_until(lambda: (host.home / "out").exists() and len((host.home / "out").read_text().splitlines()) > 3, 20, "the program to count")
    return job, int((host.home / "out").read_text().split()[0])


def counted(host):
    return [line.split() for line in (host.home / "out").read_text().splitlines() if line != "signal"]


@pytest.fixture
def three(make_lab):
    return make_lab(3).start().hosts


def test_round_trip(three):
    """A, B, C, A, B: the numbers stay, every signal to the old number arrives, scip run ends with its status."""
    a, b, c = three
    job, vpid = start_counter(a, 160)
    for here, there in ((a, b), (b, c), (c, a), (a, b)):
        move(here, vpid, there)
        before = (a.home / "out").read_text().count("signal")
        os.kill(vpid, signal.SIGUSR1)  # on a: the process itself, or its stub
        a.wait_until(lambda: (a.home / "out").read_text().count("signal") > before, 10, "the signal")
    assert job.wait(60) == 7
    lines = counted(a)
    assert [int(line[2]) for line in lines] == list(range(160))
    assert len({(line[0], line[1]) for line in lines}) == 1


def test_tracked(three):
    """A job with a tracked directory moves: the command says, also in advance, that no checkpoint has the directory any more."""
    a, b, _ = three
    folder = a.home / "folder"
    folder.mkdir()
    a.own(folder)
    vpid, _ = a.detach("sleep", "1000", name="tracked", options=("--track", str(folder)))
    what = f"no checkpoint of the job of vpid {vpid} includes the directory {folder} (scip run --track)"
    assert f"after the migration {what}" in a.run(["pbeamctl", "migrate", "--dry-run", "tracked", b.name]).stderr
    assert f"from now on {what}" in move(a, "tracked", b)
    a.ctl("kill", "-s", "KILL", "tracked")


ENDS_THERE = """
import os, sys
host = lambda: os.readlink("/proc/self/ns/net")
print("ready", flush=True)
for _ in range(int(sys.argv[1])):
    here = host()
    while host() == here:
        pass
os._exit(7)
"""


@pytest.mark.parametrize("moves", [1, 3])
def test_ends_at_once_there(three, moves):
    """It moves and ends before the coordinators have finished."""
    a, b, c = three
    for turn in range(3):
        job = a.start(["scip", "run", "--name", f"job{turn}", "--", "python3", "-c", ENDS_THERE, moves], f"job{turn}")
        job.wait_for("ready")
        for here, there in ((a, b), (b, c), (c, b))[:moves]:
            here.ctl("migrate", f"job{turn}", there.name)
        assert job.wait(20) == 7


def test_killed_there(three):
    a, b, _ = three
    job, vpid = start_counter(a, 2000)
    move(a, vpid, b)
    b.run(["pbeamctl", "kill", "-s", "KILL", vpid])
    assert job.wait(20) == 128 + signal.SIGKILL


def test_stub_killed(three):
    """kill -9 of the number at home reaches the process."""
    a, b, _ = three
    job, vpid = start_counter(a, 2000)
    move(a, vpid, b)
    os.kill(vpid, signal.SIGKILL)
    assert job.wait(20) == 128 + signal.SIGKILL
    b.wait_until(lambda: vpid not in b.vpids(), 10, "the process to be gone")


def test_pipes(three):
    """Standard input and output are pipes: every byte once and in order over four moves, end of file, the status last."""
    a, b, c = three
    program = "import sys, time\nfor line in sys.stdin:\n    sys.stdout.write('got ' + line); sys.stdout.flush(); time.sleep(.01)\nsys.exit(3)"
    process = a.popen(["scip", "run", "--", "python3", "-u", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    said = []

    def feed():
        for i in range(400):
            process.stdin.write(b"%d\n" % i)
            process.stdin.flush()
            time.sleep(.01)
        process.stdin.close()

    threads = [threading.Thread(target=feed), threading.Thread(target=lambda: said.append(process.stdout.read()))]
    for thread in threads:
        thread.start()
    a.wait_until(lambda: len(a.vpids()) == 1, 10, "the program")
    vpid = a.vpids()[0]
    for here, there in ((a, b), (b, c), (c, a), (a, b)):
        time.sleep(.3)
        move(here, vpid, there)
    assert process.wait(60) == 3
    for thread in threads:
        thread.join(20)
    assert said[0] == b"".join(b"got %d\n" % i for i in range(400))
    for host in three:
        assert "does not take what was written" not in host.log()


def test_nobody_reads(three):
    """Output that the console does not take is not left behind: the program stays until it is read, and every line arrives."""
    a, b, c = three
    process = a.popen(["scip", "run", "--", "python3", "-c", "for i in range(2000000): print('line', i)"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    first = process.stdout.read(5)
    vpid = a.vpids()[0]
    move(a, vpid, b)
    refused = b.run(["pbeamctl", "migrate", vpid, c.name], check=False)
    assert refused.returncode == 1 and "the console on a does not take what was written to it" in refused.stderr
    assert first + process.stdout.read() == b"".join(b"line %d\n" % i for i in range(2000000))
    assert process.wait(20) == 0


def test_terminal(three):
    """A shell on a terminal that stays: window size, Ctrl-C, variables, exit status."""
    a, b, c = three
    argv = a.as_user(["scip", "run", "--", "bash", "--norc"])
    shell = pexpect.spawn(argv[0], [str(word) for word in argv[1:]], timeout=20, dimensions=(30, 90), cwd=str(a.home), env={**a.env, "TERM": "dumb", "PS1": "P# "})
    shell.expect("P# ")
    shell.sendline("X=41")
    shell.expect("P# ")
    vpid = a.vpids()[0]
    move(a, vpid, b)
    shell.sendline("echo $((X+1)) $(stty size)")
    shell.expect("42 30 90\r\nP# ")
    shell.setwinsize(40, 100)
    time.sleep(1)
    shell.sendline("stty size")
    shell.expect("40 100\r\nP# ")
    shell.sendline("echo sleeping; sleep 60")
    shell.expect("sleeping\r\n")
    time.sleep(.5)
    shell.sendcontrol("c")
    shell.expect("P# ")
    move(b, vpid, c)
    shell.sendline("echo there $X")
    shell.expect("there 41\r\nP# ")
    move(c, vpid, a)
    shell.sendline("echo home $X")
    shell.expect("home 41\r\nP# ")
    move(a, vpid, b)
    shell.sendline("exit 9")
    shell.expect(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == 9


def test_tree(three):
    """A tree with pipes and job control inside moves as one and goes on."""
    a, b, _ = three
    script = "i=0; while [ $i -lt 100 ]; do echo $i; i=$((i+1)); sleep .05; done | while read n; do echo \"n $n\"; done > out; exit 4"
    job = a.start(["scip", "run", "--", "sh", "-c", script], "tree")
    a.wait_until(lambda: (a.home / "out").exists() and len((a.home / "out").read_text().splitlines()) > 5, 20, "the tree to work")
    vpid = min(a.vpids())
    move(a, vpid, b)
    assert job.wait(60) == 4
    assert (a.home / "out").read_text() == "".join(f"n {i}\n" for i in range(100))


def test_refusals(three):
    a, b, _ = three
    job, vpid = start_counter(a, 2000)
    for words, text in ((["pbeamctl", "migrate", vpid, "nowhere"], "nowhere"), (["pbeamctl", "migrate", vpid, "a"], "already")):
        done = a.run(words, check=False)
        assert done.returncode == 1 and text in done.stderr
    before = len(counted(a))
    a.wait_until(lambda: len(counted(a)) > before + 3, 10, "the program to go on")
    a.run(["pbeamctl", "migrate", "--dry-run", vpid, b.name])
    a.run(["pbeamctl", "kill", vpid])
    job.wait(20)


def test_part_of_a_job(three):
    """A child leaves its parent and moves on. Its output to the shared console arrives in order, and no process waits for it."""
    a, b, c = three
    child = "for n in $(seq 100); do echo $n; echo e $n >&2; sleep .05; done"
    job = a.popen(["scip", "run", "--", "sh", "-c", f"sh -c '{child}' & echo $! >child; wait $!; echo status $?"], stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, text=True)
    a.wait_until(lambda: (a.home / "child").exists() and (a.home / "child").read_text().endswith("\n"), 20, "the child")
    vpid = int((a.home / "child").read_text())
    for here, there in ((a, b), (b, c), (c, a), (a, c)):
        move(here, vpid, there)
    out, errors = job.communicate(timeout=60)
    assert out.splitlines() == [str(n) for n in range(1, 101)] + ["status 0"]
    assert errors.splitlines() == [f"e {n}" for n in range(1, 101)]
    assert job.returncode == 0
    for host in three:
        assert "does not take what was written" not in host.log()


@pytest.mark.long
@pytest.mark.timeout(60)
def test_forking_shell(make_lab, long):
    """A shell whose children come and go moves to and fro: children, pre-copied or not, may have ended since or end at the freeze."""
    a, b = make_lab(2).start().hosts
    job = a.scip_run("bash", "-c", "for ((n = 0; ; n++)); do echo $n; sleep .0$((RANDOM % 5 + 1)); done")
    job.wait_for("3\n")
    vpid, = [row["vpid"] for row in a.ps()["processes"] if not row["parent"]]
    for n in range(100 if long else 6):
        here, there = ((a, b), (b, a))[n % 2]
        move(here, vpid, there)
    before = len(job.lines())
    a.wait_until(lambda: len(job.lines()) > before + 5, what="it to go on")
    assert job.lines()[:before] == [str(n) for n in range(before)]
    a.ctl("kill", "-s", "KILL", vpid)
    assert job.wait() == 128 + 9 and not job.errors()


HALFWAY = """import os, socket, sys, time
if sys.argv[1] == "read":
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    peer, _ = listener.accept()
    while not os.path.exists("go"): time.sleep(.02)
    got = 0
    while data := peer.recv(1 << 16): got += len(data)
    print("got", got, flush=True)
    sys.exit()
out = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
print("sends", flush=True)
sent = out.send(bytes(64 << 20))
print("sent", sent, flush=True)
while not os.path.exists("home"):
    sum(range(1000000))  # in no call when it moves: the next one is whole
    assert not os.path.exists("nowhere")
for n in range(1, 1000):
    a, b = os.pipe()
    assert os.write(b, b"x" * n) == n and len(os.read(a, 2000)) == n and not os.path.exists("nowhere")
    os.close(a); os.close(b)
print("whole", flush=True)
"""


def test_home_after_half_a_transfer(make_lab):
    """A send cut short by the move continues on the new host; the stub that the process left, and returns into, does not continue it."""
    lab = make_lab(2).start()
    a, b = lab.hosts
    reader = a.scip_run("python3", "-c", HALFWAY, "read", name="reader").wait_for("\n")
    sender = a.scip_run("python3", "-c", HALFWAY, "send", reader.lines()[0], name="sender").wait_for("sends")
    a.ctl("migrate", "sender", "b")
    a.file("go")
    sender.wait_for(f"sent {64 << 20}")
    b.ctl("migrate", "sender", "a")
    a.file("home")
    assert sender.wait(20) == 0, sender.text() + sender.errors()
    assert reader.wait(20) == 0 and f"got {64 << 20}" in reader.text()
