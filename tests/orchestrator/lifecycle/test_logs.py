"""Log messages reach the sink of their context, in its format and from its level."""

from __future__ import annotations

import io
import logging
import re
from contextlib import closing

import pytest

from orchestrator.lifecycle.logs import (
    ListSink,
    TerminalSink,
    is_quiet,
    sending_to,
    use_times_in,
)
from orchestrator.service import server
from orchestrator.service.server import ServiceLogSink

LOG = logging.getLogger("orchestrator.search.driver")
TIMED = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ "


def test_each_context_has_a_sink_of_its_own():
    first, second = ListSink(), ListSink()
    with sending_to(first):
        LOG.info("one")
        with sending_to(second):
            LOG.warning("two")
        with sending_to(None):
            LOG.error("nobody's")
        LOG.info("three")
    LOG.info("after")
    assert (first.messages, second.messages) == (["one", "three"], ["two"])


@pytest.mark.parametrize(("level", "shown"), [(logging.INFO, ["I", "W"]), (logging.WARNING, ["W"])])
def test_a_terminal_shows_messages_from_its_level_on(capsys, level, shown):
    with sending_to(TerminalSink(level)):
        assert is_quiet() == (level > logging.INFO)
        for say, text in ((LOG.debug, "D"), (LOG.info, "I"), (LOG.warning, "W")):
            say(text)
    assert capsys.readouterr().err.split() == shown


def test_a_terminal_that_is_gone_ends_nothing(monkeypatch):
    class Gone(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            self.writes += 1
            raise BrokenPipeError

    gone = Gone()
    monkeypatch.setattr("sys.stderr", gone)
    with sending_to(TerminalSink()):
        LOG.info("one")
        LOG.info("two")
    assert gone.writes == 1


def test_a_driver_whose_standard_error_is_its_log_writes_times(tmp_path, monkeypatch):
    for name, is_timed in (("driver.log", True), ("other.log", False)):
        with (tmp_path / name).open("w") as stream, monkeypatch.context() as patch:
            patch.setattr("sys.stderr", stream)
            with sending_to(TerminalSink()):
                use_times_in(tmp_path / "driver.log")
                LOG.info("begun")
        assert bool(re.match(TIMED, (tmp_path / name).read_text())) is is_timed


def test_a_service_logs_with_times_to_its_file_and_as_asked_to_its_terminal(tmp_path, capsys):
    path = tmp_path / "service.log"
    with closing(ServiceLogSink(path, TerminalSink(logging.WARNING))) as sink, sending_to(sink):
        for say, text in ((LOG.debug, "D"), (LOG.info, "a\x1b[2J"), (LOG.warning, "W")):
            say(text)
    assert re.fullmatch(TIMED + r"INFO    a\\x1b\[2J\n" + TIMED + r"WARNING W\n", path.read_text())
    assert capsys.readouterr().err == "W\n"


def test_a_services_log_is_rotated_and_one_that_cannot_be_written_ends_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(server, "MAX_SERVICE_LOG_BYTES", 40)
    path = tmp_path / "service.log"
    with closing(ServiceLogSink(path, None)) as sink, sending_to(sink):
        for number in range(3):
            LOG.info("line %d", number)
    with closing(ServiceLogSink(tmp_path / "absent" / "service.log", None)) as sink, sending_to(sink):
        LOG.info("dropped")
    assert path.stat().st_mode & 0o777 == 0o600
    assert (path.read_text()[-7:], path.with_name("service.log.1").read_text()[-7:]) == ("line 2\n", "line 1\n")
    assert capsys.readouterr().err == ""
