"""System V objects outlive processes: restores after they were removed, and when others have been made."""
import re

import pytest

KINDS = {"s": ("sem", "semid"), "q": ("msg", "msqid"), "m": ("shm", "shmid")}


def objects(kind, key):
    """The ids of objects of this kind with this key: one or none."""
    table, name = KINDS[kind]
    with open(f"/proc/sysvipc/{table}", encoding="ascii") as lines:
        names = lines.readline().split()
        rows = [dict(zip(names, line.split())) for line in lines]
    return [row[name] for row in rows if int(row["key"]) == key]


@pytest.mark.timeout(60)
def test_objects_that_are_gone_are_made_again(host):
    """With other ids, which the program does not see; and again after that."""
    name, go = "sysv_objects", host.home / "go"
    job = host.scip_run(host.stage.cases / name, name=name, env={"CASE_GO": str(go)}).wait_for("ready")
    first, key = job, int(re.search(r"key (\d+)", job.text()).group(1))
    for _ in range(2):
        image = host.checkpoint(name, "--kill")
        job.wait(20)
        for kind in KINDS:
            (number,) = objects(kind, key)
            host.run(["ipcrm", f"-{kind}", number])
        job = host.start(["scip", "restore", image], "restored")
        host.wait_until(lambda: host.ctl("checkpoint", name, check=False).returncode == 0, 20, "the end of the restore")
    host.rollback(name)
    host.file("go")
    assert job.wait(30) == 0, first.errors() + job.errors()
    assert first.text().rstrip().endswith("pass") or job.text().rstrip().endswith("pass")


MAKER = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
key = 0x5d000000 + os.getpid()
print("key", key, libc.semget(key, 1, 0o3600), flush=True)
while not os.path.exists(os.environ["CASE_GO"]):
    time.sleep(0.02)
print("after", libc.semget(key + 0x1000000, 1, 0o3600), ctypes.get_errno(), flush=True)
while True:
    time.sleep(1)
"""


@pytest.mark.timeout(60)
def test_objects_made_after_the_checkpoint_go_with_a_rollback(host):
    """The program makes an object exclusively after the checkpoint and can do so again after each rollback."""
    go = host.home / "go"
    job = host.scip_run("python3", "-c", MAKER, name="maker", env={"CASE_GO": str(go)}).wait_for("key")
    key = int(re.search(r"key (\d+)", job.text()).group(1))
    host.checkpoint("maker")
    host.file("go")
    for _ in range(3):
        host.wait_until(lambda: re.search(r"after -?\d+ \d+\n", job.text()), 20, "the second set")
        assert re.search(r"after \d+ 0\n", job.text()), job.text()
        assert len(objects("s", key)) == len(objects("s", key + 0x1000000)) == 1
        host.rollback("maker")
    host.run(["pbeamctl", "kill", "-s", "KILL", "maker"])
    job.wait(20)
    for number in objects("s", key) + objects("s", key + 0x1000000):
        host.run(["ipcrm", "-s", number])


TWO_OF_ONE_NUMBER = """
import ctypes, mmap, os, time
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_int
file = os.memfd_create("one")
os.ftruncate(file, 4096)
memory = mmap.mmap(file, 4096)
print("number", os.fstat(file).st_ino, flush=True)
while not os.path.exists("go"): time.sleep(.01)
segment = libc.shmget(0, 4096, 0o1600)
at = libc.shmat(segment, None, 0)
libc.shmctl(segment, 0, None)
memory[:6] = b"memory"
ctypes.memmove(at, b"segment", 7)
print("segment", segment, flush=True)
while not os.path.exists("look"): time.sleep(.01)
print(memory[:6], ctypes.string_at(at, 7), flush=True)
"""


def test_segment_with_the_number_of_a_memory_file(host):
    """A segment's inode number is its id, which a memory file may have too: the two are told apart."""
    job = host.scip_run("python3", "-c", TWO_OF_ONE_NUMBER, name="two").wait_for("number")
    number = re.search(r"number (\d+)", job.text())[1]
    try:
        with open("/proc/sys/kernel/shm_next_id", "w", encoding="ascii") as file:
            file.write(number)
    except OSError:
        pytest.skip("only an administrator can choose the id of a segment")
    host.file("go")
    job.wait_for("segment")
    if f"segment {number}\n" not in job.text():
        pytest.skip("somebody else has got the segment of that id")
    host.checkpoint("two")
    host.rollback("two")
    host.file("look")
    assert job.wait(20) == 0 and job.lines()[-1] == "b'memory' b'segment'", job.text() + job.errors()
