"""Pre-copy: rounds, their display, and that every page is right afterwards."""
import os
import pathlib
import re
import signal
import subprocess
import time

import pexpect
import pytest

HERE = pathlib.Path(__file__).resolve().parent

HOLD = "import os, time\nheld = os.urandom(%d << 20)\nopen('ready', 'w').close()\nwhile True: time.sleep(.01)\n"


@pytest.fixture
def two(make_lab):
    return make_lab(2).start().hosts


def start(host, program):
    vpid = int(host.run(["scip", "run", "-d", "--", "python3", "-c", program]).stdout)
    host.wait_until((host.home / "ready").exists, 60, "the program to be ready")
    return vpid


def root_of(host):
    return next(row["vpid"] for row in host.ps()["processes"] if not row["parent"])


def test_bar(two):
    """On a terminal a bar shows the round and disappears; elsewhere there is one line at the end, and no bar."""
    a, b = two
    vpid = start(a, HOLD % 48)
    argv = a.as_user(["pbeamctl", "migrate", "--bandwidth", "32M", str(vpid), b.name])
    shown = pexpect.spawn(argv[0], argv[1:], timeout=60, cwd=str(a.home), env={**a.env, "TERM": "dumb", "NO_COLOR": "1"})
    shown.expect(r"round 1 +\[#+ +\] +\d+ %")
    shown.expect(r"runs on b: .* sent in .*\(\d+ rounds?\), paused for ")
    shown.expect(pexpect.EOF)
    shown.close()
    assert shown.exitstatus == 0 and b"\x1b[3" not in shown.before
    said = b.run(["pbeamctl", "migrate", vpid, a.name]).stderr
    assert said.count("\n") == 1 and "\r" not in said and "round 1 " not in said, said
    a.run(["pbeamctl", "kill", "-s", "KILL", vpid])


# ---- memory that is written all the time ----

class Furious:
    """tests/cluster/programs/furious.c on a: it verifies all of its memory itself."""

    def __init__(self, host, mib, processes, nap_us, part, name="furious", more=()):
        self.host = host
        program = host.stage.top / name
        if not program.exists():
            subprocess.run(["cc", "-O2", "-D_GNU_SOURCE", HERE / "programs" / f"{name}.c", "-o", program], check=True)
        self.job = host.start(["scip", "run", "--", program, "ready", mib, processes, nap_us, part, *more], name)
        ready = host.home / "ready"
        host.wait_until(lambda: ready.exists() and ready.stat().st_size == processes, 60, "all processes to write")
        self.vpid = root_of(host)

    def move(self, here, there, *options):
        done = here.run(["pbeamctl", "migrate", *options, self.vpid, there.name], timeout=120, check=False)
        assert done.returncode == 0 and not self.job.text(), done.stderr + self.job.text()
        return done.stderr

    def end(self):
        """It verifies all its memory and ends."""
        self.host.run(["pbeamctl", "kill", "-s", "TERM", self.vpid])
        assert self.job.wait(60) == 7, self.job.text() + self.job.errors()


def test_furious(two):
    """One process that writes all its memory in random order, to and fro: the command says that the rounds do not converge."""
    a, b = two
    furious = Furious(a, 24, 1, 0, 1000)
    said = [furious.move(here, there, "--max-pause", "25ms") for here, there in ((a, b), (b, a), (a, b), (b, a))]
    furious.end()
    assert any(re.search(r"pbeamctl: after \d+ rounds it still writes \d+ MiB/s and has 2\d MiB of shared memory, which is compared at the end: a pause of \d+ ms is expected instead of 25 ms; going on\n", text) for text in said), said


WAYS = {"all": "sfdwmp", "cut": "swt", "closed": "sfcv"}


