"""Validation of a section: pydantic's findings with our rules and fixes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from search_spaces.errors import InputError, Problem
from search_spaces.schema import validation
from search_spaces.schema.validation import MAX_PROBLEMS, Section, validate
from search_spaces.schema.yaml_document import parse_document


class Ship(Section):
    """A section with a rule that has no translation."""

    call_sign: str = Field(default="abc", pattern="^[a-z]{2,3}$")
    rig: Literal["sloop", "ketch"] = "sloop"


def the_problem(text: str) -> Problem:
    with pytest.raises(InputError) as caught:
        validate(Ship, parse_document(text.encode(), "ship.yaml", Path()))
    (problem,) = caught.value.problems
    return problem


def test_a_rule_whose_words_hold_braces_is_reported_as_it_is():
    problem = the_problem("call_sign: abcd\n")
    assert (problem.key, problem.value, problem.file, problem.line) == ("call_sign", "abcd", "ship.yaml", 1)
    assert "'^[a-z]{2,3}$'" in problem.rule
    assert problem.fix


@pytest.mark.bad_input(52)
def test_of_very_many_mistakes_the_first_are_told_and_the_others_counted(monkeypatch):
    looked_up, suggestion = [], validation._suggestion
    monkeypatch.setattr(validation, "_suggestion", lambda *words: (looked_up.append(words), suggestion(*words))[1])
    text = "".join(f"key{n}: 1\n" for n in range(5000)) + "rig: 3\n"
    with pytest.raises(InputError) as caught:
        validate(Ship, parse_document(text.encode(), "ship.yaml", Path()))
    *told, last = caught.value.problems
    assert [problem.key for problem in told] == [f"key{n}" for n in range(MAX_PROBLEMS)]
    assert last.message == f"{5001 - MAX_PROBLEMS} more mistakes"
    assert last.fix
    assert len(looked_up) == MAX_PROBLEMS


@pytest.mark.parametrize(("rig", "fix"), [("sloops", "did you mean sloop?"), ("barque", "write one of these")])
def test_a_word_that_is_none_of_the_choices_has_a_fix_in_any_case(rig, fix):
    problem = the_problem(f"rig: {rig}\n")
    assert (problem.rule, problem.fix) == ("one of sloop, ketch", fix)
