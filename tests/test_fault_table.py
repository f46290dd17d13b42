"""The table of faults in docs/lifecycle.md: true to the tests, and no fault forgotten."""

from __future__ import annotations

from tests.fault_table import PAGE, fault_tests, page_with, section
from tests.faults import FAULTS, WITHOUT_A_TEST

ADVICE = "python -m tests.fault_table --write"


def test_a_fault_stands_in_the_name_and_in_the_mark_of_its_test():
    wrong = [test for test in fault_tests() if test.marked != (test.named,) or test.named not in FAULTS]
    assert wrong == [], "name such a test test_fault_NN_... and mark it @pytest.mark.fault(NN)"


def test_every_fault_has_a_test_or_is_listed_as_missing_one():
    tested = {number for test in fault_tests() for number in test.marked}
    assert list(FAULTS) == list(range(1, 47))
    assert set(FAULTS) - tested <= WITHOUT_A_TEST, "a fault without a test: write one, or list it in WITHOUT_A_TEST"


def test_the_page_says_what_the_tests_say():
    page = PAGE.read_text(encoding="utf-8")
    assert page_with(page, section(fault_tests())) == page, ADVICE


def test_the_section_is_replaced_where_it_stands():
    page = "# A\n\none\n\n## Faults\n\nold\n\n## B\n\ntwo\n"
    assert page_with(page, "## Faults\n\nnew\n") == "# A\n\none\n\n## Faults\n\nnew\n\n## B\n\ntwo\n"
    assert page_with("# A\n\none\n", "## Faults\n\nnew\n") == "# A\n\none\n\n## Faults\n\nnew\n"
