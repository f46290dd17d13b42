"""Parser of bash launch scripts: the commands they would run. Nothing is executed.

Supported is what launch scripts consist of: assignments, arrays, quotes, line continuations, `${NAME:-default}`,
`$((...))` and here-documents. Conditions are not evaluated: a variable set under one is unknown.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from search_spaces.errors import InputError

LARGEST_TEXT = 2**18
"""Limit of characters of a script, and of any one value after expansion."""


@dataclass
class Script:
    """Parsed script. `commands` are expanded words; a part with an unknown value stays as written, `$` included.

    `documents` are the here-documents, expanded. `notes` list options left out because a condition adds them, and
    values that are defaults which the environment may replace.
    """

    commands: list[list[str]] = field(default_factory=list)
    documents: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_script(text: str) -> Script:
    """Read a bash script. InputError when it is too long, as written or once expanded."""
    _require_size(text)
    text, documents = _without_documents(text.replace("\r\n", "\n"))
    reader = _Reader()
    for separator, statement in _statements(_joined(text)):
        reader.read(statement, follows_test=separator in ("&&", "||"))
    for document in documents:
        reader.script.documents.append(reader.expand(document, _VARIABLE))
    return reader.script


def _require_size(text: str) -> None:
    if len(text) > LARGEST_TEXT:
        raise InputError.of(
            "script_size",
            f"{len(text)} characters",
            rule=f"a launch script has at most {LARGEST_TEXT} characters, as written and with its variables filled in",
            fix="give a script that only starts the training",
        )


_HERE = re.compile(r"(?<!<)<<-?\s*['\"]?([A-Za-z_]\w*)['\"]?")


def _without_documents(text: str) -> tuple[str, list[str]]:
    """(the script without its here-documents, the here-documents)."""
    kept, documents = [], []
    lines = iter(text.split("\n"))
    for line in lines:
        here = None if line.lstrip().startswith("#") else _HERE.search(line)
        kept.append(line)
        if here:
            documents.append("\n".join(_until(here[1], lines)))
    return "\n".join(kept), documents


def _until(delimiter: str, lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line.strip() == delimiter:
            return
        yield line


def _joined(text: str) -> str:
    """The script with continued lines joined and whole-line comments removed, also inside a command."""
    lines = [line for line in text.split("\n") if not line.lstrip().startswith("#")]
    return re.sub(r"\\[ \t]*\n", " ", "\n".join(lines))


_TOKEN = re.compile(
    r"""(?P<comment>(?<![^\s;(])\#[^\n]*)
      | (?P<unit>'[^']*' | "(?:\\.|[^"\\])*" | `[^`]*` | \\. | \$\{(?:[^{}]|\{[^}]{0,200}\}){0,200}\} | &>)
      | (?P<end>\n|;|&&|\|\||\|)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


def _statements(text: str) -> Iterator[tuple[str, str]]:
    """(the separator before it, one simple command as written), split outside quotes and parentheses."""
    parts: list[str] = []
    separator, depth = "\n", 0
    for match in _TOKEN.finditer(text):
        token = match[0]
        depth = max(0, depth + (token == "(") - (token == ")"))
        if match.lastgroup == "end" and depth == 0:
            yield separator, "".join(parts).strip()
            separator, parts = token, []
        elif match.lastgroup != "comment":
            parts.append(token)
    yield separator, "".join(parts).strip()


def _words_as_written(statement: str) -> list[str]:
    """The statement's words with their quotes; an array with its elements is one word."""
    words, depth = [""], 0
    for match in _TOKEN.finditer(statement):
        token = match[0]
        depth = max(0, depth + (token == "(") - (token == ")"))
        if token.isspace() and depth == 0:
            words.append("")
        else:
            words[-1] += token
    return [word for word in words if word]


_VARIABLE = re.compile(
    r"""\$\(\((?P<sum>.*?)\)\)
      | \$\{(?P<name>\w+)(?:\[[@*]\])?(?::?[-=](?P<default>(?:[^{}]|\{[^}]{0,200}\}){0,200}))?\}
      | \$(?P<plain>[A-Za-z_]\w*)""",
    re.VERBOSE,
)
_VARIABLE_OR_QUOTE = re.compile(
    _VARIABLE.pattern + r"""| '(?P<single>[^']*)' | \\(?P<escaped>.) | (?P<double>")""", re.VERBOSE | re.DOTALL
)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_DECLARERS = ("export", "local", "readonly", "declare", "typeset")
_OPENERS, _CLOSERS = ("if", "for", "while", "until", "case", "select"), ("fi", "done", "esac", "}")
_BETWEEN = ("then", "else", "do", "elif")


class _Reader:
    """Processes the statements in order, keeping the variables' values."""

    def __init__(self) -> None:
        self.script = Script()
        self._variables: dict[str, str] = {}
        self._depth = 0

    def read(self, statement: str, follows_test: bool) -> None:
        words = self._inside_control_words(_words_as_written(statement))
        while words and (words[0] in _DECLARERS or _ASSIGNMENT.fullmatch(words[0])):
            if found := _ASSIGNMENT.fullmatch(words.pop(0)):
                self._assign(found[1], bool(found[2]), found[3], undecided=follows_test or self._depth > 0)
        if words:
            expanded = self.expand(" ".join(words), _VARIABLE_OR_QUOTE)
            self.script.commands.append(expanded.split())

    def _inside_control_words(self, words: list[str]) -> list[str]:
        """The words that form a command: without `then`, `else`, conditions and case labels."""
        while words and words[0] in _BETWEEN:
            words = words[1:] if words[0] != "elif" else []
        if not words:
            return []
        if words[0] in _CLOSERS:
            self._depth = max(0, self._depth - 1)
            return []
        if words[0] in _OPENERS or words[-1] == "{":
            self._depth += 1
            self._forget_loop_variable(words)
            return []
        is_case_label = self._depth > 0 and re.fullmatch(r"\(?[^()=]+\)", words[0])
        return words[1:] if is_case_label else words

    def _forget_loop_variable(self, words: list[str]) -> None:
        if words[0] in ("for", "select") and len(words) > 1:
            self._variables.pop(words[1], None)

    def _assign(self, name: str, extends: bool, written: str, undecided: bool) -> None:
        value = self._value(written)
        old = self._variables.get(name)
        if extends and old is not None:
            value = f"{old} {value}" if written.startswith("(") else old + value
        if not undecided:
            self._variables[name] = value
        elif old is not None and value.startswith(old):
            self._note_left_out(value[len(old) :].strip())
        elif value != old:
            self._variables.pop(name, None)

    def _value(self, written: str) -> str:
        is_array = written.startswith("(") and written.endswith(")")
        return self.expand(written[1:-1] if is_array else written, _VARIABLE_OR_QUOTE)

    def _note_left_out(self, added: str) -> None:
        """Note an option that was left out, by name only: its value may be a secret."""
        for option in (word.split("=")[0] for word in added.split() if word.startswith("--")):
            self.script.notes.append(f"{option} is added under a condition in the script; it was left out.")

    def expand(self, text: str, pattern: re.Pattern[str]) -> str:
        """`text` with known variables expanded; the rest stays as written."""
        expanded = pattern.sub(lambda match: self._replacement(match, pattern), text)
        _require_size(expanded)
        return expanded

    def _replacement(self, match: re.Match[str], pattern: re.Pattern[str]) -> str:
        found = {name: value for name, value in match.groupdict().items() if value is not None}
        if "sum" in found:
            total = _arithmetic(self._named(self.expand(found["sum"], _VARIABLE)))
            return match[0] if total is None else str(total)
        if "name" in found or "plain" in found:
            return self._variable(found.get("name") or found["plain"], found.get("default"), match[0], pattern)
        return "" if "double" in found else found.get("single", found.get("escaped", ""))

    def _variable(self, name: str, default: str | None, written: str, pattern: re.Pattern[str]) -> str:
        if name in self._variables:
            return self._variables[name]
        if default is None:
            return written
        value = self.expand(default, pattern)
        self._note_default(name, value)
        return value

    def _note_default(self, name: str, value: str) -> None:
        note = f"{name} is taken as its default {value}; the environment may set another."
        if value.isdigit() and note not in self.script.notes:
            self.script.notes.append(note)

    def _named(self, expression: str) -> str:
        """Expand variables inside `$((...))`, which need no dollar sign there."""
        return re.sub(r"[A-Za-z_]\w*", lambda name: self._variables.get(name[0], name[0]), expression)


_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_LARGEST_NUMBER = 10**12


def _arithmetic(expression: str) -> int | None:
    """The value of an integer expression; None for anything else."""
    try:
        return _evaluated(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _evaluated(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        value = node.value
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        value = _OPERATORS[type(node.op)](_evaluated(node.left), _evaluated(node.right))
    else:
        raise ValueError("not a sum of whole numbers")
    if not -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER:
        raise ValueError("too large")
    return value