@pytest.mark.parametrize("ways", WAYS.values(), ids=WAYS)
def test_shared(two, ways):
    """Anonymous memory and a memory file that three processes write in every way that tracking cannot see: it is pre-copied, and later changes are found."""
    a, b = two
    a.env["PBEAM_LOG"] = b.env["PBEAM_LOG"] = "info"
    sharing = Furious(a, 12, 3, 200, 300, "sharing", [ways])
    for here, there in ((a, b), (b, a), (a, b)):
        sharing.move(here, there)
    assert a.log().count("MiB of shared memory sent at the end") == 2 and "is sent whole" not in a.log(), a.log()
    assert all(float(mib) > 16 for mib in re.findall(r"([\d.]+) MiB to be compared", a.log())), a.log()
    sharing.end()


def test_shared_stays(make_lab):
    """The migration is cancelled, or either side is killed or fails at any step: the program goes on at home, no longer tracked, and can move later."""
    lab = make_lab(2)
    words = {host: host.file("fault") for host in lab.hosts}
    for host, word in words.items():
        host.env["PBEAM_FAULT"] = str(word)
    a, b = lab.start().hosts
    sharing = Furious(a, 8, 3, 200, 300, "sharing", ["sfdwmp"])
    children = pathlib.Path(f"/proc/{sharing.vpid}/task/{sharing.vpid}/children").read_text().split()[:2]

    def goes_on():
        a.wait_until(lambda: not any(" uw" in pathlib.Path(f"/proc/{pid}/smaps").read_text() for pid in (sharing.vpid, *children)), 20, "nobody to watch it any more")
        b.wait_until(lambda: not b.named("scip-keeper"), 20, "what was made there to be gone")
        assert not sharing.job.text(), sharing.job.text()

    asking = a.start(["pbeamctl", "migrate", "--bandwidth", "2M", sharing.vpid, b.name], "asking")
    time.sleep(1)
    a.run(["pbeamctl", "migrate", "--cancel", sharing.vpid])
    assert asking.wait(30) == 1, asking.errors()
    goes_on()
    for at, victim, point in ((a, b, "migrate-round"), (a, a, "migrate-after-rounds"), (a, b, "migrate-before-state"), (b, b, "restore-made-objects")):
        words[at].write_text(f"{point}:sleep")
        moving = a.start(["pbeamctl", "migrate", str(sharing.vpid), b.name], "moving")
        a.wait_until(lambda: words[at].read_text() == f"{point}:reached", 20, f"the migration to be at {point}")
        for pid in victim.named("scip-coordinate"):
            os.kill(pid, signal.SIGKILL)
        words[at].write_text("")
        assert moving.wait(30) == 1, (point, victim.name, moving.errors())
        goes_on()
    sharing.move(a, b)
    sharing.end()


def test_tree(two):
    """Three processes with private and shared memory, some of it written."""
    a, b = two
    furious = Furious(a, 12, 3, 200, 300)
    for here, there in ((a, b), (b, a), (a, b), (b, a)):
        furious.move(here, there)
    furious.end()


def test_compressed(two):
    """Over a slow link compressible memory is compressed: less is sent than there is, and all arrives."""
    a, b = two
    program = "words = b'000000000000007,'\nkept = bytearray(words * (1 << 21))\n" + HOLD % 4 + ""
    program = program.replace("while True: time.sleep(.01)", "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *a: sys.exit(0 if kept == words * (1 << 21) else 1))\nwhile True: time.sleep(.01)")
    job = a.start(["scip", "run", "--", "python3", "-c", program], "compressible")
    a.wait_until((a.home / "ready").exists, 60, "the program to be ready")
    vpid = a.vpids()[0]
    begin = time.monotonic()
    said = a.run(["pbeamctl", "migrate", "--bandwidth", "8M", vpid, b.name], timeout=120).stderr
    assert time.monotonic() - begin < 8, "36 MiB at 8 MiB/s take longer than this if they are not compressed"
    assert float(re.search(r"([\d.]+)M sent", said)[1]) < 30, said
    a.run(["pbeamctl", "kill", vpid])
    assert job.wait(60) == 0


