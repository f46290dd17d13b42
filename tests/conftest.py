"""Fixtures of all tests: the user's own state is neither read nor written, and skips are accounted for."""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from orchestrator.lifecycle.logs import ListSink, sending_to

pytest_plugins = ("tests.slurm.sandboxes", "tests.postgres", "tests.chromium")

MEMORY = Path("/dev/shm")
SERVERS = {
    "slurm_sandbox": "slurm",
    "slurm_sandbox_accounting": "slurm",
    "chromium": "web",
    "postgres_server": "postgres",
}
"""Group of the tests that use a fixture which starts a server for the whole session."""

_TURN, _MACHINE = 0, 1
"""Bytes of the lock file."""

_OF_A_TARGET = re.compile(r"(?:(?P<wanted>processes|alone)|not \w+)(?: and not \w+)*")
ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.txt")

# A busy machine fails no property; in the gate every run meets the same examples, elsewhere chance may find others.
settings.register_profile(
    "parlay",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="PARLAY_GATE" in os.environ,
)
settings.load_profile("parlay")


@pytest.fixture(scope="session")
def homes(tmp_path_factory) -> Iterator[Path]:
    """Names of folders that are not there yet."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def own_home(homes, monkeypatch):
    """Parlay's home in a fresh folder, so that a test never meets the user's ledger or MLflow store."""
    home = next(homes)
    home.mkdir(mode=0o700)
    monkeypatch.setenv("PARLAY_HOME", str(home))
    yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """Messages that Parlay logs during the test."""
    sink = ListSink()
    with sending_to(sink):
        yield sink.messages


@pytest.fixture
def silent(logged) -> Iterator[None]:
    """Fails the test if Parlay logs anything."""
    yield
    assert logged == []


def pytest_configure() -> None:
    # A shell starts what it runs in the background with ctrl-C ignored, and so would be every command tested here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if _holds_programs(MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))  # thousands of small files need no disk


def _holds_programs(folder: Path) -> bool:
    """True if the folder has enough room for tests and allows execution."""
    if not folder.is_dir():
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize > 4 * 2**30 and not found.f_flag & os.ST_NOEXEC


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files none of whose tests a target of make selects are not imported, which takes longer than many a test."""
    asked = _OF_A_TARGET.fullmatch(config.option.markexpr.strip())
    if asked is None or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text()
    of_all = "".join(re.findall(r"^pytestmark = .*", text, re.MULTILINE))
    is_left_out = any(f"mark.{mark}" in of_all for mark in re.findall(r"not (\w+)", asked[0]))
    return True if is_left_out or (asked["wanted"] and f"mark.{asked['wanted']}" not in text) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups, each run by one worker: the tests of a server, which so starts once, and those of a file. What takes
    minutes comes first, then servers: nothing waits for them at the end."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=lambda item: (item.get_closest_marker("minutes") is None, _server(item) is None))


def _group(item: pytest.Item) -> str:
    return _server(item) or str(item.path.relative_to(item.config.rootpath))


def _server(item: pytest.Item) -> str | None:
    fixtures = getattr(item, "fixturenames", ())
    return next((group for fixture, group in SERVERS.items() if fixture in fixtures), None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item):
    """A test that tells by the clock runs while no other worker runs any; its time limit begins after the wait."""
    with _machine(alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def _machine(alone: bool) -> Iterator[None]:
    """The machine, shared with tests of other processes or alone."""
    with open(Path(tempfile.gettempdir()) / f"parlay-tests-{os.getuid()}.lock", "a+b") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX, 1, _TURN)  # who waits for the machine alone is not passed by others
        fcntl.lockf(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, 1, _MACHINE)
        fcntl.lockf(lock, fcntl.LOCK_UN, 1, _TURN)
        yield


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In the gate a skip whose reason is not on the list is a failure: a test nobody runs proves nothing."""
    if os.environ.get("PARLAY_GATE") and _unlisted_skips(session) and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter) -> None:
    for reason in _unlisted_skips(terminalreporter._session):
        terminalreporter.write_line(f"skip not on {ALLOWED_SKIPS.name}: {reason}", red=True)


def _unlisted_skips(session: pytest.Session) -> list[str]:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return []
    allowed = [line for line in ALLOWED_SKIPS.read_text().splitlines() if line and not line.startswith("#")]
    reasons = [str(report.longrepr[2]).removeprefix("Skipped: ") for report in reporter.stats.get("skipped", [])]
    return sorted({reason for reason in reasons if not any(reason.startswith(known) for known in allowed)})
