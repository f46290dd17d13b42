"""Value of the expressions of `$(( ))`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

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