def test_cancelled(two):
    """Cancelled in the middle of a round: the program goes on at home and can move later."""
    a, b = two
    furious = Furious(a, 16, 1, 100, 100)
    asking = a.start(["pbeamctl", "migrate", "--bandwidth", "2M", furious.vpid, b.name], "asking")
    time.sleep(1)
    a.run(["pbeamctl", "migrate", "--cancel", furious.vpid])
    assert asking.wait(30) == 1 and "goes on here" in asking.errors(), asking.errors()
    furious.move(a, b)
    furious.end()


CHILDREN = """import hashlib, os, subprocess, sys, time
held = os.urandom(200 << 20)
digest = hashlib.sha256(held).digest()
open('ready', 'w').close()
n = 0
while not os.path.exists('stop'):
    assert subprocess.run(['sleep', sys.argv[1]]).returncode == 0
    time.sleep(float(sys.argv[2]))
    n += 1
    print(n, flush=True)
assert hashlib.sha256(held).digest() == digest
print('whole', flush=True)
"""


def there_and_back(a, b, job, vpid, times=1):
    """Moves a program that runs commands all the time; the least amount sent, in MiB."""
    sent = []
    for here, there in ((a, b), (b, a)) * times:
        moved = here.ctl("migrate", vpid, there.name, timeout=100)
        assert "runs on" in moved.stderr
        sent.append(float(re.search(r"([\d.]+)M sent", moved.stderr)[1]))
        before = len(job.lines())
        a.wait_until(lambda before=before: len(job.lines()) > before + 1, what="it to go on")
        assert "sent again" not in here.log() and "stands still" not in here.log(), here.log()
    return sent


@pytest.mark.timeout(120)
@pytest.mark.parametrize("busy, idle", [(".02", "0"), (".3", ".1")])
def test_children_come_and_go(two, busy, idle):
    """A program with much memory runs short commands while it moves: its memory is sent once, although its children change."""
    a, b = two
    a.env["PBEAM_LOG"] = b.env["PBEAM_LOG"] = "info"
    job = a.scip_run("python3", "-c", CHILDREN, busy, idle)
    a.wait_until((a.home / "ready").exists, 60, "the program to be ready")
    sent = there_and_back(a, b, job, root_of(a), 2)
    assert max(sent) < 300, sent
    a.file("stop")
    assert job.wait(60) == 0 and job.lines()[-1] == "whole", job.errors()


BUSY = r"""import hashlib, os, subprocess
held = os.urandom(100 << 20)
digest = hashlib.sha256(held).digest()
zombie = subprocess.Popen(['sh', '-c', 'exit 9'])
daemon = subprocess.Popen(['sh', '-c', 'while ! [ -e stop ]; do sleep .05; done; echo done >> out'], start_new_session=True)
open('ready', 'w').close()
pipeline = 'yes | head -c 100000 | md5sum; (sleep .1; exit 3); echo $?'
want = [hashlib.md5(b'y\n' * 50000).hexdigest(), '-', '3']
n = 0
while not os.path.exists('stop'):
    assert subprocess.run(['bash', '-mc', pipeline], capture_output=True, text=True).stdout.split() == want
    session = subprocess.Popen(['setsid', 'sh', '-c', 'sleep .03; exit 7'])
    orphan = subprocess.Popen(['sh', '-c', '(sleep .3) & sleep .02; exit 5'])
    assert (orphan.wait(), session.wait()) == (5, 7)
    n += 1
    print(n, flush=True)
assert hashlib.sha256(held).digest() == digest
assert (zombie.wait(), daemon.wait()) == (9, 0) and open('out').read() == 'done\n'
print('whole', flush=True)
"""


