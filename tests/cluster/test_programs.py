"""Real programs that move between hosts at work: a, b, c and back; their results are checked."""
import pathlib
import random
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "flavours"))
import builder  # noqa: E402

# name: (argv, what is built or copied for it). Each says "tick" while it works, checks itself when the file "go" is there, and says "result ok".
TICKING = {
    "python": (["/usr/bin/python3", "OUT/numpy_blas.py"], ["numpy_blas.py"]),
    "go": (["OUT/go-pure"], ["go-pure"]),
    "java": (["java", "-Xmx256m", "-XX:+UseParallelGC", "-cp", "OUT", "Work"], ["Work.class"]),
    "node": (["node", "OUT/work.js"], ["work.js"]),
    "threads": (["OUT/threads"], ["threads"]),
    "rust": (["OUT/rust"], ["rust"]),
    "processes": (["OUT/tree", "20"], ["tree"]),
}


@pytest.fixture
def three(make_lab):
    return make_lab(3).start().hosts


def move(here, vpid, there):
    here.ctl("migrate", str(vpid), there.name, timeout=150)


def round_trip(hosts):
    a, b, c = hosts
    return ((a, b), (b, c), (c, a))


def ready(stage, argv, needs):
    for target in needs:
        if target in builder.BUILDS:
            builder.build(target, stage.build)
        builder.copy(target, stage)
    return [word.replace("OUT", str(stage.flavours)) for word in argv]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TICKING)
def test_moved(three, stage, name):
    a = three[0]
    job = a.scip_run(*ready(stage, *TICKING[name]))
    job.wait_for("tick", 100)
    vpid = min(a.vpids())
    for here, there in round_trip(three):
        before = job.text().count("tick")
        move(here, vpid, there)
        a.wait_until(lambda before=before: job.text().count("tick") > before, 60, "the program to go on")
    a.file("go")
    assert job.wait(100) == 0, job.text() + job.errors()
    assert "result ok" in job.text().splitlines()


