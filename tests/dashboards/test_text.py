"""Text of trials and of others: escaped, masked, cut, and a trial's outcome in words."""

from __future__ import annotations

import io

import pytest

from dashboards.report.log_excerpts import Excerpts, format_excerpt
from dashboards.text import command_line, cut_word, lines_for, mask_credentials, one_line, printable
from dashboards.trial_text import (
    describe_fullest_rank,
    describe_slowest_rank,
    describe_verification,
    flag_lines,
    format_short,
)
from search_spaces.layouts.layout import Layout
from tests.dashboards.report.searches import BASELINE, spec
from tests.dashboards.searches import SearchUnderTest
from tests.kit import FULLEST, SLOWEST
from trials.trial import FailureReason


@pytest.mark.bad_input(50)
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe ± 1", "größe ± 1"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b2J", r"\x9b2J"),
        ("abc\u202edef", r"abc\u202edef"),
        ("a\u2028b", r"a\u2028b"),
    ],
)
def test_what_could_steer_a_terminal_is_spelled_out(text, shown):
    assert printable(text) == shown


def test_a_password_in_an_address_is_not_shown_and_a_long_word_is_cut_in_its_middle():
    assert mask_credentials("postgresql://me:secret@db/mlflow") == "postgresql://***@db/mlflow"
    assert mask_credentials("http://host:5000/a@b") == "http://host:5000/a@b"
    assert cut_word("XLA_FLAGS=--one --two --three", 15) == "XLA_FLA…--three"
    assert cut_word("short", 15) == "short"


def test_on_a_terminal_long_lines_are_broken_between_words_but_a_command_can_be_copied(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    terminal, words = io.StringIO(), "torchrun --nproc-per-node 4 train.py --tensor-parallel 8"
    terminal.isatty = lambda: True
    assert lines_for(terminal, f"train with it: {words}\n{command_line(words)}").splitlines() == [
        "train with it: torchrun --nproc-per-node",
        "  4 train.py --tensor-parallel 8",
        f"    {words}",
    ]


@pytest.mark.security("secrets")
def test_an_error_is_reported_in_one_line_without_secrets():
    error = ConnectionError("no answer from http://me:secret@host\x1b[1m\nand a long story")
    assert one_line(error) == r"ConnectionError: no answer from http://***@host\x1b[1m"
    assert one_line(KeyError()) == "KeyError: "


def test_a_flag_is_reported_once_with_the_measurements_that_have_it():
    search = SearchUnderTest()
    for number in range(8):
        search.measure(search.start(Layout(micro_batch_size=number + 1)), 5.0, ("extrapolated",))
    search.measure(search.start(Layout()), 5.0, ("time_limit", "extrapolated"))
    first, second = flag_lines(search.record.trials)
    assert first.startswith("! t0001, t0002, t0003, t0004, t0005, t0006 and 3 more extrapolated: step time ")
    assert second.startswith("! t0009 time_limit: ")
    assert flag_lines(search.records[3].trials) == []


def test_the_slowest_rank_is_named_with_its_node():
    words = "slowest rank: 3 on n2 computes 0.42 s (p95 0.45 s) of a step, 1.40 times as long as ranks with equal work"
    assert describe_slowest_rank(SLOWEST) == words
    assert describe_slowest_rank({}) is None
    search = SearchUnderTest()
    search.measure(search.start(Layout()), 5.0, ("straggler",), slowest_rank=SLOWEST)
    assert flag_lines(search.record.trials)[1] == f"! t0001 {words}"


def test_the_fullest_rank_is_described_by_what_is_known_of_it():
    limited = describe_fullest_rank(FULLEST | {"limit_gib": 62.0, "free_gib": 1.0, "alloc_retries": 2})
    assert "66 of 80 GiB used, 1 GiB free (measure." in limited
    assert "; 2 allocations failed" in limited
    assert describe_fullest_rank({"rank": 0, "host": "n1", "used_gib": 0.25}) == "fullest rank: 0 on n1, 0.25 GiB used"
    assert describe_fullest_rank({}) is None


def test_values_that_no_test_trained_are_named():
    assert describe_verification({"level": "run", "values": []}).endswith(
        "trained all axis values of the layout with its engine"
    )
    by_rule = describe_verification({"level": "by rule", "values": ["offload optimizer", "bucket_mib 4"]})
    assert by_rule.endswith("Parlay's rules allow, but no test of Parlay trained: offload optimizer, bucket_mib 4")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\N{EN DASH}"),
        (999.4, "999"),
        (999.6, "1.00k"),
        (1.5e6, "1.50M"),
        (0, "0"),
    ],
)
def test_short_numbers_have_three_significant_digits(value: float | None, text: str):
    assert format_short(value) == text


def test_the_end_of_a_long_text_is_kept_and_all_excerpts_together_stay_small():
    shown = format_excerpt("begin\n" + "x" * 5_000_000 + "\nRuntimeError: the end", 200)
    assert shown.startswith("...")
    assert shown.endswith("RuntimeError: the end")
    assert len(shown) == 203
    search = SearchUnderTest(spec())
    for _ in range(3):
        search.fail(search.start(BASELINE), FailureReason.SCRIPT_ERROR, excerpt="x" * 10_000)
    few, many = Excerpts.of(search.record.trials), Excerpts.of(search.record.trials * 400)
    assert few.longest == 2000
    assert many.longest * 1200 <= 400_000


def test_colours_go_and_other_control_characters_are_spelled_out():
    text = "\x1b[31mred\x1b[0m\x00 \u202egnol\r\nnext"
    assert format_excerpt(text, 200) == "red\\x00 \\u202egnol\nnext"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("HF_TOKEN=hf_abcdefgh end", "HF_TOKEN=<hidden> end"),
        ('{"password": "hunter22"}', '{"password": <hidden>}'),
        ("git clone https://me:pass@host/x", "git clone https://***@host/x"),
        ("Authorization: Bearer abcdefgh end", "Authorization: Bearer <hidden> end"),
        ("{'authorization': 'Basic bWU6cGFzcw=='}", "{'authorization': <hidden>}"),
        ("tokens_per_sec 1200, 4096 tokens", "tokens_per_sec 1200, 4096 tokens"),
    ],
)
def test_what_may_be_a_secret_is_masked(text, shown):
    assert format_excerpt(text, 200) == shown
