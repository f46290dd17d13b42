"""Lines 1 to 6 and 49: what a search file and `--set` may look like, as the command says it."""

from __future__ import annotations

import pytest

from tests.bad_inputs.desk import SEARCH, Desk

HUGE = b"a: " + b"x" * 2**20


@pytest.mark.bad_input(1)
@pytest.mark.parametrize(
    ("old", "new", "key", "meant"),
    [
        ("  tensor_parallel", "  tensor_paralel", "space.tensor_paralel", "tensor_parallel"),
        ("launcher: {kind: local}", "lancher: {kind: local}", "lancher", "launcher"),
        ("{kind: local}", "{knd: local}", "launcher.knd", "kind"),
    ],
)
def test_a_key_nobody_knows_is_answered_with_the_one_that_was_meant(desk: Desk, old, new, key, meant):
    desk.write(old, new)
    problem = desk.refused_run().about(key)
    assert (problem["value"], problem["fix"]) == (key.split(".")[-1], f"did you mean {meant}?")
    assert problem["line"]


@pytest.mark.bad_input(2)
def test_a_key_that_stands_twice_is_told_with_both_lines(desk: Desk):
    desk.write(more="name: other\n")
    problem = desk.refused_run().about("name")
    assert (problem["line"], problem["message"]) == (12, "given twice, first on line 2")


@pytest.mark.bad_input(3)
@pytest.mark.security("no_pickle")
@pytest.mark.parametrize("value", ["!!python/object/apply:os.system ['touch made']", "!!python/name:os.system", "!x y"])
def test_a_tag_makes_no_object(desk: Desk, value):
    desk.write("name: tiny", f"name: {value}")
    assert desk.refused_run().about("name")["value"]


@pytest.mark.bad_input(4)
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "anchor or alias"),
        (HUGE, "larger than 1048576 bytes"),
        (b"name: " + b"[" * 100_000, "nested more than 20 deep"),
    ],
)
def test_what_would_cost_memory_is_refused_before_it_does(desk: Desk, content, words):
    desk.write_bytes(content)
    error = desk.refused_run().error
    assert words in error["message"]
    assert (error["file"], bool(error["rule"] and error["fix"])) == ("search.yaml", True)


@pytest.mark.bad_input(5)
@pytest.mark.parametrize(
    ("content", "line"),
    [
        (SEARCH.replace("  tensor", "\ttensor"), 7),
        (b"\xef\xbb\xbf" + SEARCH.encode(), 1),
        (SEARCH.encode("utf-16"), 1),
        (SEARCH.replace("tiny", "t\u00efny").encode("latin-1"), 2),
        (b"", 1),
        (b"- a\n", 1),
        (b"name: [\n", 2),
    ],
)
def test_what_is_not_plain_yaml_is_told_with_its_line(desk: Desk, content, line):
    desk.write_bytes(content)
    error = desk.refused_run().error
    assert (error["file"], error["line"]) == ("search.yaml", line)
    assert error["rule"]
    assert error["fix"]


@pytest.mark.bad_input(6)
@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("tracking.enabled", "no", "no"),
        ("tracking.enabled", "on", "on"),
        ("global_batch_size", "08", "08"),
        ("global_batch_size", "8e0", 8.0),
        ("measure.time_limit", "12:30:00:00", "12:30:00:00"),
    ],
)
def test_a_word_is_what_it_looks_like(desk: Desk, key, text, value):
    assert desk.refused_run(f"{key}={text}").about(key)["value"] == value


@pytest.mark.bad_input(49)
@pytest.mark.parametrize("override", ["x", "=", "a..b=1", "a b=3", "a\x1b[31m=1", "search=["])
def test_a_change_in_a_wrong_form_is_told_how_it_is_written(desk: Desk, override):
    answer = desk.refused_run(override)
    problem = answer.about("search" if override == "search=[" else "--set")
    assert problem["value"] in (override, "[")
    assert "\x1b" not in problem["message"] + answer.words


@pytest.mark.bad_input(49)
def test_a_change_of_an_unknown_key_is_answered_with_the_one_that_was_meant(desk: Desk):
    problem = desk.refused_run("search.max_trails=3").about("search.max_trails")
    assert (problem["file"], problem["fix"]) == ("--set", "did you mean max_trials?")


@pytest.mark.bad_input(1)
@pytest.mark.parametrize(
    "verb", [("plan",), ("run",), ("run", "--dry-run"), ("submit",), ("selftest",), ("calibrate",)]
)
def test_whatever_reads_a_search_file_refuses_it_alike(desk: Desk, verb):
    desk.write(more="serch: 1\n")
    assert desk.refused(*verb, "search.yaml").about("serch")["fix"] == "did you mean search?"


@pytest.mark.bad_input(49)
@pytest.mark.parametrize(
    ("words", "key", "usage"),
    [
        (["run", "search.yaml", "--sett", "a=1"], "--sett", "Usage: parlay run [OPTIONS] "),
        (["plan", "search.yaml", "--top", "x"], "--top", "Usage: parlay plan [OPTIONS] "),
    ],
)
def test_an_option_nobody_knows_or_of_a_wrong_type_is_told_with_the_usage(desk: Desk, words, key, usage):
    desk.write()
    assert desk.refused(*words).about(key)["rule"].startswith(usage)