@pytest.mark.timeout(120)
def test_busy_tree(two):
    """The same with an unreaped zombie, sessions, groups, pipelines and orphans."""
    a, b = two
    a.env["PBEAM_LOG"] = b.env["PBEAM_LOG"] = "info"
    job = a.scip_run("python3", "-c", BUSY)
    a.wait_until((a.home / "ready").exists, 60, "the program to be ready")
    sent = there_and_back(a, b, job, root_of(a), 2)
    assert max(sent) < 150, sent
    a.file("stop")
    assert job.wait(60) == 0 and job.lines()[-1] == "whole", job.errors()


# Another with as much memory comes, or it becomes another program, when told so.
LATER = r"""import hashlib, os, subprocess, sys, time
size = int(sys.argv[2])
held = os.urandom(size << 20)
digest = hashlib.sha256(held).digest()
open('ready', 'w').close()
while not os.path.exists('now'): time.sleep(.01)
if sys.argv[1] == 'exec':
    sys.argv[1:] = ['none', '120']
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:3], 'none', '120'])
child = os.fork() if sys.argv[1] == 'fork' else 0
if not child:
    held = bytearray(held)
    digest = hashlib.sha256(held).digest()
    open('changed', 'w').close()
while not os.path.exists('stop'): time.sleep(.01)
assert hashlib.sha256(held).digest() == digest
assert not child or os.waitpid(child, 0)[1] == 0
print('whole', flush=True)
"""


def changed_meanwhile(a, b, program, *words):
    """Moves a program that changes after its memory was pre-copied."""
    a.env["PBEAM_LOG"] = b.env["PBEAM_LOG"] = "info"
    fault = a.file("fault", "migrate-after-rounds:sleep")
    job = a.scip_run("python3", "-c", program, *words, env={"PBEAM_FAULT": str(fault)})
    a.wait_until((a.home / "ready").exists, 60, "the program to be ready")
    root = root_of(a)
    moving = a.start(["pbeamctl", "migrate", str(root), b.name], "moving")
    a.wait_until(lambda: fault.read_text() == "migrate-after-rounds:reached", what="the first rounds to have ended")
    a.file("now")
    a.wait_until((a.home / "changed").exists, 60, "the changes")
    fault.write_text("")
    assert moving.wait(60) == 0, moving.errors()
    return job, root


@pytest.mark.timeout(120)
@pytest.mark.parametrize("what", ["fork", "exec"])
def test_great_change(two, what):
    """New memory that is too much for the pause is pre-copied in another attempt."""
    a, b = two
    job, _ = changed_meanwhile(a, b, LATER, what, "120")
    assert "pre-copying again" in a.log() and "sent again" not in a.log(), a.log()
    a.file("stop")
    assert job.wait(60) == 0 and set(job.text().split()) == {"whole"}, job.errors()


# Each child does something else when told so; afterwards it says who it is by a file of its name.
CHANGES = r"""import os, signal, sys, time
def told(word):
    while not os.path.exists(word): time.sleep(.005)
def say(name):
    with open(name + '.tmp', 'w') as file: print(os.getpid(), os.getppid(), os.getpgid(0), os.getsid(0), file=file)
    os.rename(name + '.tmp', name)
def become(name):
    os.execv(sys.executable, [sys.executable, '-c', sys.orig_argv[2], name])
def lives(name):
    told('after')
    say(name)
    time.sleep(1000)
def child(work, group=None, session=False):
    pid = os.fork()
    if not pid:
        if session: os.setsid()
        if group is not None: os.setpgid(0, group)
        work()
        os._exit(3)
    if group is not None: os.setpgid(pid, group)
    return pid
if sys.argv[1] != 'main': lives(sys.argv[1])
def executes(): told('now'); become('executes')
def ends(): told('now')
def member(): lives('member')
def leaves(): told('now'); os.setsid(); lives('leaves')
def launcher():
    if os.fork() == 0:
        told('now'); become('orphan')
children = {'executes': child(executes, 0), 'launcher': child(launcher), 'leads': child(ends, 0)}
children['member'] = child(member, children['leads'])
children['leaves'] = child(leaves)
os.waitpid(children['launcher'], 0)
open('ready', 'w').close()
told('now')
os.waitpid(children['leads'], 0)
children['zombie'] = child(lambda: None)
children['young'] = child(lambda: lives('young'), children['leads'])
children['session'] = child(lambda: lives('session'), session=True)
time.sleep(.3)
open('changed', 'w').close()
told('after')
say('main')
assert os.waitpid(children['zombie'], 0)[1] == 3 << 8
told('stop')
os.killpg(children['leads'], signal.SIGUSR1)
for name in ('member', 'young'):
    assert os.waitpid(children[name], 0)[1] == signal.SIGUSR1, name
for name in ('executes', 'leaves', 'session'):
    assert os.getpgid(children[name]) == children[name] or name == 'leaves'
    os.kill(children[name], signal.SIGKILL)
    assert os.waitpid(children[name], 0)[1] == signal.SIGKILL
with open('orphan') as file: os.kill(int(file.read().split()[0]), signal.SIGKILL)
print(*(f'{name}={pid}' for name, pid in children.items()), flush=True)
"""


