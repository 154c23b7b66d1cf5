"""Copy-on-write sharing between processes is restored, and a dump does not end it."""
import pathlib

PROCESSES = 13  # of tests/cases/shared_pages.c


def pss(host):
    """The sum of Pss of the case's processes, KiB."""
    total = 0
    for pid in host.pids_of("shared_pages"):
        text = pathlib.Path("/proc", str(pid), "smaps_rollup").read_text()
        total += int(text.split("\nPss:", 1)[1].split()[0])
    return total


def started(host):
    go = host.home / "go"
    job = host.scip_run(host.stage.cases / "shared_pages", name="family", env={"CASE_GO": str(go)})
    job.wait_for("ready")
    assert len(host.pids_of("shared_pages")) == PROCESSES
    return job


def finished(host, *jobs):
    host.file("go")
    status = jobs[-1].wait(60)
    text = "".join(job.text() + job.errors() for job in jobs)
    assert status == 0 and text.rstrip().endswith("pass"), text


def test_rollback_shares(host):
    job = started(host)
    before = pss(host)
    image = host.checkpoint("family")
    dumped = pss(host)
    assert dumped < before + before // 10 + 200, f"{before} KiB, after the dump {dumped}"
    for _ in range(2):
        host.rollback("family")
        after = pss(host)
        assert after < before + before // 10 + 200, f"{before} KiB, after the rollback {after}"
    assert image.stat().st_size < before * 1024 * 3 // 2
    finished(host, job)


def test_chain_shares(host):
    """Pages that are in other images of the chain are shared as well."""
    job = started(host)
    before = pss(host)
    image = host.checkpoint("family")
    for number in ("2", "3"):
        parent, image = image, image.with_name(f"{number}.ckpt")
        host.run([host.stage.tools / "split_image", parent, image])
    host.rollback("family", "--to", "3")
    after = pss(host)
    assert after < before + before // 10 + 200, f"{before} KiB, after the rollback {after}"
    finished(host, job)


def test_restore_shares(host):
    job = started(host)
    before = pss(host)
    image = host.checkpoint("family", "--kill")
    job.wait(20)
    restored = host.start(["scip", "restore", image], "restored")
    host.wait_until(lambda: len(host.pids_of("shared_pages")) == PROCESSES, 20, "the processes")
    host.wait_until(lambda: pss(host) > before // 2, 20, "the memory to be there")
    again = host.checkpoint("family")
    after = pss(host)
    assert after < before + before // 10 + 200, f"{before} KiB, after the restore {after}"
    assert again.stat().st_size < image.stat().st_size * 5 // 4
    finished(host, job, restored)
