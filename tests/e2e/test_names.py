"""PBEAM_TEST_DIVERGE gives every process and thread a virtual number other than its own, so that all names diverge from birth and all programs run behind the restored filter."""
import json
import pathlib
import subprocess

import pytest

CASES = sorted(path.stem for path in (pathlib.Path(__file__).parent.parent / "cases").glob("*.c"))
DIVERGE = {"PBEAM_TEST_DIVERGE": "1"}


@pytest.mark.timeout(150)
@pytest.mark.parametrize("name", CASES)
def test_diverged(host, name):
    source = (pathlib.Path(__file__).parent.parent / "cases" / f"{name}.c").read_text()
    if "case: terminal" in source:
        pytest.skip("needs a terminal")
    job = host.scip_run(host.stage.cases / name, name=name, env=DIVERGE)
    status = job.wait(110)
    if status == 77:
        pytest.skip("the case said so")
    assert status == 0 and job.text().rstrip().endswith("pass"), f"exit {status}: {job.text()}{job.errors()}"


def shell(host, text, env=DIVERGE):
    job = host.scip_run("bash", "-c", text, env=env)
    status = job.wait(20)
    assert status == 0, job.errors()
    return job.text().split()


def test_shell_knows_its_children(host):
    told = shell(host, "(echo $BASHPID) & echo $!; wait $!; echo $?; kill -0 $$ && echo alive")
    assert told[0] == told[1] and told[2:] == ["0", "alive"] or told[0] == told[1], told


def test_numbers_are_not_real(host):
    number = int(shell(host, "echo $$")[0])
    assert number > 4194304


def test_ps_shows_what_the_program_sees(host):
    told = shell(host, "echo $$; ps -o pid= -p $$; ps -o ppid= -p $BASHPID | wc -l; pgrep -f no-such-program-here; true")
    assert told[0] == told[1] and told[2] == "1", told


def test_job_control(host):
    told = shell(host, "set -m; sleep 30 & kill -STOP %1; sleep 0.2; jobs -s | wc -l; kill -CONT %1; kill %1; wait; echo done")
    assert told[0] == "1" and told[-1] == "done", told


def test_kill_all_stays_in_the_job(host):
    outside = subprocess.Popen(["sleep", "30"])
    try:
        told = shell(host, "sleep 30 & sleep 30 & trap '' TERM; kill -TERM -1; wait; echo $?", env={})
        assert told[-1] in ("143", "0"), told
        assert outside.poll() is None
    finally:
        outside.kill()
        outside.wait()


PROBES = {
    "ptrace": "import ctypes,os;l=ctypes.CDLL(None,use_errno=True);r=l.ptrace(0,0,0,0);print(r,ctypes.get_errno())",
    "unknown": "import ctypes;l=ctypes.CDLL(None,use_errno=True);r=l.syscall(600);print(r,ctypes.get_errno())",
    "x32": "import ctypes;l=ctypes.CDLL(None,use_errno=True);r=l.syscall(0x40000000|39);print(r,ctypes.get_errno())",
    "dumpable": "import ctypes;l=ctypes.CDLL(None);print(l.prctl(4,0,0,0,0),l.prctl(3,0,0,0,0));print(l.prctl(4,7,0,0,0))",
}


@pytest.mark.parametrize("env", [{}, DIVERGE], ids=["born", "diverged"])
@pytest.mark.parametrize("probe, expected", [("ptrace", ["-1", "1"]), ("unknown", ["-1", "38"]), ("x32", ["-1", "38"]),
                                             ("dumpable", ["0", "0", "-1"])])
def test_answered_by_scip(host, probe, expected, env):
    job = host.scip_run("python3", "-c", PROBES[probe], env=env)
    assert job.wait(20) == 0
    assert job.text().split() == expected


def test_unknown_calls_are_counted(host):
    job = host.scip_run("python3", "-c",
                        "import ctypes,time;l=ctypes.CDLL(None)\nfor i in range(3): l.syscall(600+i)\nprint('made',flush=True);time.sleep(60)",
                        name="unknown")
    job.wait_for("made")
    document = json.loads(host.ctl("doctor", "--json").stdout)
    assert document["unknown_calls"] == 3, document
    host.ctl("kill", "-s", "KILL", "unknown")
    job.wait(20)


HOLDS = """
import threading
for _ in range(50):
    threading.Thread(target=threading.Event().wait).start()
print("ready", flush=True)
"""

TAKEN = """
echo 1000 >/proc/sys/kernel/ns_last_pid
scip run -d --name holds -- python3 -c "$1" >holds.out
until grep -q ready holds.out; do sleep 0.05; done
first=$(pbeamctl ps | awk '/holds/ { print $1; exit }')
pbeamctl checkpoint --kill holds
echo 10000 >/proc/sys/kernel/ns_last_pid
pbeamctl rollback holds
for round in 1 2 3; do
    echo $((first - 5)) >/proc/sys/kernel/ns_last_pid
    scip run -- "$2" || true
done
pbeamctl kill -s KILL holds
"""


def test_threads_with_taken_numbers(host):
    """The kernel gives new threads of a program numbers that a restored job holds: the first of them runs behind the filter, too."""
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    own = host.file("elsewhere")
    own.unlink()
    host.run(["mkdir", "-m", "700", own])
    done = host.run([*inside, "sh", "-euc", TAKEN, "sh", HOLDS, host.stage.cases / "names_newborn"], env={"XDG_RUNTIME_DIR": str(own)})
    assert done.stdout.count("pass") == 3, done.stdout + done.stderr
