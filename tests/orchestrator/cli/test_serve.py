"""Output of `parlay serve`: more to a terminal than to a log."""

from __future__ import annotations

import io
import json
import sys
import time

import pytest

from dashboards.access.browser_sessions import Sessions
from orchestrator.cli import serve
from orchestrator.cli.output import printing_json
from orchestrator.service.driver_process import ExecutorKind


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def listening(monkeypatch):
    """`serve` with a service that only reports that it listens."""

    def serve_here(place, url, wanted, on_ready):
        place.folder.mkdir(parents=True, exist_ok=True)
        place.token.write_text("s3cret")
        on_ready(place.write_about(None, wanted.port, "process"))
        return []

    monkeypatch.setattr("orchestrator.service.server.serve", serve_here)


def said(monkeypatch, stream: io.StringIO, as_json: bool = False) -> str:
    monkeypatch.setattr(sys, "stdout", stream)
    with printing_json(as_json):
        serve.serve(port=7000, executor=ExecutorKind.PROCESS, max_in_flight=None, page=False, ledger=None)
    return stream.getvalue()


@pytest.mark.security("service")
def test_a_terminal_is_told_an_address_that_opens_the_pages(listening, monkeypatch):
    text = said(monkeypatch, Terminal())
    address = next(word for word in text.split() if word.startswith("http://127.0.0.1:7000/enter?key="))
    assert Sessions("s3cret", "page key", 7000, time.time).enter(address.partition("key=")[2]) is not None


@pytest.mark.security("service", "secrets")
def test_a_log_and_a_program_are_told_none(listening, monkeypatch):
    text = said(monkeypatch, io.StringIO())
    assert "key=" not in text
    assert "parlay serve --page prints an address" in text
    assert "key" not in json.loads(said(monkeypatch, Terminal(), as_json=True))
