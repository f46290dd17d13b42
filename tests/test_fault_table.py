"""The table of faults in docs/lifecycle.md: true to the tests, and no fault forgotten."""

from __future__ import annotations

import pytest

from tests.fault_table import PAGE, fault_tests, page_with, section
from tests.faults import FAULTS

pytestmark = pytest.mark.timeout(60)  # every file of tests is parsed
ADVICE = "python -m tests.fault_table --write"


def test_a_fault_stands_in_the_name_and_in_the_mark_of_its_test():
    named = [test for test in fault_tests() if len(test.marked) < 2]
    wrong = [test for test in named if test.marked != (test.named,) or test.named not in FAULTS]
    assert wrong == [], "name such a test test_fault_NN_... and mark it @pytest.mark.fault(NN)"


def test_a_story_of_several_faults_is_named_after_none():
    stories = [test for test in fault_tests() if len(test.marked) > 1]
    assert [test for test in stories if test.named is not None or not FAULTS.keys() >= set(test.marked)] == []


def test_every_fault_has_a_test_of_its_own():
    tested = {test.named for test in fault_tests()}
    assert list(FAULTS) == list(range(1, 48))
    assert set(FAULTS) - tested == set(), "a fault without a test"


def test_the_page_says_what_the_tests_say():
    page = PAGE.read_text(encoding="utf-8")
    assert page_with(page, section(fault_tests())) == page, ADVICE


def test_the_section_is_replaced_where_it_stands():
    page = "# A\n\none\n\n## Faults\n\nold\n\n## B\n\ntwo\n"
    assert page_with(page, "## Faults\n\nnew\n") == "# A\n\none\n\n## Faults\n\nnew\n\n## B\n\ntwo\n"
    assert page_with("# A\n\none\n", "## Faults\n\nnew\n") == "# A\n\none\n\n## Faults\n\nnew\n"
