"""A host as one user sees it: directories, environment, the commands, and the check that nothing is left over.

The laboratory and the tests are built on this. It needs nothing but Python's own modules.
"""
import ctypes
import json
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("PBEAM_BUILD", ROOT / "build")).resolve()
USER = "pbeamtest"
PR_SET_CHILD_SUBREAPER = 36


def become_subreaper():
    """Makes orphans our children, to be reaped at once: on many machines PID 1 takes its time."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


# Children that their starter waits for: number and time of start, as numbers are used again. The lock makes the start and the entry here atomic.
started = set()
starting = threading.Lock()


def identity(pid):
    """Name, state and (number, time of start) of a process."""
    comm, rest = pathlib.Path(f"/proc/{pid}/stat").read_text().split("(", 1)[1].rsplit(")", 1)
    fields = rest.split()
    return comm, fields[0], (pid, int(fields[19]))


def wait_for(pid):
    """Leaves the child's end to its starter. To be called with `starting` held."""
    started.add(identity(pid)[2])


def state(pid):
    """The first lines of /proc/PID/status, for a failure's message."""
    try:
        return pathlib.Path("/proc", str(pid), "status").read_text().split("\n")[:7]
    except OSError as error:
        return str(error)


def reap_orphans():
    """Reaps our adopted children. Thousands of zombies would slow every walk through /proc down."""
    with starting:
        for task in os.listdir("/proc/self/task"):
            for pid in map(int, pathlib.Path("/proc/self/task", task, "children").read_text().split()):
                try:
                    comm, status, key = identity(pid)
                    if key not in started and status == "Z" and comm.startswith(("scip", "pbeam")):
                        os.waitpid(pid, os.WNOHANG)
                except OSError:
                    continue


def ordinary_user():
    """The user to run programs as: None for the invoking user; for root, a user that is created for it."""
    if os.getuid() != 0:
        return None
    try:
        return pwd.getpwnam(USER)
    except KeyError:
        subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/bash", USER], check=True)
        return pwd.getpwnam(USER)


class Stage:
    """The built programs, installed where every user can execute them whatever the modes of the build tree's parents."""

    def __init__(self):
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="pbeam-bin-"))
        self.top.chmod(0o755)
        self.bin = self.top / "bin"
        done = subprocess.run(["cmake", "--install", BUILD, "--prefix", self.top], capture_output=True, text=True)
        # In a build tree of another user only the manifest, written last, fails.
        if done.returncode != 0 and "install_manifest" not in done.stderr:
            raise RuntimeError(f"cmake --install failed: {done.stdout}{done.stderr}")

    def close(self):
        shutil.rmtree(self.top, ignore_errors=True)


def comm(pid):
    """The process's name, "" once it is gone."""
    try:
        return pathlib.Path("/proc", str(pid), "comm").read_text().rstrip("\n")
    except OSError:
        return ""


class Job:
    """A command in the background, with its output in files of the user's."""

    def __init__(self, host, argv, label, stdin=subprocess.DEVNULL, env=None):
        self.host = host
        self.out = host.file(f"{label}.out")
        self.err = host.file(f"{label}.err")
        with open(self.out, "r+b") as out, open(self.err, "r+b") as err:
            self.process = host.popen(argv, stdin=stdin, stdout=out, stderr=err, env=env)

    def text(self):
        return self.out.read_text(errors="replace")

    def lines(self):
        return self.text().splitlines()

    def errors(self):
        return self.err.read_text(errors="replace")

    def wait(self, timeout=60):
        """The exit status as a shell shows it: 128+N for a signal."""
        status = self.process.wait(timeout)
        return 128 - status if status < 0 else status

    def wait_for(self, text, timeout=20):
        """Waits for `text` in the output; fails if the command exits first."""

        def seen():
            found = text in self.text()
            if not found and self.process.poll() is not None and text not in self.text():
                raise AssertionError(f"ended with {self.process.returncode} before {text!r}: {self.text()[-2000:]}{self.errors()[-2000:]}")
            return found

        self.host.wait_until(seen, timeout, f"{text!r} in the output")
        return self


