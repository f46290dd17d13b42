"""Reader of a script's statements in order: branches that the script decides are taken, the others are all read."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from orchestrator.importers.bash.commands import CommandReader, FunctionEnd, ScriptEnd, nodes_of
from orchestrator.importers.bash.conditions import negated
from orchestrator.importers.bash.environment import merged
from orchestrator.importers.bash.syntax import Source
from orchestrator.importers.bash.values import (
    Undecided,
    Value,
    Variable,
    is_decided,
    names_in,
    text_of,
)

if TYPE_CHECKING:
    from orchestrator.importers.bash.syntax import Node


_ONLY_MESSAGES = ("echo", "printf", "exit", "mkdir", "set", ":", "true", "false")


class Reader(CommandReader):
    """Reads scripts; `read_file` returns the text of a sourced file."""

    def __init__(self, read_file: Callable[[str], str] | None):
        super().__init__(read_file)
        self._uncalled: dict[str, None] = {}

    def read(self, source: Source) -> None:
        """Read a whole script. A function is read where it is called; at the end if an unknown word may be its name."""
        with suppress(ScriptEnd, FunctionEnd):
            self._read_source(source)
        if any(command and not is_decided(command[0]) for command in self.commands):
            for name in list(self._uncalled):
                self._alternatives([partial(self._call, name, None), lambda: None])

    def _read_source(self, source: Source) -> bool | None:
        for note in source.notes:
            self.log.note(note)
        outer, self._current = self._current, source
        try:
            return self._run(source.root.children)
        finally:
            self._current = outer

    def _run(self, nodes: Sequence[Node]) -> bool | None:
        """Read statements; the exit status of the last, None where it is not known."""
        status: bool | None = True
        for node in nodes:
            if node.is_named and node.type != "comment":
                status = self._statement(node)
        return status

    def _statement(self, node: Node) -> bool | None:
        self.log.budget.spend(16)
        read = self._STATEMENTS.get(node.type)
        return read(self, node) if read else None

    def _group(self, node: Node) -> bool | None:
        if node.children and node.children[0].type == "((":
            return self._calculation(node)
        return self._run(node.children)

    def _error(self, node: Node) -> bool | None:
        self.log.note(f"Line {self._source.line(node)} could not be parsed; what it says is missing.")
        self._alternatives([lambda: self._run(node.children), lambda: None])
        return None

    def _subshell(self, node: Node) -> bool | None:
        with self._in_shell(self._copy()):
            return self._run(node.children)
        return None

    def _pipeline(self, node: Node) -> bool | None:
        for child in node.named_children:
            with self._in_shell(self._copy()):
                self._run([child])
        return None

    def _negation(self, node: Node) -> bool | None:
        return negated(self._run(node.children))

    def _list(self, node: Node, redirected: Node | None = None) -> bool | None:
        """Operands of `&&` or `||`. The parser has what redirects the last one around all."""
        operands = [child for child in node.named_children if child.type != "comment"]
        operators = [child.type for child in node.children if child.type in ("&&", "||")]
        if len(operands) != 2 or len(operators) != 1:
            return self._redirected_body(redirected, node) if redirected else self._run(node.children)
        last = (
            partial(self._redirected_body, redirected, operands[1]) if redirected else partial(self._run, operands[1:])
        )
        status = self._status(operands[:1], operands[1:])
        if status is (operators[0] == "&&"):
            return self._run_decided(last)
        if status is None:
            self._alternatives([last, lambda: None])
        return status

    def _alternatives(self, branches: Sequence[Callable[[], object]]) -> None:
        """Read branches of which one is taken. One that ends the script leaves the rest to the others."""
        before, after = self.environment, []
        end: ScriptEnd | FunctionEnd | None = None
        for branch in branches:
            self.environment = before
            self.environment = self._copy()
            try:
                branch()
                after.append(self.environment)
            except (ScriptEnd, FunctionEnd) as error:
                end = error
        self.environment = before
        if not after:
            raise end or ScriptEnd
        self.environment = merged(before, after, self.log)

    def _if(self, node: Node) -> bool | None:
        return self._choose(list(_branches(node)))

    def _choose(self, branches: list[tuple[list[Node] | None, list[Node]]]) -> bool | None:
        for index, (test, body) in enumerate(branches):
            status = True if test is None else self._status(test, [n for _, each in branches for n in each])
            if status is True:
                return self._run_decided(partial(self._run, body))
            if status is None:
                rest = branches[index + 1 :]
                self._alternatives([partial(self._run, body), partial(self._choose, rest)])
                return None
        return True

    def _status(self, test: Sequence[Node], branches: Sequence[Node]) -> bool | None:
        """The status of a condition. One that reads a default and decides what is read has a note."""
        outer, self._read = self._read, set()
        status = self._run(test)
        if status is not None:
            self._note_defaults(self._read, branches)
        self._read |= outer
        return status

    def _note_defaults(self, names: Iterable[str], branches: Sequence[Node]) -> None:
        defaults = [name for name in sorted(names) if name in self.log.defaults]
        if defaults and any(self._has_effect(node) for node in branches):
            self.log.note_defaults(defaults)

    def _has_effect(self, node: Node) -> bool:
        """True for a branch that sets something or starts more than a message."""
        self.log.budget.spend(1)
        if node.type == "command":
            return self._source.written(node).split(maxsplit=1)[0] not in _ONLY_MESSAGES
        return "assignment" in node.type or any(self._has_effect(child) for child in node.named_children)

    def _run_decided(self, branch: Callable[[], bool | None]) -> bool | None:
        """Read what a condition decides. A script is given for the training that it starts: where it would end with an
        error, such as a check of what the user has to set, it is read as if it went on."""
        try:
            return branch()
        except ScriptEnd as end:
            if end.error_line is None:
                raise
            self.log.note(f"As it stands, the script ends with an error (line {end.error_line}); it was read on.")
            return None

    def _case(self, node: Node) -> bool | None:
        subject = self._expander.value(node.child_by_field_name("value"))
        text = text_of(subject) if is_decided(subject) else None
        bodies: list[list[Node]] = []
        has_rest = False
        if text is not None:
            self._note_defaults(names_in(subject), node.named_children[1:])
        for item in node.named_children:
            if item.type != "case_item":
                continue
            patterns = [self._pattern(value) for value in item.children_by_field_name("value")]
            end = next((i for i, child in enumerate(item.children) if child.type == ")"), 0)
            body = [child for child in item.children[end + 1 :] if child.is_named]
            if text is not None and any(p is not None and self.log.budget.matches(text, p) for p in patterns):
                return self._run_decided(partial(self._run, body))
            has_rest = has_rest or "*" in patterns
            if text is None or None in patterns:
                bodies.append(body)
        if bodies:
            others: list[Callable[[], object]] = [] if has_rest else [lambda: None]
            self._alternatives([*(partial(self._run, body) for body in bodies), *others])
            return None
        return True

    def _pattern(self, node: Node) -> str | None:
        """The glob of a case; None where it is not known."""
        if node.type in ("extglob_pattern", "word", "number"):
            return self._source.written(node)
        value = self._expander.value(node)
        return glob.escape(text_of(value)) if is_decided(value) else None

    def _for(self, node: Node) -> bool | None:
        variable = node.child_by_field_name("variable")
        body = node.child_by_field_name("body")
        if variable is None or body is None:
            return self._run(node.children)
        name = self._source.written(variable)
        values = self._expander.words(node.children_by_field_name("value"))
        if len(values) == 1 and is_decided(values[0]) and node.children[0].type == "for":
            self.environment.variables[name] = values[0]
            return self._run(body.children)
        self._loop(body, [name])
        return None

    def _while(self, node: Node) -> bool | None:
        """A loop over the command line's options leaves the variables that it sets at their defaults."""
        body = node.child_by_field_name("body")
        if body is None:
            return self._run(node.children)
        self.log.budget.spend(4 * (node.end_byte - node.start_byte))
        test = self._source.text[node.start_byte : body.start_byte].decode(errors="replace")
        if re.search(r"\$#|\$\{#\}|getopts|\$\{?1\b|\(\( *#", test) and self.environment.positional is None:
            names = {name for name, _ in _assigned(body, self._source)}
            self.log.defaults.update(self.environment.known(sorted(names)))
            return None
        self._run(node.children_by_field_name("condition"))
        self._loop(body, [])
        return None

    def _loop(self, body: Node, names: list[str]) -> None:
        """Read a loop's body once. What it computes from its own values is not known in it."""
        self.log.budget.spend(4 * (body.end_byte - body.start_byte))
        changed = [name for name, adds in _assigned(body, self._source) if not adds]

        def once() -> None:
            self.environment.variables |= dict.fromkeys((*names, *changed), Undecided.VALUE)
            self._run(body.children)

        self._alternatives([once, lambda: None])

    def _c_loop(self, node: Node) -> bool | None:
        body = node.child_by_field_name("body")
        if body is not None:
            self._loop(body, [self._source.written(name) for name in nodes_of(node, "variable_name", body)])
        return None

    def _define(self, node: Node) -> bool | None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            text = self._source.written(name)
            self._functions[text] = self._source, body
            self._uncalled[text] = None
        return True

    def _call(self, name: str, arguments: tuple[Value, ...] | None) -> bool | None:
        source, body = self._functions[name]
        self._uncalled.pop(name, None)
        outer_source, outer_positional = self._current, self.environment.positional
        outer_locals, local_values = self._locals, dict[str, Variable | None]()
        self._locals = local_values
        self.environment.positional = arguments
        self._current = source
        try:
            with self._deeper():
                return self._run([body])
        except FunctionEnd:
            return None
        finally:
            self._current = outer_source
            self.environment.positional = outer_positional
            self._locals = outer_locals
            for local, value in local_values.items():
                if value is None:
                    self.environment.variables.pop(local, None)
                else:
                    self.environment.variables[local] = value

    _STATEMENTS: ClassVar[dict[str, Callable[[Reader, Node], bool | None]]] = {
        "compound_statement": _group,
        "do_group": _group,
        "ERROR": _error,
        "subshell": _subshell,
        "pipeline": _pipeline,
        "negated_command": _negation,
        "list": _list,
        "if_statement": _if,
        "case_statement": _case,
        "for_statement": _for,
        "while_statement": _while,
        "c_style_for_statement": _c_loop,
        "function_definition": _define,
        "variable_assignment": CommandReader._assign,
        "variable_assignments": CommandReader._assignments,
        "declaration_command": CommandReader._declaration,
        "unset_command": CommandReader._unset,
        "test_command": CommandReader._test,
        "redirected_statement": CommandReader._redirected,
        "command": CommandReader._command,
    }


