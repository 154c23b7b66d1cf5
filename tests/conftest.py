"""Fixtures of the end-to-end tests. A test that takes `host` runs as an ordinary user, one that takes `root_host` as root."""
import os
import pwd
import signal
import subprocess

import harness
import pytest
from programs import COUNT, counted

DEFAULT_TIMEOUT = 120
LONG_FACTOR = 30
NOBODY = 65534


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="the long form of tests that have one (make soak)")


def pytest_configure(config):
    config.addinivalue_line("markers", "long(only=False): has a long form, which --long asks for, or (only) is nothing else")
    config.addinivalue_line("markers", f"timeout(seconds): the test's own limit, {DEFAULT_TIMEOUT} without it")
    config.addinivalue_line("markers", "short: also run with the sanitizer build")
    config.addinivalue_line("markers", "messy: ends with processes that it could not end; they are ended without complaint")
    # nohup and background shells ignore these signals, and every program that we start would inherit that.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    harness.become_subreaper()


def pytest_collection_modifyitems(config, items):
    """Deselects tests that exist in the long form only."""
    left_out = [] if config.getoption("--long") else [item for item in items if (mark := item.get_closest_marker("long")) and mark.kwargs.get("only")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _times_out(seconds):
    def ring(signum, frame):
        pytest.fail(f"timed out after {seconds} s", pytrace=True)

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    mark = item.get_closest_marker("timeout")
    seconds = mark.args[0] if mark else DEFAULT_TIMEOUT
    _times_out(seconds * LONG_FACTOR if item.config.getoption("--long") else seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    setattr(item, f"report_{report.when}", report)
    if not report.failed or report.when != "call":
        return
    values = list(item.funcargs.values())
    for value in values + [host for made in getattr(item, "labs", []) for host in made.hosts]:
        if isinstance(value, harness.base.Host):
            report.sections.append(("commands", "\n".join(value.history[-40:])))
            report.sections.append(("processes", "\n".join(f"{pid} {line}" for pid, line in value.processes().items())))
            report.sections.append(("output", value.outputs()))
            report.sections.append(("log", value.log()))


@pytest.fixture
def long(request):
    """True if the long form is requested."""
    return request.config.getoption("--long")


@pytest.fixture(scope="session")
def stage():
    made = harness.Stage()
    yield made
    made.close()


def _host(request, stage, user):
    made = harness.Host(stage, user)
    yield made
    call = getattr(request.node, "report_call", None)
    clean = call is not None and call.passed and not request.node.get_closest_marker("messy")
    log = made.log()
    complaints = made.close(strict=clean)
    if clean and complaints:
        pytest.fail("\n".join(complaints + [log]), pytrace=False)


@pytest.fixture
def host(request, stage):
    """A host with an ordinary user."""
    yield from _host(request, stage, harness.ordinary_user())


@pytest.fixture
def nobody_host(request, stage):
    """A host with the user 65534, which is the same everywhere."""
    if os.getuid() not in (0, NOBODY):
        pytest.skip("needs root to run as user 65534")
    yield from _host(request, stage, pwd.getpwuid(NOBODY) if os.getuid() == 0 else None)


@pytest.fixture
def root_host(request, stage):
    """A host with root as user."""
    if os.getuid() != 0:
        pytest.skip("needs root to run as root")
    yield from _host(request, stage, None)


@pytest.fixture
def small_disk(request, host):
    """A file system at home/small: indirect parametrization with its size as in mount(8)."""
    if os.getuid() != 0:
        pytest.skip("needs root to mount a small file system")
    path = host.home / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={request.param},mode=777,uid={host.user.pw_uid}", "none", path], check=True)
    yield path
    subprocess.run(["umount", "-l", path], check=True)


@pytest.fixture
def count(host):
    """A job "count" that counts (programs.COUNT), and its output."""
    vpid, out = host.detach(*COUNT, name="count")
    host.wait_until(lambda: counted(out) > 3, what="counting")
    yield vpid, out
    host.ctl("kill", "-s", "KILL", "count", check=False)


@pytest.fixture
def make_lab(request, stage):
    """make_lab(count, private=(), numbers=()) gives hosts in one network (lab/), removed after the test."""
    request.node.labs = made = []

    def make(count, private=(), numbers=()):
        made.append(harness.Lab(stage, count, private, numbers))
        for host in made[-1].hosts:
            host.expect_loss()
        return made[-1]

    yield make
    call = getattr(request.node, "report_call", None)
    clean = call is not None and call.passed and not request.node.get_closest_marker("messy")
    log = "".join(f"==== {host.name}\n{host.log()}" for one in made for host in one.hosts)
    complaints = [line for one in made for line in one.close(strict=clean)]
    if clean and complaints:
        pytest.fail("\n".join(complaints + [log]), pytrace=False)
