"""The table of faults in docs/lifecycle.md: true to the tests, and no fault forgotten."""

from __future__ import annotations

import re

from tests.fault_table import PAGE, page_with, section
from tests.faults import FAULTS
from tests.sources import all_tests

ADVICE = "python -m tests.fault_table --write"


def test_marks_are_faults_that_there_are():
    assert [test for test in all_tests() if not set(test.marked("fault")) <= FAULTS.keys()] == []


def test_every_fault_has_a_test_of_its_own():
    marks = [test.marked("fault") for test in all_tests()]
    assert list(FAULTS) == list(range(1, len(FAULTS) + 1))
    assert FAULTS.keys() - {numbers[0] for numbers in marks if len(numbers) == 1} == set(), "a fault without a test"


def test_no_name_carries_the_number_of_a_fault_or_of_a_line():
    numbered = [test for test in all_tests() if re.match(r"test_(faults?|rows?|lines?)_[0-9]", test.name)]
    assert numbered == [], "the mark says it: @pytest.mark.fault(N), @pytest.mark.bad_input(N)"


def test_the_page_says_what_the_tests_say():
    page = PAGE.read_text(encoding="utf-8")
    assert page_with(page, section(all_tests())) == page, ADVICE


def test_the_section_is_replaced_where_it_stands():
    page = "# A\n\none\n\n## Faults\n\nold\n\n## B\n\ntwo\n"
    assert page_with(page, "## Faults\n\nnew\n") == "# A\n\none\n\n## Faults\n\nnew\n\n## B\n\ntwo\n"
    assert page_with("# A\n\none\n", "## Faults\n\nnew\n") == "# A\n\none\n\n## Faults\n\nnew\n"
