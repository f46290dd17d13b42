"""docs/contract.md, generated from the types: `python -m tests.contract.page --write`.

template.md has the order and what no type says; objects.py what each `{{name}}` in it stands for. A heading is an
object, its text the class's docstring. A field is described beside it: by the string below it, pydantic's
description, or the `help` of an option.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, cast

import typer
from pydantic import BaseModel
from starlette.testclient import TestClient

from dashboards.access.auth import AuthPolicy
from orchestrator.cli.verbosity import VERBOSITY
from orchestrator.cli.verbs import app
from orchestrator.service.api import make_app
from search_spaces.errors import format_value
from search_spaces.layouts.axis import Axis, Kind
from search_spaces.layouts.layout import AXES, CANONICAL, Layout
from search_spaces.rules.layout_rules import LAYOUT_RULES
from tests.contract.objects import COLUMNS, FOLDERS, MEANINGS, OBJECTS, SCHEMAS, Folder
from tests.sources import ROOT

PAGE = ROOT / "docs" / "contract.md"
TEMPLATE = Path(__file__).with_name("template.md")
WIDTH = 120
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


@dataclass(frozen=True)
class Row:
    """A field or a member of an enum. `type` and `default` are None where it has none."""

    name: str
    type: str | None
    default: str | None
    meaning: str


def page() -> str:
    """The page as Markdown."""
    template = TEMPLATE.read_text(encoding="utf-8")
    contents = list(re.findall(r"^## (.+)$", template, re.MULTILINE))
    generated: dict[str, Callable[[], str]] = {
        "contents": lambda: "\n".join(f"- {_link(title)}" for title in contents),
        "canonical": lambda: _table(("field", "canonical value", "of layouts with"), _canonical_values()),
        "rules": lambda: _table(("rule", "says"), ((f"`{rule.code}`", rule.rule) for rule in LAYOUT_RULES)),
        "commands": lambda: "\n\n".join(_commands()),
        "routes": lambda: _table(("request", "does"), _routes()),
        **{name: lambda kinds=kinds: "\n\n".join(map(_object, kinds)) for name, kinds in OBJECTS.items()},
        **{name: lambda folder=folder: _folder(folder) for name, folder in FOLDERS.items()},
        **{name: lambda names=names: _filled(", ".join(f"`{n}`" for n in names)) for name, names in COLUMNS.items()},
    }
    return re.sub(r"^\{\{(\w+)\}\}$", lambda name: generated[name[1]](), template, flags=re.MULTILINE)


def _object(kind: type) -> str:
    schema = SCHEMAS.get(kind) or _declared_schema(kind)
    about = f"`{Path(inspect.getfile(kind)).relative_to(ROOT)}`" + (f", schema `{schema}`" if schema else "")
    parts = [f"### {kind.__name__}", about, ast.get_docstring(_class_node(kind)) or ""]
    rows = rows_of(kind)
    if issubclass(kind, Enum):
        parts.append(_table(("value", "meaning"), ((f"`{row.name}`", row.meaning) for row in rows)))
    else:
        parts.append(_table(("field", "type", "meaning"), ((f"`{r.name}`", _type_cell(r), r.meaning) for r in rows)))
    return "\n\n".join(part for part in parts if part)


def _declared_schema(kind: type) -> str | None:
    found = re.search(r"parlay\.\w+/\d+", next((row.type or "" for row in rows_of(kind) if row.name == "schema"), ""))
    return found[0] if found else None


def rows_of(kind: type) -> list[Row]:
    """The fields of a class, or the members of an enum, in their order."""
    body = _class_node(kind).body
    rows = []
    for node, following in zip(body, [*body[1:], None], strict=True):
        if issubclass(kind, Enum) and isinstance(node, ast.Assign):
            member = kind.__members__.get(ast.unparse(node.targets[0]))
            if member is not None:
                meaning = _string(following) or MEANINGS.get(kind, {}).get(member, "")
                title = member.value if isinstance(member.value, str) else f"{member.value} {member.name}"
                rows.append(Row(title, None, None, meaning))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            rows.append(_field(kind, node.target.id, node, _string(following)))
    return rows


def _field(kind: type, name: str, node: ast.AnnAssign, meaning: str) -> Row:
    if issubclass(kind, BaseModel):
        field = kind.model_fields[name]
        return Row(field.alias or name, _type_text(node.annotation), None, field.description or meaning)
    if kind is Layout:
        return Row(name, _type_text(node.annotation), _plain(repr(AXES[name].default)), _meaning(AXES[name]))
    default = None if node.value is None else ast.unparse(node.value)
    return Row(name, _type_text(node.annotation), _plain(default), meaning)


def _meaning(axis: Axis) -> str:
    if axis.kind is Kind.WORD:
        return f"{axis.description} One of {axis.choice_of(axis.words, last=', ')}."
    return f"{axis.description} From {axis.least} to {axis.most}." if axis.most < 10 else axis.description


def _canonical_values() -> Iterator[tuple[str, str, str]]:
    for name, cases in CANONICAL.items():
        by_value: dict[str, list[str]] = {}
        for value, when in cases:
            has = " and ".join(f"{other} {needed}" for other, needed in when.items()) or "any other"
            by_value.setdefault(format_value(value) if type(value) is not str else value, []).append(has)
        yield from ((f"`{name}`", value, "; ".join(conditions)) for value, conditions in by_value.items())


def _plain(source: str | None) -> str | None:
    """A default that is a number, a text or a switch; None for another."""
    if source is None or not re.fullmatch(r"-?[\d.]+|'[^']+'|True|False", source):
        return None
    return {"True": "true", "False": "false"}.get(source, source.strip("'"))


@cache
def _class_node(kind: type) -> ast.ClassDef:
    return _classes(inspect.getfile(kind))[kind.__name__]


@cache
def _classes(file: str) -> Mapping[str, ast.ClassDef]:
    nodes = ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def _string(node: ast.stmt | None) -> str:
    """The text of a string that stands alone, which describes the field above it."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return _one_line(node.value.value)
    return ""


