"""docs/bad_inputs.md: true to the tests, and no line of it without a test."""

from __future__ import annotations

import pytest

from tests.bad_input_lines import BAD_INPUTS, SECURITY
from tests.bad_input_table import PAGE, lines_of, page
from tests.sources import all_tests

ADVICE = "python -m tests.bad_input_table --write"
LINES = BAD_INPUTS.keys() | SECURITY.keys()


@pytest.mark.slow
def test_marks_are_lines_that_there_are():
    assert [test for test in all_tests() if not set(lines_of(test)) <= LINES] == []


def test_every_line_has_a_test_or_waits_for_what_is_not_built():
    tested = {line for test in all_tests() for line in lines_of(test)}
    waiting = {key for key, line in (*BAD_INPUTS.items(), *SECURITY.items()) if line.later}
    assert list(BAD_INPUTS) == list(range(1, len(BAD_INPUTS) + 1))
    assert LINES - tested - waiting == set(), "a line without a test"


def test_the_page_says_what_the_tests_say():
    assert PAGE.read_text(encoding="utf-8") == page(all_tests()), ADVICE
