"""Line 50: no text of a record, a file or an error can control the terminal that shows it."""

from __future__ import annotations

import io
import sys
import zlib
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from dashboards.terminal.live_table import console_for
from orchestrator.cli import main
from tests.bad_inputs.cli import Cli

pytestmark = pytest.mark.bad_input(50)

CLIPBOARD, CLEAR, TURNED = "\x1b]52;c;aGk=\x07", "\x1b[2J", "\u202e"
STEERING = f"{CLIPBOARD}{CLEAR}\x9b2J{TURNED}\u2028"
SPELLED = r"\u001b]52;c;aGk=\u0007\u001b[2J\u009b2J\u202e\u2028"
"""The same, as encoded in JSON."""


def with_steering_texts(journal: Path) -> None:
    """Put control sequences into the journal, as the search's detail and in every trial's excerpt."""
    lines = []
    for line in journal.read_text().splitlines():
        body = line.partition(',"crc32":')[0]
        body = body.replace('"detail":null', f'"detail":"{SPELLED} it said"')
        body = body.replace('"excerpt":"', f'"excerpt":"{SPELLED} it wrote ')
        lines.append(f'{body},"crc32":"{zlib.crc32(body.encode()):08x}"}}\n')
    journal.write_text("".join(lines))


def is_harmless(text: str) -> bool:
    return not any(sign in text for sign in ("\x1b]52", "\x07", CLEAR, "\x9b", TURNED, "\u2028"))


@pytest.mark.slow
def test_texts_of_the_record_are_shown_with_their_controls_spelled_out(cli: Cli, ended: Path):
    with_steering_texts(ended / "journal.jsonl")
    folder = str(ended)
    commands = [[verb, folder] for verb in ("status", "watch", "best", "compare", "report")]
    commands[3].append(folder)
    for words in [*commands, ["logs", folder, "t0002"], ["status", folder, "--json"]]:
        assert main.main(words) == 0, words
        said = cli.capsys.readouterr()
        assert is_harmless(said.out + said.err), words
        if words[0] in ("status", "logs"):
            assert "]52;c;aGk=" in said.out, "it is there, spelled out"


def test_the_traceback_of_a_bug_is_spelled_out(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> None:
        raise RuntimeError(STEERING)

    monkeypatch.setattr(main, "_command", broken)
    assert main.main(["status"]) == 1
    said = cli.capsys.readouterr().err
    assert "Traceback" in said
    assert is_harmless(said)


def test_nothing_that_is_printed_on_a_console_steers_it():
    stream = io.StringIO()
    console = console_for(stream)
    table = Table("heading")
    table.add_row(Text(STEERING))
    table.add_row(STEERING)
    console.print(table, Text(STEERING), STEERING)
    assert is_harmless(stream.getvalue())
    assert stream.getvalue().count("]52;c;aGk=") == 4
    assert len(stream.getvalue().splitlines()) > 5, "line breaks stay"


def test_a_table_on_a_terminal_is_spelled_out_and_in_a_pipe_as_it_is(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    from orchestrator.cli.output import print_table

    for is_terminal in (True, False):
        monkeypatch.setattr(sys.stdout, "isatty", lambda is_terminal=is_terminal: is_terminal)
        print_table(f"a,b\r\n1,{STEERING}\r\n")
        assert is_harmless(cli.capsys.readouterr().out) is is_terminal
