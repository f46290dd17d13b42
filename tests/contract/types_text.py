"""Types in words: `list[str] | None` is `list of text or null`."""

from __future__ import annotations

import ast

_NAMES = {
    "None": "null",
    "str": "text",
    "int": "integer",
    "float": "number",
    "bool": "true or false",
    "Any": "any",
    "SearchIdText": "text",
    "TrialText": "text",
    "_PathText": "text",
}
_LISTS = ("list", "tuple", "Sequence")
_OBJECTS = ("dict", "Mapping")


def type_text(node: ast.expr) -> str:
    """The annotation in words; a class stays as it is."""
    if isinstance(node, ast.BinOp):
        return f"{type_text(node.left)} or {type_text(node.right)}"
    if isinstance(node, ast.Subscript):
        parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        return _generic(ast.unparse(node.value), parts)
    return _NAMES.get(name := ast.unparse(node), name)


def _generic(name: str, parts: list[ast.expr]) -> str:
    if name == "Literal":
        return ", ".join(f"`{ast.literal_eval(part)}`" for part in parts)
    if name == "NotRequired":
        return f"{type_text(parts[0])}, may be absent"
    if name in _LISTS:
        return f"list of {type_text(parts[0])}"
    if name in _OBJECTS:
        return "object" if ast.unparse(parts[1]) == "Any" else f"object of {type_text(parts[1])}"
    return type_text(parts[0])
