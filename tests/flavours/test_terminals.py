"""Programs on a terminal through five cycles of checkpoint, kill -9 and restore on another terminal, typed into each time."""
import pexpect
import pytest

CYCLES = 5
pytestmark = pytest.mark.timeout(150)


def cycle(host, child, name):
    """Checkpoints, kills, restores on a new terminal. Returns the pexpect child there."""
    host.wait_until(lambda: "at work already" not in host.ctl("checkpoint", name, check=False).stderr, what="the restore to be done")
    image = host.checkpoint(name)
    host.kill_programs()
    child.expect(pexpect.EOF)
    child.wait()
    child.close()
    again = host.terminal(["scip", "restore", image])
    def runs():
        rows = host.ctl("ps").stdout
        return name in rows and "frozen" not in rows

    host.wait_until(runs, what="it to run again")
    return again


def finish(child, status=0):
    child.expect(pexpect.EOF)
    child.wait()
    child.close()
    assert child.exitstatus == status


@pytest.mark.parametrize("disturbed", [False, True], ids=["native", "cycles"])
def test_python_prompt(host, disturbed):
    child = host.terminal((["scip", "run", "--name", "prompt", "--"] if disturbed else []) + ["python3", "-q"])
    child.expect(">>> ")
    child.sendline("x = []")
    child.expect(">>> ")
    for n in range(CYCLES):
        if disturbed:
            child = cycle(host, child, "prompt")
        child.sendline(f"x.append({n}); print('x is', x)")
        child.expect_exact(f"x is {list(range(n + 1))}")
        child.expect(">>> ")
    child.sendline("def f():")
    child.expect(r"\.\.\. ")
    child.sendline("  return 'in' + 'deed'")
    child.sendline("")
    child.expect(">>> ")
    child.sendline("f()")
    child.expect("'indeed'")
    child.sendline("exit(3)")
    finish(child, 3)


@pytest.mark.parametrize("disturbed", [False, True], ids=["native", "cycles"])
def test_sqlite_in_mid_transaction(host, disturbed):
    child = host.terminal((["scip", "run", "--name", "shell", "--"] if disturbed else []) + ["sqlite3", "data.db"])
    child.expect("sqlite> ")
    child.sendline("create table t(n integer primary key, s text);")
    child.expect("sqlite> ")
    child.sendline("begin; insert into t select value, hex(randomblob(500)) from generate_series(1, 2000);")
    child.expect("sqlite> ")
    for n in range(CYCLES):
        if disturbed:
            child = cycle(host, child, "shell")
        child.sendline(f"insert into t values ({10000 + n}, 'cycle {n}'); select 'rows ' || count(*) from t;")
        child.expect(f"rows {2001 + n}\r")
        child.expect("sqlite> ")
    child.sendline("commit; pragma integrity_check;")
    child.expect("\rok\r")
    child.sendline(".quit")
    finish(child)
    rows = host.run(["sqlite3", "data.db", "select count(*) from t; select s from t where n >= 10000 order by n;"]).stdout
    assert rows.split("\n")[:-1] == [str(2000 + CYCLES)] + [f"cycle {n}" for n in range(CYCLES)]


@pytest.mark.parametrize("disturbed", [False, True], ids=["native", "cycles"])
def test_vim(host, disturbed):
    child = host.terminal((["scip", "run", "--name", "vim", "--"] if disturbed else []) + ["vim", "-u", "NONE", "-N", "text"])
    child.expect(r"\[New\]")
    child.send("ifirst line\r")
    for n in range(CYCLES):
        child.expect(f"cycle {n - 1}" if n else "first line")
        if disturbed:
            child = cycle(host, child, "vim")
        child.send(f"cycle {n}\r")
    child.expect(f"cycle {CYCLES - 1}")
    child.send("last line\x1b:wq\r")
    finish(child)
    assert (host.home / "text").read_text() == "first line\n" + "".join(f"cycle {n}\n" for n in range(CYCLES)) + "last line\n"
