"""Selection of mutants, each of which is one change of one function."""

from __future__ import annotations

import ast
from itertools import groupby

import pytest

from tests.mutations import ROOMS, ROOT, Room, drawn_mutants, mutants_of

SOURCE = """\
class Box:
    def fits(self, size):
        if size < self.limit and not self.full:
            self.note(f"{size + 1} fits")
            return True
        return [other for other in self.others if other.limit]


def most(values):
    return max(values) - 1
"""


@pytest.fixture
def room(tmp_path):
    (tmp_path / "box.py").write_text(SOURCE)
    return Room("box", 3, ("*.py",), ())


def test_every_operator_changes_what_it_is_named_after(room, tmp_path):
    found = {(m.function, m.operator, m.place): (m.before, m.after) for m in mutants_of(room, tmp_path)}
    assert found == {
        ("Box.fits", "compare", 0): ("size < self.limit", "(size <= self.limit)"),
        ("Box.fits", "connect", 0): (
            "size < self.limit and not self.full",
            "(size < self.limit or not self.full)",
        ),
        ("Box.fits", "negate", 0): (
            "size < self.limit and not self.full",
            "(not (size < self.limit and (not self.full)))",
        ),
        ("Box.fits", "forget", 0): ('self.note(f"{size + 1} fits")', "pass"),
        ("Box.fits", "flip", 0): ("True", "False"),
        ("Box.fits", "return", 0): ("return True", "return None"),
        ("Box.fits", "return", 1): ("return [other for other in self.others if other.limit]", "return None"),
        ("Box.fits", "filter", 0): ("other.limit", "True"),
        ("most", "extreme", 0): ("max", "min"),
        ("most", "compute", 0): ("max(values) - 1", "(max(values) + 1)"),
        ("most", "number", 0): ("1", "2"),
        ("most", "return", 0): ("return max(values) - 1", "return None"),
    }


@pytest.mark.nightly
@pytest.mark.slow
def test_a_draw_has_each_rooms_number_of_mutants_each_another_and_each_a_program():
    mutants = drawn_mutants("seed")
    assert len({mutant.name for mutant in mutants}) == len(mutants) == sum(room.mutants for room in ROOMS)
    for file, of_file in groupby(sorted(mutants, key=lambda m: m.file), key=lambda m: m.file):
        source = (ROOT / file).read_bytes()
        for mutant in of_file:
            changed = ast.parse(mutant.applied(source))
            assert ast.dump(changed) != ast.dump(ast.parse(source)), mutant.name
