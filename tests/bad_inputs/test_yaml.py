"""Lines 1 to 6 and 49: the syntax of a search file and of `--set`, as refused by the command."""

from __future__ import annotations

import pytest

from tests.bad_inputs.cli import SEARCH, Cli


@pytest.mark.bad_input(1)
def test_a_key_nobody_knows_is_answered_with_the_one_that_was_meant(cli: Cli):
    cli.write("{kind: local}", "{knd: local}")
    problem = cli.refused_run().about("launcher.knd")
    assert (problem["value"], problem["fix"], problem["line"]) == ("knd", "did you mean kind?", 10)


@pytest.mark.bad_input(2)
def test_a_key_that_stands_twice_is_reported_with_both_lines(cli: Cli):
    cli.write(more="name: other\n")
    problem = cli.refused_run().about("name")
    assert (problem["line"], problem["message"]) == (12, "given twice, first on line 2")


@pytest.mark.bad_input(3)
@pytest.mark.security("no_pickle")
def test_a_tag_makes_no_object(cli: Cli):
    cli.write("name: tiny", "name: !!python/object/apply:os.system ['touch made']")
    assert cli.refused_run().about("name")["value"]


@pytest.mark.bad_input(4, 5)
@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", 1, "anchor or alias"),
        (b"a: " + b"x" * 2**20, None, "larger than the limit of 1048576 bytes"),
        (b"name: " + b"[" * 100_000, 1, "nested more than 20 deep"),
        (SEARCH.replace("  tensor", "\ttensor"), 7, "a tab"),
        (SEARCH.encode("utf-16"), 1, "byte order mark"),
        (b"", 1, "empty"),
    ],
    ids=["aliases", "a mebibyte", "brackets", "tabs", "utf-16", "nothing"],
)
def test_what_is_not_plain_yaml_is_reported_with_its_line(cli: Cli, content, line, words):
    """One case; tests/search_spaces/schema/test_yaml_document.py has the whole table."""
    cli.write_bytes(content)
    error = cli.refused_run().error
    assert (error["file"], error["line"], words in error["message"]) == ("search.yaml", line, True)
    assert error["rule"]
    assert error["fix"]


@pytest.mark.bad_input(6)
def test_a_word_is_what_it_looks_like(cli: Cli):
    sets = {"tracking.enabled": "no", "global_batch_size": "08", "search.seed": "1e3"}
    refusal = cli.refused_run(*(f"{key}={text}" for key, text in sets.items()))
    assert [refusal.about(key)["value"] for key in sets] == ["no", "08", 1000.0]


@pytest.mark.bad_input(49)
@pytest.mark.parametrize("override", ["x", "a\x1b[31m=1", "search=["])
def test_a_change_in_a_wrong_form_is_told_how_it_is_written(cli: Cli, override):
    answer = cli.refused_run(override)
    problem = answer.about("search" if override == "search=[" else "--set")
    assert problem["value"] in (override, "[")
    assert "\x1b" not in problem["message"] + answer.words


@pytest.mark.bad_input(49)
def test_a_change_of_an_unknown_key_is_answered_with_the_one_that_was_meant(cli: Cli):
    problem = cli.refused_run("search.max_trails=3").about("search.max_trails")
    assert (problem["file"], problem["fix"]) == ("--set", "did you mean max_trials?")


@pytest.mark.bad_input(1)
def test_whatever_reads_a_search_file_refuses_it_alike(cli: Cli):
    cli.write(more="serch: 1\n")
    for verb in (["plan"], ["run"], ["run", "--dry-run"], ["submit"], ["selftest"], ["calibrate"]):
        assert cli.refused(*verb, "search.yaml").about("serch")["fix"] == "did you mean search?", verb


@pytest.mark.bad_input(49)
@pytest.mark.parametrize(
    ("words", "key", "usage"),
    [
        (["run", "search.yaml", "--sett", "a=1"], "--sett", "Usage: parlay run [OPTIONS] "),
        (["plan", "search.yaml", "--top", "x"], "--top", "Usage: parlay plan [OPTIONS] "),
    ],
)
def test_an_option_nobody_knows_or_of_a_wrong_type_is_reported_with_the_usage(cli: Cli, words, key, usage):
    cli.write()
    assert cli.refused(*words).about(key)["rule"].startswith(usage)
