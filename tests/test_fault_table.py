"""Tables of faults, refused inputs and rules of security: true to the tests, and no line forgotten."""

from __future__ import annotations

import pytest

from tests.fault_table import MARKS, PAGES, brought_up_to_date, lines_of
from tests.sources import all_tests

TEXTS = [page.read_text(encoding="utf-8") for page in PAGES]
LINES = {mark: lines for text in TEXTS for mark, lines in lines_of(text).items()}


@pytest.mark.parametrize(("mark", "least"), [("fault", 56), ("bad_input", 54), ("security", 14)])
def test_every_line_has_a_test_and_every_mark_a_line(mark, least):
    marked = {str(key) for test in all_tests() for key in test.marked(mark)}
    assert marked == LINES[mark].keys()
    assert len(LINES[mark]) >= least
    assert mark == "security" or list(LINES[mark]) == [str(number) for number in range(1, len(LINES[mark]) + 1)]


def test_every_fault_has_a_test_of_its_own_and_the_pages_say_what_the_tests_say():
    marks = [arguments for test in all_tests() for name, arguments in test.marks if name == "fault"]
    assert LINES["fault"].keys() - {str(arguments[0]) for arguments in marks if len(arguments) == 1} == set()
    assert LINES.keys() == set(MARKS.values())
    assert [brought_up_to_date(text) for text in TEXTS] == TEXTS, "python -m tests.fault_table --write"
