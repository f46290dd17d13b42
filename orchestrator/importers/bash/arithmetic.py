"""Value of an integer expression of bash."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

_LARGEST_NUMBER = 2**63
_LONGEST = 1000
_TERNARY = re.compile(r"([^?:]+)\?([^?:]+):([^?:]+)")


def arithmetic(expression: str) -> int | None:
    """The value of an integer expression without variables; None for anything else."""
    if len(expression) > _LONGEST:
        return None
    if found := _TERNARY.fullmatch(expression):
        condition = arithmetic(found[1])
        return None if condition is None else arithmetic(found[2] if condition else found[3])
    text = re.sub(r"!(?!=)", " not ", expression.replace("&&", " and ").replace("||", " or "))
    try:
        return _evaluated(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _divide(a: int, b: int) -> int:
    """Division as in C: toward zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _power(a: int, b: int) -> int:
    if not 0 <= b <= 64:
        raise ValueError("too large")
    return int(a**b)


def _shift(shifted: Callable[[int, int], int]) -> Callable[[int, int], int]:
    def shift(a: int, b: int) -> int:
        if not 0 <= b <= 64:
            raise ValueError("too large")
        return shifted(a, b)

    return shift


_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.Mod: lambda a, b: a - b * _divide(a, b),
    ast.Pow: _power,
    ast.LShift: _shift(operator.lshift),
    ast.RShift: _shift(operator.rshift),
}
_COMPARISONS = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_UNARY: dict[type[ast.unaryop], Callable[[int], int]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}


def _evaluated(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        value = node.value
    elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        value = _BINARY[type(node.op)](_evaluated(node.left), _evaluated(node.right))
    elif isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        value = int(_UNARY[type(node.op)](_evaluated(node.operand)))
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        value = int(_COMPARISONS[type(node.ops[0])](_evaluated(node.left), _evaluated(node.comparators[0])))
    elif isinstance(node, ast.BoolOp):
        holds = all if isinstance(node.op, ast.And) else any
        value = int(holds([_evaluated(operand) for operand in node.values]))
    else:
        raise ValueError("not an expression of whole numbers")
    if not -_LARGEST_NUMBER <= value < _LARGEST_NUMBER:
        raise ValueError("too large")
    return value
