"""Reader of a script's statements in order: what a literal condition decides is taken, all else leaves a doubt.

Of branches that no literal decides, all are read. Loops, functions and sub-shells are read once, as text.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from orchestrator.importers.bash.budget import Budget
from orchestrator.importers.bash.conditions import condition, negated
from orchestrator.importers.bash.expansion import Expander, reassigned
from orchestrator.importers.bash.redirections import Redirections, json_files, path_of, redirections
from orchestrator.importers.bash.syntax import Source, parse_script, parse_value
from orchestrator.importers.bash.values import Piece, Value, Variable, doubt_of, merged, names_in, text_of, unknown
from search_spaces.errors import InputError
from search_spaces.schema.unsafe_text import looks_secret

if TYPE_CHECKING:
    from orchestrator.importers.bash.syntax import Node

_DEEPEST = 8
_MOST_COMMANDS = 10_000
_SUCCEED = ("cd", "mkdir", "echo", "printf", "set", "module", "true", ":")
_READ_INPUT = ("read", "mapfile", "readarray", "getopts")
_SHELLS = ("bash", "sh", "zsh", "dash")
_START_RANKS = ("srun", "mpirun", "mpiexec", "orterun")
_PLAIN_PATH = re.compile(r"[\w./~+{}$-]+")
"""A path without blanks, commands and addresses, which may hold a secret."""
_NO_WORD = re.compile(r"^(variable_assignment|comment|ERROR)$|_redirect$")
_CONDITION = "it is set under a condition that the script does not decide"
_LOOP, _FUNCTION, _SUBSHELL = "it is set in a loop", "it is set in a function", "it is set in a sub-shell"
_UNPARSED = "it is set where the script could not be parsed"
_ALWAYS_RUN = (_FUNCTION, _SUBSHELL)


class _End(Exception):
    """The script, function or branch ends here."""


def default_note(name: str, value: str) -> str:
    """Note that the variable has its default; a value that may be a secret is not repeated."""
    shown, other = (f"${name}", "command line") if name.isdigit() else (name, "environment")
    default = "default" if looks_secret(value, name) else f"default {value}"
    return f"{shown} is taken as its {default}; the {other} may set another."


class Reader(Expander):
    """Reads a script that starts with these exported variables; `read_file` returns the text of a sourced file."""

    def __init__(self, text: str, read_file: Callable[[str], str] | None, environment: Mapping[str, str]):
        budget = Budget()
        super().__init__(parse_script(text, budget), budget)
        self.exported |= {name: ((Piece(value, 1),),) for name, value in environment.items()}
        self.variables |= self.exported
        self.commands: list[tuple[Value, ...]] = []
        self.exported_for_one: dict[str, Variable] = {}
        self.files: dict[str, Value | None] = {}
        self.notes: dict[str, None] = {}
        self._read_file = read_file
        self._functions: dict[str, tuple[Source, Node]] = {}
        self._called: set[str] = set()
        self._starter: tuple[Value, ...] = ()
        self._depth = 0
        self._num_undecided = 0

    def read(self) -> None:
        """Read the whole script, at its end the functions that it does not call by name."""
        with suppress(_End):
            self._read_source(self.source)
        for name in [*self._functions]:
            if name not in self._called:
                self._call(name)
        for name in sorted(self.names_read & self.defaults.keys()):
            self._note(default_note(name, self.defaults[name]))

    def _read_source(self, source: Source) -> None:
        for line in source.unparsed_lines():
            self._note(f"Line {line} could not be parsed; what follows may be incomplete.")
        with self._inside(source):
            self._run(source.root.children)

    @contextmanager
    def _inside(self, source: Source) -> Iterator[None]:
        outer, self.source = self.source, source
        self._depth += 1
        try:
            yield
        finally:
            self.source = outer
            self._depth -= 1

    def _note(self, text: str) -> None:
        self.notes.setdefault(text)

    def _run(self, nodes: Sequence[Node]) -> bool | None:
        """Read statements; the exit status of the last, None where it is not known."""
        status: bool | None = True
        for node in nodes:
            if node.is_named and node.type != "comment":
                self.budget.spend(16)
                read = getattr(self, f"read_{node.type.lower()}", None)
                status = read(node) if read else None
        return status

    def read_compound_statement(self, node: Node) -> bool | None:
        if node.children and node.children[0].type == "((":
            return self._calculate(self.spliced(node, node.start_byte + 2, node.end_byte - 2, str))
        return self._run(node.children)

    def read_pipeline(self, node: Node) -> bool | None:
        self._run(node.children)
        return None

    def read_subshell(self, node: Node) -> bool | None:
        self._undecided(node, _SUBSHELL, [node.children])
        return None

    read_do_group = read_compound_statement

    @contextmanager
    def _in_shell(self, variables: Mapping[str, Variable]) -> Iterator[None]:
        """Read with these variables, like another shell, whose end does not end this one."""
        self.budget.spend(64 + len(variables))
        outer, self.variables = self.variables, dict(variables)
        with suppress(_End):
            yield
        self.variables = outer

    def _undecided(self, node: Node, why: str, bodies: Sequence[Sequence[Node]], names: Iterable[str] = ()) -> None:
        """Read code whose outcome is not followed: at most one of the bodies is run, and in it the values of these
        variables are not known. A body that ends the script leaves nothing behind."""
        reason = f"{why} (line {self.source.line(node)})"
        before, after = self.variables, []
        self._num_undecided += why not in _ALWAYS_RUN
        for body in bodies:
            with self._in_shell(before):
                self.variables |= dict.fromkeys(names, unknown(reason))
                self._run(body)
                after.append(self.variables)
        self._num_undecided -= why not in _ALWAYS_RUN
        self.variables = merged(before, after, reason, self.budget)

    def _decided(self, body: Sequence[Node]) -> bool | None:
        """Read what a condition decides. A script is given for the training that it starts: where it would end, such as
        at a check of what the user has to set, it is read on."""
        with suppress(_End):
            return self._run(body)
        return None

    def read_error(self, node: Node) -> bool | None:
        self._undecided(node, _UNPARSED, [node.children])
        return None

    def read_negated_command(self, node: Node) -> bool | None:
        return negated(self._run(node.children))

    def read_list(self, node: Node) -> bool | None:
        """Operands of `&&` or `||`."""
        operands = [child for child in node.named_children if child.type != "comment"]
        operator = next((child.type for child in node.children if child.type in ("&&", "||")), None)
        if len(operands) != 2 or operator is None:
            return self._run(node.children)
        status = self._run(operands[:1])
        if status is (operator == "&&"):
            return self._decided(operands[1:])
        if status is None:
            self._undecided(node, _CONDITION, [operands[1:]])
        return status

    def read_if_statement(self, node: Node) -> bool | None:
        self._choose(node, ((test is None or self._run(test), body) for test, body in _branches(node)))
        return None

    def read_case_statement(self, node: Node) -> bool | None:
        subject = self.value(node.child_by_field_name("value"))
        self.names_read.update(names_in(subject))
        items = [item for item in node.named_children if item.type == "case_item"]
        self._choose(node, ((self._matches(subject, item), item.children) for item in items))
        return None

    def _matches(self, subject: Value, item: Node) -> bool | None:
        """True if one of the case's globs matches; None where that is not known."""
        patterns = [self.source.written(node).strip("\"'") for node in item.children_by_field_name("value")]
        if "*" in patterns:
            return True
        if doubt_of(subject) or any("$" in pattern for pattern in patterns):
            return None
        return any(self.budget.matches(text_of(subject), pattern) for pattern in patterns)

    def read_test_command(self, node: Node) -> bool | None:
        return condition(node, self)

    def _choose(self, node: Node, branches: Iterable[tuple[bool | None, Sequence[Node]]]) -> None:
        """Read the branch that is taken, of these (condition, body), or all that may be."""
        bodies: list[Sequence[Node]] = []
        for status, body in branches:
            if status is True and not bodies:
                self._decided(body)
                return
            if status is not False:
                bodies.append(body)
            if status is True:
                break
        self._undecided(node, _CONDITION, bodies)

    def read_for_statement(self, node: Node) -> bool | None:
        """A loop is read once. What it sets from turn to turn is not known in it, nor what it has set after it."""
        self.budget.spend(4 * (node.end_byte - node.start_byte))
        names = [self.source.written(name) for name in node.children_by_field_name("variable")]
        parts = [child for child in node.children if child.type != "variable_assignment"]
        self._undecided(node, _LOOP, [parts], (*names, *reassigned(node, self.source)))
        return None

    read_while_statement = read_c_style_for_statement = read_for_statement

    def read_function_definition(self, node: Node) -> bool | None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self._functions[self.source.written(name)] = self.source, body
        return True

    def _call(self, name: str) -> None:
        """Read a function where it is called, without its arguments."""
        self._called.add(name)
        source, body = self._functions[name]
        if self._depth < _DEEPEST:
            with self._inside(source):
                self._undecided(body, _FUNCTION, [[body]])

    def read_redirected_statement(self, node: Node) -> bool | None:
        """A command with redirections, and what it writes to a file."""
        bodies, given, first = node.children_by_field_name("body"), redirections(node, self), len(self.commands)
        is_command = [body.type for body in bodies] == ["command"]
        status = self.read_command(bodies[0], given) if is_command else self._run(bodies)
        self._run([each for child in node.named_children for each in child.named_children if each.type == "pipeline"])
        words = [text_of(word) for command in self.commands[first:] for word in command]
        is_copied = is_command and words == ["cat"] and ">>" not in self.source.written(node)
        _, files, document = given
        for path in map(path_of, files):
            is_certain = is_copied and document is not None and doubt_of(document) is None and not self._num_undecided
            self.files[path] = document if is_certain and path not in self.files else None
        return status

    def read_command(self, node: Node, given: Redirections | None = None) -> bool | None:
        prefixes = [child for child in node.named_children if child.type == "variable_assignment"]
        if prefixes and self._is_line_of_its_own(prefixes[-1], node.child_by_field_name("name")):
            self._run(prefixes)
            prefixes = []
        more, _, document = given or redirections(node, self)
        words = tuple(self.words([*(child for child in node.named_children if not _NO_WORD.search(child.type)), *more]))
        if not words:
            return self._run(prefixes)
        before = self.variables
        with self._in_shell(before):
            self._run(prefixes)
            assigned = {name: value for name, value in self.variables.items() if value is not before.get(name)}
        self.exported_for_one |= assigned
        return self._execute(words, document, assigned)

    def _is_line_of_its_own(self, assignment: Node, name: Node | None) -> bool:
        """True for `A=1 B=2` on a line before the command, which the parser takes for a part of it."""
        between = b"" if name is None else self.source.text[assignment.end_byte : name.start_byte]
        return b"\n" in between.replace(b"\\\n", b"")

    def _execute(self, words: tuple[Value, ...], document: Value | None, given: Mapping[str, Variable]) -> bool | None:
        name = text_of(words[0])
        self.budget.spend(sum(map(len, words)) + (2**30 if len(self.commands) >= _MOST_COMMANDS else 0))
        if name in ("exit", "return"):
            raise _End
        if name == "eval":
            return self._eval(words)
        if name in ("source", "."):
            return self._source_file(words)
        if name.startswith("--"):
            self._note(f"Line {words[0][0].line}: {name} was not read; bash ends the command before it.")
        self.commands.append((*self._starter, *words))
        if name in self._functions:
            self._call(name)
        elif name in ("cd", "pushd"):
            self.variables["PWD"] = unknown("the script changes the folder")
        elif name == "let":
            self._calculate(tuple(piece for word in words[1:] for piece in (*word, Piece(" ", 1))))
        elif name in _READ_INPUT or (name == "printf" and "-v" in map(text_of, words)):
            self._read_input(words, document)
        elif (nested := _nested_script(words, document)) is not None and self._depth < _DEEPEST:
            self._nested(*nested, given)
        self.files |= dict.fromkeys(json_files(words, document))
        return None if doubt_of(words[0]) else True if name in _SUCCEED else False if name == "false" else None

    def _nested(self, starter: tuple[Value, ...], script: Value, given: Mapping[str, Variable]) -> None:
        """Read a script that another shell runs. Its commands have the words before them that start their ranks."""
        exported = {name: value for name, value in self.variables.items() if name in self.exported or name == "PWD"}
        outer = self._starter
        if any(posixpath.basename(text_of(word)) in _START_RANKS for word in starter[:3]):
            self._starter = (*outer, *starter)
            self.budget.spend(len(self._starter))
        with self._in_shell({**exported, **given}):
            self._read_source(parse_value(script, self.budget))
        self._starter = outer

    def _read_input(self, words: tuple[Value, ...], document: Value | None) -> None:
        """`read`, `mapfile`, `printf -v`: they set variables to what is not in the script, but for a here-document that
        is read as a whole."""
        names = [text_of(word) for word in words[1:]]
        why = unknown(f"it is read from input (line {words[0][0].line})")
        self.variables |= dict.fromkeys((name for name in names if name.isidentifier()), why)
        if document is not None and "-d" in names:
            self.variables[names[-1]] = (document,)

    def _eval(self, words: tuple[Value, ...]) -> bool | None:
        script = [piece for word in words[1:] for piece in (*word, Piece(" ", words[0][0].line))]
        if self._depth < _DEEPEST:
            self._read_source(parse_value(self.budget.value(script), self.budget))
        return None

    def _source_file(self, words: tuple[Value, ...]) -> bool | None:
        self.commands.append(words)
        (name,) = words[1:2] or words[:1]
        path, line = text_of(name), words[0][0].line
        try:
            is_inside = path_of(path).partition("/")[0] not in ("", "..")
            is_known = is_inside and doubt_of(name) is None and path_of(path) not in self.files
            if self._read_file is None or self._depth >= _DEEPEST or not is_known:
                raise OSError
            text = self._read_file(path)
        except (InputError, OSError):
            named = path if _PLAIN_PATH.fullmatch(path) else f"The file that line {line} sources"
            self._note(f"{named} was not read; what it sets is missing.")
            return True
        self.budget.spend(len(text))
        with suppress(_End):
            self._read_source(parse_script(text, self.budget, line))
        return True


def _nested_script(words: Sequence[Value], document: Value | None) -> tuple[tuple[Value, ...], Value] | None:
    """(the words before the shell, the script) of `bash -c "..."` and `bash <<EOF`, also behind another program."""
    shell = next((i for i, word in enumerate(words) if posixpath.basename(text_of(word)) in _SHELLS), None)
    if shell is None:
        return None
    for option, script in pairwise(words[shell + 1 :]):
        if re.fullmatch(r"-[a-z]*c[a-z]*", text_of(option)):
            return tuple(words[:shell]), script
    return None if document is None or words[shell + 1 :] else (tuple(words[:shell]), document)


def _branches(node: Node) -> Iterator[tuple[list[Node] | None, list[Node]]]:
    """(condition, body) of an if statement and its elif and else clauses; no condition for else."""
    clauses = [child for child in node.children if child.type in ("elif_clause", "else_clause")]
    own = [child for child in node.children if child not in clauses]
    then = next((i for i, child in enumerate(own) if child.type == "then"), len(own))
    yield (None, own) if node.type == "else_clause" else (own[:then], own[then:])
    for clause in clauses:
        yield from _branches(clause)
