"""Text of trials is untrusted: it is cut, masked and escaped before it is shown."""

from __future__ import annotations

import pytest

from dashboards.report.log_excerpts import Excerpts, format_excerpt
from tests.dashboards.report.searches import BASELINE, spec
from tests.dashboards.searches import SearchUnderTest
from trials.trial import FailureReason


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
