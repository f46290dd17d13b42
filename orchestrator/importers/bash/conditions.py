"""Value of arithmetic expressions, and of the conditions of `[ ]` and `[[ ]]`, where the script decides them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestrator.importers.bash.values import doubt_of, names_in, text_of

if TYPE_CHECKING:
    from orchestrator.importers.bash.expansion import Expander
    from orchestrator.importers.bash.syntax import Node

_COMPARISONS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
_LARGEST_NUMBER = 2**63
_LARGEST_POWER = 64
_LONGEST = 1000


def arithmetic(expression: str) -> int | None:
    """The value of an integer expression without variables; None for anything else."""
    if len(expression) > _LONGEST:
        return None
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
    ast.RShift: operator.rshift,
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
    if operations[0] in (ast.Pow, ast.LShift, ast.RShift) and not 0 <= values[1] <= _LARGEST_POWER:
        raise ValueError("too large")
    value = int(_OPERATIONS[operations[0]](*values))
    if abs(value) >= _LARGEST_NUMBER:
        raise ValueError("too large")
    return value


def condition(node: Node, expander: Expander) -> bool | None:
    """The value of a `test_command`."""
    children = [child for child in node.named_children if child.type != "comment"]
    return _truth(children[0], expander, node.children[0].type == "[[") if len(children) == 1 else None


def negated(value: bool | None) -> bool | None:
    return None if value is None else not value


def _truth(node: Node, expander: Expander, globs: bool) -> bool | None:
    if node.type == "parenthesized_expression" and len(node.named_children) == 1:
        return _truth(node.named_children[0], expander, globs)
    if node.type == "unary_expression":
        operation, operand = expander.source.written(node.children[0]), node.children[-1]
        if operation == "!":
            return negated(_truth(operand, expander, globs))
        text = _operand(operand, expander)
        return None if text is None or operation not in ("-n", "-z") else (text != "") == (operation == "-n")
    if node.type == "binary_expression" and len(node.children) == 3:
        left, operation, right = node.children[0], expander.source.written(node.children[1]), node.children[2]
        if operation in ("&&", "||"):
            values = [_truth(left, expander, globs), _truth(right, expander, globs)]
            decisive = operation == "||"
            return decisive if decisive in values else None if None in values else not decisive
        return _compared(left, operation, right, expander, globs)
    text = _operand(node, expander)
    return None if text is None else text != ""


def _compared(left: Node, operation: str, right: Node, expander: Expander, globs: bool) -> bool | None:
    a, b = _operand(left, expander), _operand(right, expander)
    if a is None or b is None:
        return None
    if operation in ("=", "==", "!="):
        is_glob = globs and right.type in ("word", "extglob_pattern")
        equal = expander.budget.matches(a, expander.source.written(right)) if is_glob else a == b
        return equal == (operation != "!=")
    sign = _COMPARISONS.get(operation)
    return None if sign is None or (value := arithmetic(f"({a}) {sign} ({b})")) is None else value != 0


def _operand(node: Node, expander: Expander) -> str | None:
    """The text of an operand that is certain."""
    if node.type.endswith("_expression"):
        return None
    value = expander.value(node)
    expander.names_read.update(names_in(value))
    return None if doubt_of(value) else text_of(value)