@pytest.mark.timeout(400)
def test_xz(three):
    """50 MB compressed by two threads on three hosts are the same as compressed on one."""
    a = three[0]
    generator = random.Random(2026)
    blocks = [generator.randbytes(32 * 1024) for _ in range(16)] + [bytes([n]) * 32 * 1024 for n in range(16)]
    a.file("big", b"".join(generator.choice(blocks) for _ in range(1526)))
    a.run(["sh", "-c", "xz -k -6 -T2 --block-size=4MiB -c big >native.xz"], timeout=150)
    job = a.scip_run("xz", "-k", "-6", "-T2", "--block-size=4MiB", "big")
    size = (a.home / "native.xz").stat().st_size
    for part, (here, there) in zip((1, 3, 5), round_trip(three)):
        a.wait_until(lambda part=part: list(a.home.glob("big.xz")) and (a.home / "big.xz").stat().st_size > size * part // 10, 100, f"{part} tenths to be packed")
        move(here, here.vpids()[0], there)
    assert job.wait(150) == 0, job.errors()
    assert (a.home / "big.xz").read_bytes() == (a.home / "native.xz").read_bytes()


@pytest.mark.timeout(200)
@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_sqlite(three, mode):
    """On a shared path: moved with a read transaction. A write transaction holds locks that two hosts cannot both have: refused, and committed completely."""
    a = three[0]
    a.run(["sqlite3", "data", f"pragma journal_mode={mode}; create table t(n)"])
    shell = a.popen(["scip", "run", "--", "sqlite3", "-batch", "data"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(*lines):
        shell.stdin.write("\n".join([*lines, "select 'done';"]) + "\n")
        shell.stdin.flush()
        said = []
        while (line := shell.stdout.readline()) != "done\n":
            assert line
            said.append(line.strip())
        return said

    numbers = []
    for turn, (here, there) in enumerate(round_trip(three)):
        new = [turn * 10000 + n for n in range(2000)]
        say("begin;", *(f"insert into t values({n});" for n in new))
        done = here.ctl("migrate", str(here.vpids()[0]), there.name, check=False, timeout=100)
        assert done.returncode == 1 and "record lock on a file" in done.stderr
        say("commit;")
        numbers += new
        assert say("begin;", "select count(*), sum(n) from t;") == [f"{len(numbers)}|{sum(numbers)}"]
        move(here, here.vpids()[0], there)
        assert say("select count(*), sum(n) from t;", "commit;") == [f"{len(numbers)}|{sum(numbers)}"]
    assert a.run(["sqlite3", "data", "select count(*), sum(n) from t; pragma integrity_check"]).stdout == f"{len(numbers)}|{sum(numbers)}\nok\n"
    shell.stdin.close()
    assert shell.wait(30) == 0


REDIS_CLIENT = """
import os, socket, time
s = socket.create_connection(("10.77.0.1", 6390), timeout=60)
f = s.makefile("rb")
n = 0
while not os.path.exists("go"):
    n += 1
    s.sendall(b"*2\\r\\n$4\\r\\nINCR\\r\\n$7\\r\\ncounter\\r\\n")
    assert f.readline() == b":%d\\r\\n" % n
    if n % 50 == 0:
        print("tick", n, flush=True)
    time.sleep(.002)
s.sendall(b"SHUTDOWN NOSAVE\\r\\n")
assert f.read() == b""
print("result ok", flush=True)
"""


@pytest.mark.timeout(300)
def test_redis(three):
    """The server moves under its client, then the client moves; both return. Every INCR is done once."""
    a, b, c = three
    server = a.scip_run("redis-server", "--port", "6390", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", "--dir", a.home, name="redis")
    server.wait_for("Ready to accept connections", 30)
    client = a.scip_run("python3", "-c", REDIS_CLIENT, name="client")
    client.wait_for("tick", 30)
    vpids = {name: next(row["vpid"] for row in a.ps()["processes"] if row["job_name"] == name) for name in ("redis", "client")}
    for name, here, there in (("redis", a, b), ("client", a, c), ("redis", b, c), ("client", c, b), ("redis", c, a), ("client", b, a)):
        before = client.text().count("tick")
        move(here, vpids[name], there)
        a.wait_until(lambda before=before: client.text().count("tick") > before + 1, 60, f"both to go on after {name} has moved to {there.name}")
    a.file("go")
    assert client.wait(30) == 0, client.text()[-1000:] + client.errors()
    assert server.wait(30) == 0
    assert "result ok" in client.text()


POSTGRES = pathlib.Path("/usr/lib/postgresql/15/bin")


@pytest.mark.timeout(200)
def test_postgres(three):
    """A server of many processes with shared memory moves round while clients write: no transaction is lost or fails."""
    a, b, c = three
    port, database = str(random.randrange(20000, 30000)), a.home / "database"
    client = ["-h", a.ip, "-p", port, "-U", "tests"]
    a.run([POSTGRES / "initdb", "-D", database, "-A", "trust", "-U", "tests", "--no-sync"], timeout=100)
    (database / "pg_hba.conf").write_text("host all all 10.77.0.0/24 trust\n")
    server = a.scip_run(POSTGRES / "postgres", "-D", database, "-k", a.home, "-p", port, "-h", "*", "-F", name="postgres")
    a.wait_until(lambda: a.run([POSTGRES / "pg_isready", *client], check=False).returncode == 0, 60, "the server")
    a.run([POSTGRES / "createdb", *client, "bench"], timeout=60)
    a.run([POSTGRES / "pgbench", *client, "-i", "-q", "bench"], timeout=100)
    inside = b.scip_run(POSTGRES / "pgbench", *client, "-n", "-c", "2", "-t", "300", "bench", name="inside")
    outside = c.start([POSTGRES / "pgbench", *client, "-n", "-c", "2", "-t", "300", "bench"], "outside")
    for here, there in round_trip(three):
        here.ctl("migrate", "postgres", there.name, timeout=100)
    for job in (inside, outside):
        assert job.wait(150) == 0, job.text() + job.errors()
        assert "number of transactions actually processed: 600/600" in job.text()
    done = a.run([POSTGRES / "psql", *client, "-Atc", "select count(*), sum(delta) = (select sum(abalance) from pgbench_accounts) from pgbench_history", "bench"])
    assert done.stdout == "1200|t\n"
    a.ctl("kill", "-s", "INT", "postgres")
    assert server.wait(60) == 0


MAKEFILE = """CC = gcc
OBJECTS = main.o $(patsubst %, part%.o, $(shell seq 12))
program: $(OBJECTS)
	$(CC) -o $@ $^
%.o: %.c
	$(CC) -O2 -c -o $@ $<
"""


def sources(where):
    where.mkdir()
    where.chmod(0o777)
    (where / "Makefile").write_text(MAKEFILE)
    for n in range(1, 13):
        (where / f"part{n}.c").write_text("#include <stdlib.h>\n" + "".join(f"int f{n}_{i}(int x) {{ int s = 0; for (int k = 0; k < x; k++) s += k * {i} ^ (s >> 3); return s; }}\n" for i in range(120)))
    numbers = range(1, 13)
    (where / "main.c").write_text("#include <stdio.h>\n" + "".join(f"int f{n}_1(int);\n" for n in numbers) + "int main(void) { printf(\"%d\\n\", " + " + ".join(f"f{n}_1({n})" for n in numbers) + "); }\n")


@pytest.mark.timeout(300)
def test_build(three):
    """A build whose compilers come and go moves all the time: its result is that of an undisturbed build."""
    a, b, _ = three
    for name in ("moved", "native"):
        sources(a.home / name)
    job = a.scip_run("make", "-j4", "-C", str(a.home / "moved"))
    job.wait_for("part1.o")
    vpid = min(a.vpids())
    moves, here, there = 0, a, b
    while job.process.poll() is None:
        done = here.ctl("migrate", str(vpid), there.name, timeout=100, check=False)
        if done.returncode == 0:
            moves, here, there = moves + 1, there, here
    assert job.wait() == 0 and moves >= 2, (moves, job.text(), job.errors())
    a.run(["make", "-j2", "-C", str(a.home / "native")])
    moved, native = ((a.home / name / "program").read_bytes() for name in ("moved", "native"))
    assert moved == native and a.run([str(a.home / "moved" / "program")]).stdout.strip().isdigit()
