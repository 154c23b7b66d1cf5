"""Operations during which one system call of one actor fails, or kills the actor (tests/tools/fail_call.c), and what must hold afterwards."""
import errno
import os
import pathlib
import random
import re
import signal
import subprocess
import time

from harness import BUILD, comm, reap_orphans

LIMIT = 40  # seconds within which every operation ends, whatever fails

# Two processes, three threads, a pipe, a socket pair, a connection, shared and private memory, a file that is changed in place. Each line of its
# output went through all of them.
PROGRAM = """
import mmap, os, signal, socket, threading, time
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server = listener.accept()[0]
shared = mmap.mmap(-1, 4096)
left, right = socket.socketpair()
source, sink = os.pipe()
stored = open("stored", "r+b", 0)
memory = bytearray(os.urandom(1 << 20))
total = sum(memory)
if os.fork() == 0:
    os.close(sink)
    while line := os.read(source, 100):
        shared[:len(line)] = line
        client.sendall(line)
        right.sendall(server.recv(100))
    os._exit(0)
signal.signal(signal.SIGUSR1, lambda *_: None)
threading.Thread(target=lambda: [time.sleep(1000)], daemon=True).start()
n = 0
while True:
    line = b"%d\\n" % n
    os.write(sink, line)
    assert left.recv(100) == line and shared[:len(line)] == line and sum(memory) == total
    os.pwrite(stored.fileno(), line, 0)
    assert os.pread(stored.fileno(), 100, 0).startswith(line)
    os.write(1, line)
    n += 1
    time.sleep(.01)
"""
PROCESSES = 2
FATAL = ("scip", "scip-keeper")  # the program, or one of its processes, may end with these


class Fault:
    """The at-th call of a role fails with error number `turn` of those that it can return, or kills its caller."""

    def __init__(self, role, at=0, turn=0, kill=False):
        self.role, self.at, self.turn, self.kill = role, at, turn, kill

    def __repr__(self):
        return f"{self.role}:{self.at}:{'kill' if self.kill else self.turn}"


class Outcome:
    """A command's status and texts, the number of calls counted, and the call that was hit (None if there were fewer)."""

    last = None

    def __init__(self, returncode, out, err, report):
        self.returncode, self.out, self.err, self.report = returncode, out, err, report
        found = re.search(r"^calls (\d+)", report, re.M)
        self.calls = int(found[1]) if found else 0
        found = re.search(r"^hit .* -> (\w+)$", report, re.M)
        self.hit = found[0] if found else None
        self.error = found[1] if found and found[1] != "SIGKILL" else None
        Outcome.last = self

    def stack(self):
        """The functions whose return addresses are on the stack of the call that was hit."""
        found = re.search(r"^stack (\S+) (.*)$", self.report, re.M)
        if not found:
            return ""
        program = next((path for path in BUILD.glob("*/*") if path.name == os.path.basename(found[1]) and path.is_file()), None)
        if program is None:
            return ""
        named = subprocess.run(["addr2line", "-f", "-e", program, *found[2].split()], capture_output=True, text=True).stdout.split("\n")
        return " < ".join(f"{name}:{os.path.basename(line).split(' ')[0].split(':')[-1]}" for name, line in zip(named[::2], named[1::2]) if name != "??")

    def __repr__(self):
        path = re.search(r"^path (.*)$", self.report, re.M)
        return f"{self.hit}{' (' + path[1] + ')' if path else ''} -> exit {self.returncode} {self.err!r}"


COORDINATOR = "scip-coordinate,scip-keeper+"  # with what it does before it has its name
LAST_REMOTE = {"checkpoint": 10, "restore": 450}  # the number of such calls, about
REMOTE = "remote-call"  # the role of a program that makes calls for its scip (scip/tracee/remote_fault.c)


def inject_remote(host, fault, words, limit):
    """The at-th call that scips make in their processes fails."""
    wish = pathlib.Path(host.env["PBEAM_FAULT"])
    wish.write_text(f"{REMOTE}:fail:{fault.at}")
    began = time.monotonic()
    done = host.run(words, check=False, timeout=limit)
    reached = wish.read_text()
    wish.write_text("")
    report = f"hit {reached.replace(':reached', '')} call {fault.at} after {time.monotonic() - began:.1f} s -> \n" if "reached" in reached else ""
    return Outcome(done.returncode, done.stdout, done.stderr, report.replace("-> \n", f"-> {reached.split(' ')[-1]}\n"))


