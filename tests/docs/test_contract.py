"""What docs/contract.md lists is what there is: verbs, options, states, reasons, rules, verdicts, exit codes."""

from __future__ import annotations

import ast
import re
from enum import Enum

import pytest
import typer

from dashboards.trial_text import FLAG_DESCRIPTIONS
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.verbs import app
from orchestrator.comparison.speed_ratio import ReplayVerdict
from search_spaces.rules.layout_rules import LAYOUT_RULES
from tests.docs.console import ROOT
from trials.ledger.events import EndReason, EventKind, SearchState
from trials.trial import FailureReason, Flag, TrialState

PAGE = (ROOT / "docs" / "contract.md").read_text()
VERBS = typer.main.get_command(app).commands


def row(title: str) -> str:
    (found,) = re.findall(rf"^\| {re.escape(title)} \| (.*) \|$", PAGE, re.MULTILINE)
    return found


def names(text: str) -> list[str]:
    """Those between backticks, in their order; what is said of one stands in brackets or between the backticks."""
    spans = re.findall(r"`([^`]*)`", re.sub(r"\([^()]*\)", "", text))
    return [name for span in spans for name in re.findall(r"[a-z][\w-]*", span)]


def values(*enums: type[Enum]) -> list[str]:
    return [member.value for enum in enums for member in enum]


def test_verbs():
    listed = row("verbs").partition(";")[0].split()
    assert len(listed) == len(set(listed))
    assert set(listed) == set(VERBS)


def test_options():
    verbs = [part for verb in VERBS.values() for part in (verb, *getattr(verb, "commands", {}).values())]
    there = {option for verb in verbs for parameter in verb.params for option in parameter.opts}
    assert not {option for option in there if option.startswith("--") and option not in PAGE} - {"--help"}


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("trial and attempt states", values(TrialState)),
        ("reasons", values(FailureReason)),
        ("search states, end_reason", values(SearchState, EndReason)),
    ],
)
def test_states_and_reasons(title, expected):
    listed = [name for name in names(row(title)) if name not in ("job_id", "unknown_since")]
    assert listed == expected


def test_flags():
    assert names(row("flags")) == list(FLAG_DESCRIPTIONS) == values(Flag)


@pytest.mark.slow
def test_each_flag_is_set_by_who_writes_outcomes():
    writers = [
        ROOT / "trials" / "attempt_result.py",
        *(p for d in ("train", "external") for p in (ROOT / "trials" / d).rglob("*.py")),
    ]
    assert {flag for path in writers for flag in flags_set_in(path.read_text())} == {flag.name for flag in Flag}


def flags_set_in(source: str) -> set[str]:
    """The names of the flags in it, but for those that something is only compared with."""
    tree = ast.parse(source)
    compared = {node for compare in ast.walk(tree) if isinstance(compare, ast.Compare) for node in ast.walk(compare)}
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node not in compared)
    return {node.attr for node in found if isinstance(node.value, ast.Name) and node.value.id == "Flag"}


def test_kinds_of_events():
    listed = names(row("journal.jsonl").partition("`kind`:")[2])
    assert [name for name in listed if name not in ("restart", "node_hours")] == values(EventKind)


def test_rules():
    assert names(row("rules (rejection ids)").partition(",")[0]) == [rule.code for rule in LAYOUT_RULES]


def test_verdicts_and_exit_codes():
    assert "|".join(values(ReplayVerdict)).replace("|", r"\|") in PAGE
    assert [int(code) for code in re.findall(r"(?:^| · )(\d+) ", row("exit codes"))] == values(ExitCode)
