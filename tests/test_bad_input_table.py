"""docs/bad_inputs.md: true to the tests, and no line of it without a test."""

from __future__ import annotations

import pytest

from tests.bad_input_lines import BAD_INPUTS, SECURITY
from tests.bad_input_table import PAGE, marked_tests, page

pytestmark = pytest.mark.timeout(60)  # every file of tests is parsed

ADVICE = "python -m tests.bad_input_table --write"


def test_marks_are_lines_that_there_are_and_those_of_a_tests_name_are_among_its_marks():
    tests = marked_tests()
    assert [test for test in tests if not BAD_INPUTS.keys() | SECURITY.keys() >= set(test.lines)] == []
    assert [test for test in tests if not set(test.lines) >= set(test.named)] == [], "mark it @pytest.mark.bad_input(N)"


def test_every_line_has_a_test_or_waits_for_what_is_not_built():
    tested = {line for test in marked_tests() for line in test.lines}
    waiting = {key for key, line in (*BAD_INPUTS.items(), *SECURITY.items()) if line.later}
    assert list(BAD_INPUTS) == list(range(1, len(BAD_INPUTS) + 1))
    assert (BAD_INPUTS.keys() | SECURITY.keys()) - tested - waiting == set(), "a line without a test"


def test_the_page_says_what_the_tests_say():
    assert PAGE.read_text(encoding="utf-8") == page(marked_tests()), ADVICE