def _branches(node: Node) -> Iterator[tuple[list[Node] | None, list[Node]]]:
    """(condition, body) of an if statement and its elif and else clauses; no condition for else."""
    test: list[Node] | None = None if node.type == "else_clause" else []
    body: list[Node] = []
    is_test = test is not None
    clauses: list[Node] = []
    for child in node.children:
        if child.type in ("elif_clause", "else_clause"):
            clauses.append(child)
        elif child.type == "then":
            is_test = False
        elif is_test and test is not None:
            test.append(child)
        else:
            body.append(child)
    yield test, body
    for clause in clauses:
        yield from _branches(clause)


def _assigned(node: Node, source: Source) -> Iterator[tuple[str, bool]]:
    """(variable, whether it only adds to it) of the assignments inside."""
    for assignment in nodes_of(node, "variable_assignment"):
        name, operation, value = re.split(r"(\+?=)", source.written(assignment), maxsplit=1)
        adds_itself = re.match(rf'"?\$(?:{re.escape(name)}\b|{{{re.escape(name)}}})', value)
        yield name.partition("[")[0], operation == "+=" or bool(adds_itself)
    for calculation in nodes_of(node, "compound_statement"):
        for name in re.findall(r"\b([A-Za-z_]\w*)\s*(?:\+\+|--|[-+*/]?=(?!=))", source.written(calculation)):
            yield name, False
