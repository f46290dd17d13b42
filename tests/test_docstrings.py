"""Docstrings begin with what a thing is or does: a noun or an imperative, no question word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

import pytest

from tests.sources import ROOT, modules, parsed

QUESTION_WORD = re.compile(
    r"`?(as|how|if|of|that|what|whatever|when|where|whether|which|who|whoever|whom|whose|why)\b", re.IGNORECASE
)
OTHERS = tuple(
    str(path.relative_to(ROOT)) for folder in ("benchmarks", "tests") for path in sorted((ROOT / folder).rglob("*.py"))
)


def questions(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """First line of every docstring, also of a constant or a field, that begins with a question word."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            first_line = node.value.value.partition("\n")[0]
            if QUESTION_WORD.match(first_line):
                yield first_line


def test_no_docstring_begins_with_a_question_word():
    found = [f"{module}: {line}" for module in (*modules(), *OTHERS) for line in questions(parsed(module))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('"""Whether it holds."""', 1),
        ('def f():\n    "Of all trials."', 1),
        ('class C:\n    """`what` of a case, for people."""', 1),
        ('LIMIT_S = 5.0\n"""Of one call."""', 1),
        ('async def f():\n    """True if it holds."""', 0),
        ('"What is no docstring" + ""', 0),
        ("def f(): ...", 0),
    ],
)
def test_each_kind_of_docstring_is_read(source, count):
    assert len(list(questions(ast.walk(ast.parse(source))))) == count
