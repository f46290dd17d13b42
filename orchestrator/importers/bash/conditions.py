"""Value of arithmetic expressions, and of the conditions of `[ ]` and `[[ ]]`, where the script decides them."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from orchestrator.importers.bash.values import Budget, doubt_of, names_in, text_of

if TYPE_CHECKING:
    from orchestrator.importers.bash.expansion import Expander
    from orchestrator.importers.bash.syntax import Node

NUMBER = re.compile(r"-?\d{1,18}")
_COMPARISONS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
_LARGEST_NUMBER = 2**63
_LARGEST_POWER = 64


def arithmetic(expression: str) -> int | None:
    """The value of an integer expression without variables; None for anything else."""
    try:
        return _evaluated(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _divide(a: int, b: int) -> int:
    """Division as in C: toward zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_OPERATIONS: dict[type[ast.AST], Callable[..., int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.Mod: lambda a, b: a - b * _divide(a, b),
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.USub: operator.neg,
}


def _evaluated(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    children = list(ast.iter_child_nodes(node))
    values = [_evaluated(child) for child in children if isinstance(child, ast.expr)]
    operations = [type(child) for child in children if not isinstance(child, ast.expr)]
    if len(operations) != 1 or operations[0] not in _OPERATIONS:
        raise ValueError("not an expression of whole numbers")
    if operations[0] in (ast.Pow, ast.LShift) and not 0 <= values[1] <= _LARGEST_POWER:
        raise ValueError("too large")
    value = int(_OPERATIONS[operations[0]](*values))
    if abs(value) >= _LARGEST_NUMBER:
        raise ValueError("too large")
    return value


def condition(test: Node, expander: Expander) -> bool | None:
    """The value of a `test_command`."""
    written = expander.source.written

    def operand(node: Node) -> str | None:
        """The text of an operand that is certain."""
        if node.type.endswith("_expression"):
            return None
        value = expander.value(node)
        expander.names_read.update(names_in(value))
        return None if doubt_of(value) else text_of(value)

    def truth(node: Node) -> bool | None:
        if node.type == "unary_expression":
            operation = written(node.children[0])
            text = operand(node.children[-1])
            return None if text is None or operation not in ("-n", "-z") else (text != "") == (operation == "-n")
        if node.type == "binary_expression" and len(node.children) == 3:
            return compared(node.children[0], written(node.children[1]), node.children[2])
        text = operand(node)
        return None if text is None else text != ""

    def compared(left: Node, operation: str, right: Node) -> bool | None:
        if operation in ("&&", "||"):
            values, decisive = [truth(left), truth(right)], operation == "||"
            return decisive if decisive in values else None if None in values else not decisive
        a, b = operand(left), operand(right)
        if a is None or b is None:
            return None
        if operation in ("=", "==", "!="):
            is_glob = test.children[0].type == "[[" and right.type in ("word", "extglob_pattern")
            return (matches(a, written(right), expander.budget) if is_glob else a == b) == (operation != "!=")
        sign = _COMPARISONS.get(operation)
        return None if sign is None or (value := arithmetic(f"({a}) {sign} ({b})")) is None else value != 0

    return truth(test.named_children[0]) if len(test.named_children) == 1 else None


def matches(text: str, pattern: str, budget: Budget) -> bool:
    """True if the text matches the glob, whose work is about their lengths multiplied."""
    budget.spend(1 + len(pattern) * (1 + len(text) // 64))
    return fnmatchcase(text, pattern)