def _type_text(node: ast.expr) -> str:
    """The annotation in words; a class stays as it is."""
    if isinstance(node, ast.BinOp):
        return f"{_type_text(node.left)} or {_type_text(node.right)}"
    if isinstance(node, ast.Subscript):
        parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        return _generic(ast.unparse(node.value), parts)
    return _NAMES.get(name := ast.unparse(node), name)


def _generic(name: str, parts: list[ast.expr]) -> str:
    if name == "Literal":
        return ", ".join(f"`{ast.literal_eval(part)}`" for part in parts)
    if name == "NotRequired":
        return f"{_type_text(parts[0])}, may be absent"
    if name in _LISTS:
        return f"list of {_type_text(parts[0])}"
    if name in _OBJECTS:
        return "object" if ast.unparse(parts[1]) == "Any" else f"object of {_type_text(parts[1])}"
    return _type_text(parts[0])


def _type_cell(row: Row) -> str:
    known = {kind.__name__ for kinds in OBJECTS.values() for kind in kinds}
    text = re.sub(r"\b[A-Z]\w+\b", lambda m: _link(m[0]) if m[0] in known else m[0], row.type or "")
    return text if row.default is None else f"{text}; default `{row.default}`"


def _link(title: str) -> str:
    anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    return f"[{title}](#{anchor})"


def _folder(folder: Folder) -> str:
    table = _table(("path", "content"), [*_paths(folder), *folder.rows])
    return "\n\n".join([f"### {folder.title}", folder.text, table])


def _paths(folder: Folder) -> Iterator[tuple[str, str]]:
    """The paths below a folder that its class names, each with the docstring of its property."""
    for value in vars(type(folder.example)).values():
        if isinstance(value, property) and value.fget is not None:
            path = value.fget(folder.example)
            if isinstance(path, Path) and path != folder.example.path and path.is_relative_to(folder.example.path):
                yield f"`{path.relative_to(folder.example.path)}`", _one_line(value.fget.__doc__)


def _commands() -> Iterator[str]:
    for name, command in sorted(typer.main.get_command(app).commands.items()):
        inner = {f"{name} {part}": verb for part, verb in getattr(command, "commands", {}).items()}
        for title, verb in (inner or {name: command}).items():
            yield f"### parlay {title}\n\n{_filled(_one_line(verb.help))}\n\n{_options(verb.params)}"


def _options(parameters: Sequence[Any]) -> str:
    rows = []
    for parameter in (p for p in parameters if p.name not in VERBOSITY and not getattr(p, "hidden", False)):
        names = [*parameter.opts, *parameter.secondary_opts]
        shown = ", ".join(names) if names[0].startswith("-") else (parameter.metavar or names[0].upper())
        rows.append((f"`{shown}`", _one_line(getattr(parameter, "help", ""))))
    return _table(("option", "meaning"), rows)


def _routes() -> Iterator[tuple[str, str]]:
    service = make_app(cast(Any, None), AuthPolicy())
    for path, methods in TestClient(service).get("/openapi.json").json()["paths"].items():
        for method, about in methods.items():
            yield f"`{method.upper()} {path}`", _one_line(about.get("description"))


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table; nothing without rows, and without the columns that are empty in every row."""
    rows = list(rows)
    used = [column for column in range(len(titles)) if column == 0 or any(row[column] for row in rows)]
    lines = [[row[column].replace("|", r"\|") for column in used] for row in (titles, ("---",) * len(titles), *rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) if rows else ""


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