def inject(host, fault, words, pids, linger=0, limit=LIMIT):
    """Runs the command with the fault: an Outcome. A command that does not end in time is an AssertionError."""
    if fault.role == REMOTE:
        return inject_remote(host, fault, words, limit)
    report = host.file("fail_call")
    argv = [host.stage.tools / "fail_call", "--role", fault.role, "--at", fault.at, "--turn", fault.turn, "--report", report, "--linger", linger,
            *(["--kill"] if fault.kill else []), *[f"--pid={pid}" for pid in pids], "--", *words]
    process = host.popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        waiting = {pid: pathlib.Path(f"/proc/{pid}/wchan").read_text() for pid in host.processes()}
        lines = host.processes()
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"{words} did not end within {limit} s: {report.read_text()} {err!r} {[(comm(pid), lines.get(pid), at) for pid, at in waiting.items()]}") from None
    host.history.append(f"    -> {fault} {process.returncode} {out[-300:]!r} {err[-300:]!r}")
    return Outcome(process.returncode, out, err, report.read_text(errors="replace"))


def names_cause(outcome):
    """True if a failure's message gives the error that was injected."""
    return not outcome.error or os.strerror(getattr(errno, outcome.error)) in outcome.err


def open_files(pid):
    """What a process has open: {number: target}."""
    found = {}
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                found[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
    except OSError:
        pass
    return found


class World:
    """One host with the program as job "work"."""

    def __init__(self, host, remote=False):
        self.host = host
        if remote:
            host.env["PBEAM_FAULT"] = str(host.file("wish"))
        self.out = None
        self.read = 0
        self.last = -1

    # ---- the program ----

    def begin(self):
        self.host.file("stored", "0\n")
        _, self.out = self.host.detach("python3", "-uc", PROGRAM, name="work")
        self.read, self.last = 0, -1
        self.goes_on()

    def numbers(self):
        """Reads on: checks that the numbers continue. Returns the last one."""
        with open(self.out, "rb") as file:
            file.seek(self.read)
            text = file.read()
        lines = text.split(b"\n")
        for line in lines[:-1]:
            assert line == b"%d" % (self.last + 1), f"{line!r} after {self.last}: {text[-200:]!r}"
            self.last += 1
        self.read += len(text) - len(lines[-1])
        return self.last

    def again(self):
        """The program was set back: reads from the start."""
        self.read, self.last = 0, -1

    def goes_on(self, timeout=15):
        first = self.numbers()
        self.host.wait_until(lambda: self.numbers() > first + 1, timeout, "the program to go on")

    def programs(self):
        return self.host.program_pids()

    def rows(self):
        return [row for row in self.host.ps()["processes"] if row["job_name"] == "work"]

    def once(self):
        """It runs, and once."""
        self.goes_on()
        self.host.wait_until(lambda: len(self.programs()) == PROCESSES, 5, f"{PROCESSES} processes")
        rows = self.rows()
        assert len(rows) == PROCESSES, rows

    def gone(self):
        """Nothing of it is left."""
        self.host.wait_until(lambda: not self.programs() and not self.host.pids_of("scip"), 10, "all of it to end")
        assert not self.rows()

    def end(self):
        self.host.kill_programs()
        self.gone()

    def revive(self):
        """A new program, after whatever has happened."""
        for name in ("scip", "pbeamctl"):
            for pid in {*self.host.program_pids(), *self.host.pids_of(name)}:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.host.wait_until(lambda: not self.programs() and not self.host.pids_of("scip"), 10, "all of it to end")
        self.host.wait_until_swept()
        for pattern in ("*.tmp-*", ".*.pbeam-*", "*.journal"):
            for path in self.host.top.rglob(pattern):
                path.unlink()
        self.begin()
        self.host.checkpoint("work")

    # ---- the actors ----

    def actors(self):
        """The pids of all that takes part, but not of what they trace."""
        traced = set(self.programs())
        return [pid for name in ("pbeamd", "scip") for pid in self.host.pids_of(name) if pid not in traced]

    def held(self):
        """What the lasting actors and the program hold: {(role, pid): number of descriptors}, and mappings of ours in the program."""
        found = {}
        for pid in self.actors():
            if comm(pid) in ("pbeamd", "scip-keeper", "scip"):
                found[comm(pid), pid] = len(open_files(pid))
        for pid in self.programs():
            found["program", pid] = len(open_files(pid)), pathlib.Path(f"/proc/{pid}/maps").read_text().count("memfd:pbeam")
        return found

    def nothing_left(self, before, outcome=None):
        """No temporary file, no process of an operation, no socket of the dead; no descriptor more than before. A file whose removal was made to fail
        may be there: of the files of a restore until the next one."""
        seen = []
        if outcome and "unlink" in (outcome.hit or ""):
            self.host.run(["rm", "-f", *[path for path in re.findall(r"^path (/.*)$", outcome.report, re.M) if ".tmp-" in path]])
            if re.search(r"^path .*(\.pbeam-|\.journal$)", outcome.report, re.M):
                self.host.ctl("rollback", "--dry-run", "work")

        def clean():
            reap_orphans()
            seen[:] = [str(path) for pattern in ("*.tmp-*", ".*.pbeam-*", "*.journal") for path in self.host.top.rglob(pattern)]
            seen.extend(f"process {comm(pid)}" for pid in self.host.pids_of("scip") if comm(pid) in ("scip-coordinate", "scip-recall"))
            now = self.held()
            seen.extend(f"{key}: {before[key]} before, {now[key]} now, {open_files(key[1])}" for key in before.keys() & now.keys() if now[key] > before[key])
            for role in ("job", "scip"):
                seen.extend(str(path) for path in (self.host.runtime / "pbeam" / role).glob("*") if not os.path.exists(f"/proc/{path.name}"))
            return not seen

        try:
            self.host.wait_until(clean, 5, "nothing to be left over")
        except AssertionError:
            raise AssertionError("left over: " + "; ".join(seen)) from None

    def images(self):
        return sorted(path for path in self.host.state.rglob("*.ckpt"))

    def said(self, outcome):
        """A failure is one sentence that gives the cause."""
        if outcome.returncode == 0:
            return
        assert outcome.err.count("\n") == 1 and outcome.err.strip() and not outcome.out, f"sentence: {outcome.err!r} {outcome.out!r}"
        assert names_cause(outcome), f"cause: {outcome.err!r}"

    # ---- operations ----

    def checkpoint(self, fault):
        """The image is whole and new, or there is none; the program goes on unless its supervisor or keeper was killed."""
        older = self.images()
        before = self.held()
        outcome = inject(self.host, fault, ["pbeamctl", "checkpoint", "work"], self.actors())
        if not outcome.hit:
            return outcome
        if fault.kill and fault.role in FATAL:
            if fault.role == "scip":
                self.end()  # its process has ended with it; the other one runs on
            self.gone()
            self.nothing_left({})
            self.host.rollback("work")
            self.again()
            self.once()
            return outcome
        if not fault.kill or fault.role != "pbeamctl":
            self.said(outcome)
        self.once()
        if not fault.kill:
            self.nothing_left(before, outcome)
        if outcome.returncode == 0:
            path = pathlib.Path(outcome.out.strip())
            self.host.ctl("image", "verify", path)
            assert path not in older
        made = self.host.checkpoint("work")
        self.host.ctl("image", "verify", made)
        self.nothing_left({} if fault.kill else before)  # the next checkpoint removes what a killed one has left
        for path in self.images():
            if path != made:
                path.unlink()
        return outcome

    def restore(self, fault):
        """The job has ended. It runs, or it does not and can be restored."""
        self.end()
        image = self.images()[-1]
        before = self.held()
        outcome = inject(self.host, fault, ["scip", "restore", "-d", image], self.actors())
        if outcome.hit:
            self.ran_or_not(fault, outcome, before)
            if fault.kill and fault.role in FATAL:
                self.end()
        self.again()
        if not self.programs():
            self.gone()
            self.host.run(["scip", "restore", "-d", image])
        self.once()
        self.nothing_left({})  # a restore puts back what a killed one has changed
        return outcome

    def ran_or_not(self, fault, outcome, before):
        """After a restore with a fault."""
        self.host.ctl("image", "verify", self.images()[-1])
        if outcome.returncode == 0 and not (fault.kill and fault.role in FATAL):
            self.again()
            self.once()
        elif not fault.kill:
            self.gone()
        if not fault.kill:
            self.nothing_left(before, outcome)
        if outcome.returncode not in (0, 128 + 9):
            self.said(outcome)

    def supervisors(self):
        """The pids of the scips of the program."""
        found = set()
        for pid in self.programs():
            try:
                found.add(int(re.search(r"^TracerPid:\t(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)[1]))
            except (OSError, TypeError):
                continue
        return found

    def ended_with_its_scip(self, fault, outcome, older):
        """True if the fault has killed the keeper, the scip of an old process, or after the commit that of a new one."""
        if not outcome.hit or not fault.kill or fault.role not in FATAL:
            return False
        return fault.role == "scip-keeper" or outcome.returncode == 0 or int(outcome.hit.split()[2]) in older

    def rollback(self, fault):
        """It runs, the old one or the new one, unless a supervisor or the keeper was killed."""
        image = self.images()[-1]
        before, older = self.held(), self.supervisors()
        outcome = inject(self.host, fault, ["pbeamctl", "rollback", "work"], self.actors())
        may_end = self.ended_with_its_scip(fault, outcome, older)
        if outcome.hit:
            assert outcome.returncode == 0 or self.programs() or may_end, "lost"
            self.host.ctl("image", "verify", image)
        if outcome.returncode == 0:
            self.again()
        if may_end and (len(self.programs()) < PROCESSES or not self.seen_to_go_on()):
            self.end()  # one of its processes has ended, or both have
        if not self.programs():
            self.gone()
            self.host.run(["scip", "restore", "-d", image])
            self.again()
        self.once()
        if outcome.hit:
            self.nothing_left({} if fault.kill else {key: value for key, value in before.items() if key[0] in ("pbeamd", "scip-keeper")}, outcome)
            if not fault.kill:
                self.said(outcome)
        return outcome

    def seen_to_go_on(self, timeout=2):
        """Waits until it is seen to go on (true), or has ended."""
        try:
            self.goes_on(timeout)
            return True
        except AssertionError:
            return False


class Pair:
    """Two hosts of a cluster; the program, born on the first, as job "work"."""

    def __init__(self, lab):
        self.lab = lab.start()
        self.home, self.away = lab.hosts
        self.world = World(self.home)
        self.world.rows = lambda: [row for row in self.home.ps()["processes"] if row["job_name"] == "work" and row["state"] != "ended"]

    def side(self, host):
        """The pids of the actors on one host; programs keep the environment of their birth."""
        space = os.readlink(f"/proc/{host.space.pid}/ns/net")
        found = []
        for one in self.lab.hosts:
            traced = set(one.program_pids())
            for pid in one.processes():
                try:
                    if os.readlink(f"/proc/{pid}/ns/net") == space and pid not in traced and os.path.basename(os.readlink(f"/proc/{pid}/exe")) in ("pbeamd", "scip"):
                        found.append(pid)
                except OSError:
                    continue
        return found

    def place(self):
        """The host on which its processes are; stubs have no command line."""
        pids = [pid for pid, line in self.home.processes().items() if line.startswith("python3") and "socketpair" in line]
        spaces = {os.readlink(f"/proc/{pid}/ns/net") for pid in pids}
        found = [host for host in self.lab.hosts if os.readlink(f"/proc/{host.space.pid}/ns/net") in spaces]
        return (found[0], len(pids)) if len(found) == 1 else (None, len(pids))

    def begin(self):
        self.world.begin()

    def end(self):
        for pid, line in self.home.processes().items():
            if line.startswith("python3") and "socketpair" in line:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        for host in self.lab.hosts:
            host.wait_until(lambda host=host: not [pid for pid in self.side(host) if comm(pid).startswith("scip")], 15, f"all of it to end on {host.name}")
        self.home.wait_until(lambda: not self.world.rows(), 10, "ps to know")

    def revive(self):
        """A new program, after whatever has happened."""
        self.end()
        self.begin()

    def once(self):
        """It runs in one place, which ps knows."""
        self.world.goes_on(30)
        self.home.wait_until(lambda: self.place()[0] and self.place()[1] == PROCESSES, 15, f"{PROCESSES} processes in one place, not {self.place()}")
        name = self.place()[0].name
        for host in self.lab.hosts:
            host.wait_until(lambda host=host: [row["host"] for row in host.ps()["processes"] if row["job_name"] == "work" and row["state"] != "ended"] == [name] * PROCESSES, 10,
                            f"ps on {host.name} to show it on {name}: {host.ps()}")
        return self.place()[0]

    def nothing_left(self):
        seen = []

        def clean():
            reap_orphans()
            seen[:] = [str(path) for host in self.lab.hosts for path in host.top.rglob("*.tmp-*")]
            for host in self.lab.hosts:
                seen.extend(f"{host.name}: {comm(pid)}" for pid in self.side(host) if comm(pid) in ("scip-coordinate", "scip-reconnect"))
                for role in ("job", "scip"):
                    seen.extend(str(path) for path in (host.runtime / "pbeam" / role).glob("*") if not os.path.exists(f"/proc/{path.name}"))
            keepers = [pid for pid in self.side(self.away) if comm(pid) == "scip-keeper"]
            if len(keepers) != (1 if self.place()[0] is self.away else 0):
                seen.append(f"{len(keepers)} keepers on {self.away.name}")
            seen.extend(self.home.run([self.home.stage.tools / "registry", "list", "migration/"], check=False).stdout.splitlines())
            return not seen

        try:
            self.home.wait_until(clean, 15, "nothing to be left over")
        except AssertionError:
            raise AssertionError("left over: " + "; ".join(seen)) from None

    def migrate(self, fault, side="source"):
        """It runs, on one host, and can be moved."""
        host = self.home if side == "source" else self.away
        outcome = inject(self.home, fault, ["pbeamctl", "migrate", "work", self.away.name], self.side(host), 300)
        if outcome.hit:
            if fault.kill and "pbeamd" in fault.role:
                # Each asks its own pbeamd, which starts it again.
                self.home.wait_until(lambda: [len(self.lab.up(one)) for one in self.lab.hosts] == [2, 2], 20, "the hosts to be up")
            lost = fault.kill and fault.role in FATAL
            if lost and not self.world.seen_to_go_on(4):
                self.end()
                self.begin()
                return outcome
            at = self.once()
            self.nothing_left()
            if not fault.kill:
                assert (at is self.away) == (outcome.returncode == 0), f"on {at.name}: {outcome.err}"
                if outcome.returncode:
                    assert outcome.err.count("\n") == 1 and names_cause(outcome), f"cause: {outcome.err!r}"
            elif outcome.returncode == 0:
                assert at is self.away
        if self.place()[0] is self.home:
            self.home.ctl("migrate", "work", self.away.name)
            self.once()
        self.away.ctl("migrate", "work", self.home.name)
        self.once()
        self.nothing_left()
        return outcome


def campaign(operation, revive, roles, long, label, sample=3):
    """Runs the operation with one fault after the other: every call in the long form, else `sample` calls of each role and way. Every violation is
    collected; `revive` makes a world in which the next fault can be tried. PBEAM_FAULT_SEED chooses the sample; PBEAM_CALL=LABEL/ROLE:AT:TURN or
    ...:kill repeats one fault, PBEAM_CALL=LABEL/ROLE all of one role; PBEAM_FAULT_SHARE=I/N tries every N-th call, from the I-th on."""
    seed = int(os.environ.get("PBEAM_FAULT_SEED", time.time_ns() % 1000000 if long else 2))
    wanted = os.environ.get("PBEAM_CALL", "")
    first, step = (int(word) for word in os.environ.get("PBEAM_FAULT_SHARE", "1/1").split("/"))
    print(f"PBEAM_FAULT_SEED={seed}")
    generator = random.Random(f"{seed} {label}")
    violations, runs = [], 0
    for role in roles:
        if wanted and not wanted.startswith(f"{label}/{role}"):
            continue
        for kill in ([False] if role == REMOTE else [False, True]):
            if wanted.endswith(":kill") and not kill:
                continue
            last = LAST_REMOTE[label] if role == REMOTE else operation(Fault(role, kill=kill)).calls
            print(f"{label}, {role}, {'kill' if kill else 'fail'}: {last} calls", flush=True)
            for at in range(first, last + 1, step) if long or wanted else sorted(generator.sample(range(1, last + 1), min(sample, last))):
                fault = Fault(role, at, at, kill)
                if wanted not in ("", label, f"{label}/{role}", f"{label}/{fault}"):
                    continue
                try:
                    outcome = operation(fault)
                    runs += 1
                    if not outcome.hit and role == REMOTE:
                        break
                except AssertionError as error:
                    violations.append(f"PBEAM_CALL={label}/{fault}: {error}\n    {Outcome.last}\n    {Outcome.last.stack() if Outcome.last else ''}")
                    print(violations[-1], flush=True)
                    revive()
    print(f"{label}: {runs} faults")
    assert not violations, f"{len(violations)} of {runs} faults (PBEAM_FAULT_SEED={seed}):\n" + "\n".join(violations)
