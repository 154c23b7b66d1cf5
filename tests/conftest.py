"""Fixtures of the end-to-end tests. A test that takes `host` runs as an ordinary user, one that takes `root_host` as root."""
import os
import signal

import harness
import pytest

DEFAULT_TIMEOUT = 120


def pytest_configure(config):
    config.addinivalue_line("markers", f"timeout(seconds): the test's own limit, {DEFAULT_TIMEOUT} without it")
    config.addinivalue_line("markers", "short: also run with the sanitizer build")
    config.addinivalue_line("markers", "messy: ends with processes that it could not end; they are ended without complaint")
    harness.become_subreaper()


def _times_out(seconds):
    def ring(signum, frame):
        pytest.fail(f"timed out after {seconds} s", pytrace=True)

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    mark = item.get_closest_marker("timeout")
    _times_out(mark.args[0] if mark else DEFAULT_TIMEOUT)
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
    for value in item.funcargs.values():
        if isinstance(value, harness.Host):
            report.sections.append(("commands", "\n".join(value.history[-40:])))
            report.sections.append(("processes", "\n".join(f"{pid} {line}" for pid, line in value.processes().items())))
            report.sections.append(("log", value.log()))


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
    """An ordinary user's world."""
    yield from _host(request, stage, harness.ordinary_user())


@pytest.fixture
def root_host(request, stage):
    """Root's world."""
    if os.getuid() != 0:
        pytest.skip("needs root to run as root")
    yield from _host(request, stage, None)