@pytest.mark.timeout(120)
def test_changes(two):
    """Leaders that execute another program, end, or leave; orphans, sessions, a zombie: every change between the skeleton and the freeze is reproduced."""
    a, b = two
    job, root = changed_meanwhile(a, b, CHANGES, "main")
    assert "were pre-copied" in a.log() and "sent again" not in a.log(), a.log()
    a.file("after")
    names = ("main", "executes", "member", "leaves", "young", "session", "orphan")
    a.wait_until(lambda: all((a.home / name).exists() for name in names), 60, "all to say who they are")
    a.file("stop")
    assert job.wait(60) == 0, job.errors()
    pids = {name: int(pid) for name, pid in (word.split("=") for word in job.text().split())}
    who = {name: list(map(int, (a.home / name).read_text().split())) for name in names}
    group, session = who["main"][2:]
    leads = pids["leads"]
    assert who["main"][0] == root and who["orphan"][2:] == [group, session]
    assert who["executes"] == [pids["executes"], root, pids["executes"], session]
    assert who["member"] == [pids["member"], root, leads, session]
    assert who["young"] == [pids["young"], root, leads, session]
    assert who["leaves"] == [pids["leaves"], root, pids["leaves"], pids["leaves"]]
    assert who["session"] == [pids["session"], root, pids["session"], pids["session"]]


SESSION = r"""import hashlib, os, sys
held = os.urandom(100 << 20)
digest = hashlib.sha256(held).digest()
while True:
    line = input('> ').split()
    if line[0] == 'end':
        sys.exit(hashlib.sha256(held).digest() != digest)
    print('answer', eval(line[1]))
"""


@pytest.mark.timeout(120)
def test_session(make_lab):
    """An interactive program on the console: its memory is pre-copied, it keeps its terminal on every host, and input reaches it."""
    a, b, c = make_lab(3).start().hosts
    argv = a.as_user(["scip", "run", "--", "python3", "-c", SESSION])
    shell = pexpect.spawn(argv[0], argv[1:], timeout=30, cwd=str(a.home), env={**a.env, "TERM": "dumb"}, echo=False)
    shell.expect("> ")
    vpid = root_of(a)
    for n, (here, there) in enumerate(((a, b), (b, c), (c, a), (a, c), (c, b), (b, a))):
        said = here.ctl("migrate", vpid, there.name).stderr
        assert "(1 round)" not in said and float(re.search(r"([\d.]+)M sent", said)[1]) < 150, said
        shell.sendline(f"eval {n}+1000")
        shell.expect(f"answer {n + 1000}\r\n> ")
        shell.sendline("eval os.tcgetpgrp(0)==os.getpgrp(),open('/dev/tty').fileno()>2")
        shell.expect(re.escape("answer (True, True)\r\n> "))
    shell.sendline("end")
    shell.expect(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == 0