class Host:
    """One user on one host. All files are below `top`. `user` None is the invoking user."""

    def __init__(self, stage, user):
        self.stage = stage
        self.user = user
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="pbt-"))
        self.top.chmod(0o755)
        self.home = self.top / "home"
        self.runtime = self.top / "run"
        self.state = self.top / "state"
        for path in (self.home, self.runtime, self.state):
            path.mkdir(mode=0o700)
            self.own(path)
        self.reports = self.top / "reports"
        self.reports.mkdir()
        self.reports.chmod(0o1777)
        self.env = {
            "PATH": f"{stage.bin}:/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self.home),
            "USER": user.pw_name if user else pwd.getpwuid(os.getuid()).pw_name,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": "xterm",
            "XDG_RUNTIME_DIR": str(self.runtime),
            "XDG_STATE_HOME": str(self.state),
            "ASAN_OPTIONS": f"detect_leaks=0:handle_segv=2:handle_sigbus=2:log_path={self.reports}/asan",
            "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={self.reports}/ubsan",
        }
        for name in ("PBEAM_LOG",):
            if name in os.environ:
                self.env[name] = os.environ[name]
        self.children = []
        self.history = []
        self.counter = 0
        self.shm_before = self._shm()

    # ---- running things ----

    def own(self, path):
        if self.user:
            os.chown(path, self.user.pw_uid, self.user.pw_gid)

    def file(self, name, content=b""):
        """Creates a file of the user's in the home directory."""
        path = self.home / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.own(path)
        return path

    def as_user(self, argv):
        argv = [str(word) for word in argv]
        if not self.user:
            return argv
        return ["setpriv", "--reuid", str(self.user.pw_uid), "--regid", str(self.user.pw_gid), "--init-groups", "--inh-caps=-all", "--", *argv]

    def popen(self, argv, env=None, **more):
        self.history.append(" ".join(str(word) for word in argv))
        with starting:
            process = subprocess.Popen(self.as_user(argv), cwd=self.home, env={**self.env, **(env or {})}, **more)
            wait_for(process.pid)
        self.children.append(process)
        return process

    def run(self, argv, timeout=60, check=True, env=None, stdin="", **more):
        """Runs a command to its end: returncode, stdout, stderr. With `check`, a status other than 0 is an AssertionError."""
        process = self.popen(argv, env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", **more)
        try:
            out, err = process.communicate(stdin, timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"not done after {timeout} s: {self.history[-1]}\n{out}{err}") from None
        if len(self.children) % 50 == 0:
            reap_orphans()
        self.history.append(f"    -> {process.returncode} {out[-300:]!r} {err[-300:]!r}")
        if check and process.returncode != 0:
            raise AssertionError(f"{self.history[-2]}: exit {process.returncode}\n{out}{err}")
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def ctl(self, *words, **more):
        return self.run(["pbeamctl", *words], **more)

    def start(self, argv, label=None, env=None):
        """Starts a command in the background: a Job."""
        self.counter += 1
        return Job(self, argv, label or f"job{self.counter}", env=env)

    def scip_run(self, *argv, name=None, options=(), env=None):
        """`scip run` in the foreground of a background Job."""
        named = ["--name", name] if name else []
        return self.start(["scip", "run", *named, *options, "--", *argv], name, env)

    def detach(self, *argv, name=None, options=(), env=None):
        """`scip run -d`, the program's output in NAME.out in the home directory. Returns (vpid, output path)."""
        self.counter += 1
        out = self.file(f"{name or f'detached{self.counter}'}.out")
        named = ["--name", name] if name else []
        inner = ["sh", "-c", 'out=$1; shift; exec "$@" >"$out" 2>&1 </dev/null', "sh", out, *argv]
        done = self.run(["scip", "run", "-d", *named, *options, "--", *inner], env=env)
        return int(done.stdout), out

    # ---- the commands ----

    def ps(self):
        return json.loads(self.ctl("ps", "--json").stdout)

    def vpids(self):
        """The vpids of the name space."""
        rows = self.ps()
        rows = rows.get("processes", rows) if isinstance(rows, dict) else rows
        return [row["vpid"] for row in rows]

    def checkpoint(self, target, *options, timeout=60):
        """Returns the image's path: the only line on standard output."""
        out = self.ctl("checkpoint", *options, target, timeout=timeout).stdout
        assert out.count("\n") == 1, out
        path = pathlib.Path(out.rstrip("\n"))
        assert path.is_file() or not os.access(path.parent, os.X_OK), path
        return path

    def rollback(self, target, *options, timeout=60):
        return self.ctl("rollback", *options, target, timeout=timeout)

    # ---- waiting and looking ----

    def wait_until(self, predicate, timeout=20, what="the condition"):
        """Polls; returns the predicate's first true value. `what`, a text or a function that returns it, describes the failure."""
        end = time.monotonic() + timeout
        while True:
            value = predicate()
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"not within {timeout} s: {what() if callable(what) else what}")
            time.sleep(0.02)

    def processes(self):
        """The processes with our XDG_RUNTIME_DIR: {pid: command line}."""
        mark = b"XDG_RUNTIME_DIR=" + os.fsencode(self.runtime) + b"\0"
        found = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            try:
                environ = pathlib.Path("/proc", entry, "environ").read_bytes()
                if mark in environ + b"\0":
                    found[int(entry)] = pathlib.Path("/proc", entry, "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
        return found

    def pids_of(self, program):
        """Real pids of our processes whose executable is named `program`."""
        found = []
        for pid in self.processes():
            try:
                if os.path.basename(os.readlink(f"/proc/{pid}/exe")).removesuffix(" (deleted)") == program:
                    found.append(pid)
            except OSError:
                continue
        return sorted(found)

    def named(self, name):
        """Real pids of our processes with this name; scip's own processes are named by role."""
        return [pid for pid in self.processes() if comm(pid) == name]

    def wait_until_swept(self):
        """Waits until pbeamd, which looks once a second, has removed the sockets of killed keepers and scips."""
        def left():
            return [path for role in ("job", "scip") for path in (self.runtime / "pbeam" / role).iterdir()]

        def swept():
            reap_orphans()
            self.ctl("ps")
            return not left()

        self.wait_until(swept, what=lambda: f"the sockets to be removed: {[(str(path), state(path.name)) for path in left()]}")

    def program_pids(self):
        """Real pids of the supervised programs: our processes that scip traces."""
        ours = self.processes()
        found = []
        for pid in ours:
            try:
                status = pathlib.Path("/proc", str(pid), "status").read_text()
            except OSError:
                continue
            tracer = int(status.split("TracerPid:\t", 1)[1].split("\n", 1)[0])
            if tracer in ours:
                found.append(pid)
        return found

    def kill_programs(self):
        """Kills every supervised program with SIGKILL, as a crash would, and waits until all are gone."""
        for pid in self.program_pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.wait_until(lambda: not self.program_pids(), 20, "the killed programs to be gone")

    def outputs(self):
        """The last output of each command in the background."""
        return "".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}\n" for end in ("out", "err") for path in sorted(self.home.glob(f"*.{end}")) if path.stat().st_size)

    def log(self):
        """The logs of the daemons and supervisors."""
        text = ""
        for path in sorted(self.runtime.glob("pbeam/log*")) + sorted(self.reports.glob("*")):
            if path.is_file():
                text += f"--- {path.name}\n{path.read_text(errors='replace')[-8000:]}\n"
        return text

    # ---- the end ----

    def _shm(self):
        uid = self.user.pw_uid if self.user else os.getuid()
        files = {str(path) for path in pathlib.Path("/dev/shm").iterdir() if path.lstat().st_uid == uid}
        segments = {line.split()[1] for line in open("/proc/sysvipc/shm") if line.split()[7] == str(uid)}
        return files | segments

    def _reap(self):
        for child in self.children:
            if isinstance(child, subprocess.Popen):
                child.poll()
        known = {child.pid for child in self.children}
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) in known:
                continue
            try:
                state, parent = pathlib.Path("/proc", entry, "stat").read_text().rsplit(")", 1)[1].split()[:2]
                if state == "Z" and int(parent) == os.getpid():
                    os.waitpid(int(entry), os.WNOHANG)
            except (OSError, ValueError):
                continue

    def _strays(self):
        """Our processes but pbeamd, which exits when idle and which we terminate."""
        self._reap()
        return {pid: line for pid, line in self.processes().items() if not line.split(" ")[0].endswith("pbeamd") and "-- pbeamd " not in line}

    def _end(self, pids, timeout):
        """Sends SIGTERM, then SIGKILL. Returns the pids that needed SIGKILL."""
        for number, wait in ((signal.SIGTERM, timeout), (signal.SIGKILL, 5)):
            for pid in pids:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            end = time.monotonic() + wait
            while time.monotonic() < end:
                self._reap()
                alive = set(self.processes())
                left = [pid for pid in pids if pid in alive]
                if not left:
                    return pids if number == signal.SIGKILL else []
                time.sleep(0.02)
            pids = left
        return pids

    def close(self, strict=True):
        """Terminates our processes and removes the directories. Returns a line for each thing left over."""
        complaints = []
        end = time.monotonic() + (3 if strict else 0)
        strays = self._strays()
        while strays and time.monotonic() < end:
            time.sleep(0.02)
            strays = self._strays()
        complaints += [f"process left over: {pid} {line}" for pid, line in strays.items()]
        self._end([pid for pid in self.processes()], 0.1 if strays else 5)
        self._end([pid for pid in self.processes()], 1)
        self._reap()
        for folder in ("job", "scip"):
            complaints += [f"left over: {path}" for path in (self.runtime / "pbeam" / folder).glob("*")] if not strays else []
        complaints += [f"left over: {path}" for pattern in ("*.tmp-*", ".*.pbeam-*", "*.journal") for path in self.top.rglob(pattern)]
        if not [path for path in self.top.parent.glob("pbt-*") if path != self.top]:  # else it may be a concurrent run's
            complaints += [f"left over in shared memory: {name}" for name in self._shm() - self.shm_before]
        complaints += [f"sanitizer: {path.read_text(errors='replace')[:3000]}" for path in self.reports.glob("*")]
        complaints += [f"sanitizer: {line}" for line in self.log().splitlines() if "runtime error:" in line]
        shutil.rmtree(self.top, ignore_errors=True)
        return complaints
