"""Validation of a section: pydantic's findings with our rules and fixes, and durations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BeforeValidator, Field, TypeAdapter

from search_spaces.errors import InputError, Problem
from search_spaces.schema import validation
from search_spaces.schema.durations import Duration, parse_duration_s
from search_spaces.schema.validation import MAX_PROBLEMS, Section, validate
from search_spaces.schema.yaml_document import parse_document


class Hold(Section):
    cargo: int = 0


class Ship(Section):
    """A section with a rule that has no translation, and one inside that is read in a way of its own."""

    draught: float = 1.0
    call_sign: str = Field(default="abc", pattern="^[a-z]{2,3}$")
    rig: Literal["sloop", "ketch"] = "sloop"
    hold: Annotated[Hold | None, BeforeValidator(lambda given: given)] | None = None


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


def test_an_unknown_key_is_compared_with_those_of_its_own_section():
    problem = the_problem("hold: {cargos: 1}\n")
    assert (problem.key, problem.rule, problem.fix) == ("hold.cargos", "near keys: cargo", "did you mean cargo?")


def test_a_percentage_is_told_as_the_number_that_it_is():
    assert the_problem("draught: 5%\n").fix == "write 0.05"


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


@pytest.mark.bad_input(6)
@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        *((10, 600), ("10", 600), ("10:30", 630), ("90:00", 5400), ("01:30:00", 5400), ("12:30:00", 45000)),
        *(("1-12", 129600), ("1-12:30", 131400), ("1-12:30:15", 131415), ("90s", 90), ("0.5s", 0.5), ("10m", 600)),
        *(("2h", 7200), ("1d", 86400), ("08", 480)),
    ],
)
def test_durations_are_read_in_slurms_grammar_or_with_a_unit(given, seconds):
    assert parse_duration_s(given) == seconds


@pytest.mark.bad_input(20)
@pytest.mark.parametrize(
    "given",
    [
        *("", "soon", "1h30m", "10:99", "1-24", "1-12:60", "1:2:3:4", "-5", "1_000", "٣m", "10 minutes", "1e3s", "inf"),
        *(0, -1, 1.5, True, None, [], "0", "0s", "367d", 10**30, "999999999-00", "9" * 400),
    ],
)
def test_a_duration_in_another_form_is_refused_with_the_grammar(given):
    with pytest.raises(InputError, match=r"duration is") as caught:
        parse_duration_s(given)
    assert caught.value.problems[0].fix == "for example 10m, 2h or 01:30:00"


@pytest.mark.parametrize("given", ["367d", "9999999999s", "9999999999-00", "99999999999", 10**15])
def test_a_duration_over_a_year_is_refused_with_the_bound(given):
    with pytest.raises(InputError) as caught:
        parse_duration_s(given)
    assert caught.value.problems[0].rule == "a duration is longer than 0 and at most 366 days"


@pytest.mark.parametrize("seconds", [0.5, 90, 5400.25, 31536000])
def test_a_duration_written_down_is_read_back_the_same(seconds: float):
    adapter = TypeAdapter(Duration)
    assert parse_duration_s(adapter.dump_python(seconds)) == seconds
