from __future__ import annotations

import logging
import re
from contextlib import closing

from orchestrator.common.logs import TerminalSink, sending_to
from orchestrator.service import log
from orchestrator.service.log import ServiceLogSink

LOG = logging.getLogger("orchestrator.service.supervisor")
TIMED = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ "


def test_a_service_logs_with_times_to_its_file_and_as_asked_to_its_terminal(tmp_path, capsys):
    path = tmp_path / "service.log"
    with closing(ServiceLogSink(path, TerminalSink(logging.WARNING))) as sink, sending_to(sink):
        for say, text in ((LOG.debug, "D"), (LOG.info, "a\x1b[2J"), (LOG.warning, "W")):
            say(text)
    assert re.fullmatch(TIMED + r"INFO    a\\x1b\[2J\n" + TIMED + r"WARNING W\n", path.read_text())
    assert capsys.readouterr().err == "W\n"


def test_a_services_log_is_rotated_and_one_that_cannot_be_written_ends_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(log, "MAX_SERVICE_LOG_BYTES", 40)
    path = tmp_path / "service.log"
    with closing(ServiceLogSink(path, None)) as sink, sending_to(sink):
        for number in range(3):
            LOG.info("line %d", number)
    with closing(ServiceLogSink(tmp_path / "absent" / "service.log", None)) as sink, sending_to(sink):
        LOG.info("dropped")
    assert path.stat().st_mode & 0o777 == 0o600
    assert (path.read_text()[-7:], path.with_name("service.log.1").read_text()[-7:]) == ("line 2\n", "line 1\n")
    assert capsys.readouterr().err == ""
