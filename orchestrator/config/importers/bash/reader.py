"""Reader of a script's statements in order: what a literal condition decides is taken, all else leaves a doubt.

Of branches that no literal decides, all are read. Loops, functions and sub-shells are read once, as text.
"""

from __future__ import annotations

import posixpath
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import chain, pairwise, zip_longest
from typing import TYPE_CHECKING

from orchestrator.config.importers.bash.expansion import OUTPUT, Expander, arithmetic, in_quotes
from orchestrator.config.importers.bash.syntax import Source, parse_script, parse_value
from orchestrator.config.importers.bash.values import (
    Piece,
    Value,
    Variable,
    doubt_of,
    doubted,
    either,
    text_of,
    unknown,
)
from search_spaces.errors import InputError

if TYPE_CHECKING:
    from orchestrator.config.importers.bash.syntax import Node

_DEEPEST = 8
_STATUS = {"true": True, ":": True, "false": False}
_SET_VARIABLES = ("read", "mapfile", "readarray", "getopts", "let")
_SHELLS = ("bash", "sh", "zsh", "dash")
_PLAIN_PATH = re.compile(r"[\w./~+{}$-]+")
"""A path without blanks, commands and addresses, which may hold a secret."""
_COMPARISONS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
_CHANGED_NUMBER = re.compile(r"\b([A-Za-z_]\w*)\s*(?:\+\+|--|[-+*/%]?=(?!=))|(?:\+\+|--)([A-Za-z_]\w*)")
_REPLACED = re.compile(r"""(?<![\w$=-])([A-Za-z_]\w*)(?:\[[^\]\n]*\])?=(?!"?\s*\$\{?\1\b)""")
"""A variable that is set to another value, not only added to."""
_DS_CONFIG = re.compile(r"--deepspeed[-_]config[= ]\S+")
_CONDITION = "it is set under a condition that the script does not decide"
_LOOP, _FUNCTION, _SUBSHELL = "it is set in a loop", "it is set in a function", "it is set in a sub-shell"
_ARGUMENT = "an argument of a function is not read"
_UNPARSED = "it is set where the script could not be parsed"


class Reader(Expander):
    """Reads a script that starts with these exported variables; `read_file` returns the text of a sourced file."""

    def __init__(self, text: str, read_file: Callable[[str], str] | None, environment: Mapping[str, str]):
        super().__init__(text)
        self.exported |= {name: ((Piece(value, 1),),) for name, value in environment.items()}
        self.variables |= self.exported
        self.commands: list[tuple[Value, ...]] = []
        self.exported_for_one: dict[str, Variable] = {}
        self.files: dict[str, Value | None] = {}
        self._read_file = read_file
        self._functions: dict[str, tuple[Source, Node]] = {}
        self._starter: tuple[Value, ...] = ()
        self._depth = 0

    def read_source(self, source: Source) -> None:
        """Read a script, or another that it runs or sources."""
        if self._depth == _DEEPEST:
            self.notes.append(f"A script that is nested {_DEEPEST} levels deep was not read.")
            return
        for line in source.unparsed_lines():
            self.notes.append(f"Line {line} could not be parsed; what follows may be incomplete.")
        self._depth += 1
        with self._inside(source, self.variables):
            self._run(source.root.children)
        self._depth -= 1

    @contextmanager
    def _inside(self, source: Source, variables: ChainMap[str, Variable]) -> Iterator[None]:
        """Read this source with these variables."""
        outer = self.source, self.variables
        self.source, self.variables = source, variables
        yield
        self.source, self.variables = outer

    def _run(self, nodes: Sequence[Node]) -> bool | None:
        """Read statements; the exit status of the last, None where it is not known."""
        status: bool | None = True
        for node, after in zip_longest(nodes, nodes[1:]):
            if after is not None and after.type == "&":
                self._undecided(node, _SUBSHELL, [[node]])
            elif node.is_named and node.type != "comment":
                self.budget.spend(16)
                read = getattr(self, f"read_{node.type.lower()}", None)
                status = read(node) if read else None
        return status

    def read_compound_statement(self, node: Node) -> bool | None:
        is_arithmetic = bool(node.children) and node.children[0].type == "(("
        return self.read_arithmetic_command(node) if is_arithmetic else self._run(node.children)

    read_do_group = read_variable_assignments = read_compound_statement

    def read_negated_command(self, node: Node) -> None:
        self._run(node.children)

    def read_pipeline(self, node: Node) -> None:
        self._undecided(node, _SUBSHELL, [[part] for part in node.named_children])

    def read_subshell(self, node: Node) -> None:
        self._undecided(node, _SUBSHELL, [node.children])

    def read_error(self, node: Node) -> None:
        self._undecided(node, _UNPARSED, [node.children])

    def _undecided(self, node: Node, why: str, bodies: Sequence[Sequence[Node]], names: Iterable[str] = ()) -> None:
        """Read code whose outcome is not followed: at most one of the bodies is run, and in it the values of these
        variables are not known. In doubt are what a body sets, and a command's name where a condition chooses it."""
        reason = f"{why} (line {self.source.line(node)})"
        branches: list[Mapping[str, Variable]] = []
        for body in bodies:
            first = len(self.commands)
            with self._inside(self.source, self.variables.new_child(dict.fromkeys(names, unknown(reason)))):
                self._run(body)
                branches.append(self.variables.maps[0])
            if why == _CONDITION:
                self.commands[first:] = [(doubted(name, reason), *words) for name, *words in self.commands[first:]]
        for name in dict.fromkeys(chain(*branches)):
            old, values = self.variables.get(name, ()), [branch[name] for branch in branches if name in branch]
            self.budget.spend_on(*[old, *values] * 4)
            self.variables[name] = either(old, values, reason)

    def read_list(self, node: Node) -> bool | None:
        """Operands of `&&` or `||`."""
        parts = [child for child in node.children if child.type != "comment"]
        if len(parts) != 3:
            return self._run(parts)
        status = self._run(parts[:1])
        if status is None:
            self._undecided(node, _CONDITION, [parts[2:]])
        return self._run(parts[2:]) if status is (parts[1].type == "&&") else status

    def read_if_statement(self, node: Node) -> None:
        self._choose(node, ((test is None or self._run(test), body) for test, body in _branches(node)))

    def read_case_statement(self, node: Node) -> None:
        subject = self.certain(self.value(node.child_by_field_name("value")))
        items = [item for item in node.named_children if item.type == "case_item"]
        self._choose(node, ((self._is_case(subject, item), item.children) for item in items))

    def _is_case(self, subject: str | None, item: Node) -> bool | None:
        """True if one of the case's globs matches; None where that is not known."""
        patterns = [self.source.written(node).strip("\"'") for node in item.children_by_field_name("value")]
        if "*" in patterns:
            return True
        if subject is None or any("$" in pattern for pattern in patterns):
            return None
        return any(self._matches(subject, pattern) for pattern in patterns)

    def _choose(self, node: Node, branches: Iterable[tuple[bool | None, Sequence[Node]]]) -> None:
        """Read the branch that is taken, of these (condition, body), or all that may be."""
        bodies, is_taken = [], False
        for status, body in branches:
            if status is not False:
                bodies.append(body)
            if is_taken := status is True:
                break
        if is_taken and len(bodies) == 1:
            self._run(bodies[0])
        else:
            self._undecided(node, _CONDITION, bodies)

    def read_arithmetic_command(self, node: Node) -> bool | None:
        """`(( ))`: a condition. What it sets is in doubt."""
        why = f"it is set by an arithmetic command (line {self.source.line(node)})"
        for names in _CHANGED_NUMBER.findall(self.source.written(node)):
            self.variables[names[0] or names[1]] = unknown(why)
        number = self.certain((self.calculated(node),))
        return None if number is None else number != "0"

    def read_test_command(self, node: Node) -> bool | None:
        """`[ ]` and `[[ ]]` of one comparison whose operands are certain."""
        test = node.named_children[0] if len(node.named_children) == 1 else node
        if test.type == "unary_expression":
            operator, text = self.source.written(test.children[0]), self._operand(test.children[-1])
            return None if text is None or operator not in ("-n", "-z") else (text != "") == (operator == "-n")
        if test.type != "binary_expression" or len(test.children) != 3:
            return None if (text := self._operand(test)) is None else text != ""
        operator, right = self.source.written(test.children[1]), test.children[2]
        a, b = self._operand(test.children[0]), self._operand(right)
        if a is None or b is None:
            return None
        if operator in ("=", "==", "!="):
            is_glob = node.children[0].type == "[[" and right.type in ("word", "extglob_pattern")
            return (self._matches(a, self.source.written(right)) if is_glob else a == b) == (operator != "!=")
        sign = _COMPARISONS.get(operator)
        return None if sign is None or (number := arithmetic(f"({a}) {sign} ({b})")) is None else number != 0

    def _operand(self, node: Node) -> str | None:
        return None if node.type.endswith(("_expression", "_command")) else self.certain(self.value(node))

    def _matches(self, text: str, glob: str) -> bool:
        """True if the text matches the glob, whose work is about their lengths multiplied."""
        self.budget.spend(1 + len(glob) * (1 + len(text) // 64))
        return fnmatchcase(text, glob)

    def read_for_statement(self, node: Node) -> None:
        """A loop is read once. What it sets from turn to turn is not known in it, nor what it has set after it."""
        written = self.source.written(node)
        self.budget.spend(4 * len(written))
        names = [self.source.written(name) for name in node.children_by_field_name("variable")]
        parts = [child for child in node.children if child.type != "variable_assignment"]
        self._undecided(node, _LOOP, [parts], (*names, *_REPLACED.findall(written)))

    read_while_statement = read_c_style_for_statement = read_for_statement

    def read_function_definition(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self._functions[self.source.written(name)] = self.source, body

    def _call(self, name: str) -> None:
        """Read a function where it is called, without its arguments; one that calls itself is read once."""
        source, body = self._functions.pop(name)
        outer, self.unset_parameter = self.unset_parameter, _ARGUMENT
        with self._inside(source, self.variables):
            self._undecided(body, _FUNCTION, [[body]])
        self.unset_parameter = outer
        self._functions.setdefault(name, (source, body))

    def read_redirected_statement(self, node: Node) -> bool | None:
        """A command with redirections, and what it writes to a file: known is a here-document that `cat` copies."""
        bodies, first, parts = node.children_by_field_name("body"), len(self.commands), [*_redirects(node)]
        document = next((self._document(each) for each in parts if each.type == "heredoc_redirect"), None)
        is_command = [body.type for body in bodies] == ["command"]
        status = self.read_command(bodies[0], parts, document) if is_command else self._run(bodies)
        self._run([each for part in parts for each in part.named_children if each.type == "pipeline"])
        is_copied = is_command and [[*map(text_of, words)] for words in self.commands[first:]] == [["cat"]]
        is_certain = is_copied and len(self.variables.maps) == 1 and document is not None and not doubt_of(document)
        for part in parts:
            target, operator = part.child_by_field_name("destination"), part.children[0].type
            if target is not None and ">" in operator:
                path = posixpath.normpath(text_of(self.value(target)))
                is_known = is_certain and operator == ">" and path not in self.files
                self.files[path] = document if is_known else None
        return status

    def _document(self, node: Node) -> Value:
        """The text of a here-document; one whose end is quoted is kept as it is written."""
        parts = {child.type: child for child in node.named_children}
        body = parts.get("heredoc_body")
        if body is None:
            return ()
        if self.source.written(parts["heredoc_start"]).startswith(("'", '"', "\\")):
            return tuple(self.source.literal(body.start_byte, body.end_byte))
        return self.spliced(body, body.start_byte, body.end_byte, in_quotes)

    def read_command(self, node: Node, redirects: Iterable[Node] = (), document: Value | None = None) -> bool | None:
        name = node.child_by_field_name("name")
        prefixes = [child for child in node.named_children if child.type == "variable_assignment"]
        gap = self.source.text[prefixes[-1].end_byte : name.start_byte] if prefixes and name else b""
        if b"\n" in gap.replace(b"\\\n", b""):
            # The parser takes `A=1 B=2` on the line before for a part of the command.
            self._run(prefixes)
            prefixes = []
        nodes = [*node.named_children]
        for each in (*_redirects(node), *redirects):
            # The parser has the words behind a redirection inside of it.
            nodes += [*each.children_by_field_name("argument"), *each.children_by_field_name("destination")[1:]]
        words = tuple(self.words(nodes))
        if not words:
            return self._run(prefixes)
        with self._inside(self.source, self.variables.new_child()):
            self._run(prefixes)
            assigned = self.variables.maps[0]
        if text_of(words[0]) not in _SET_VARIABLES:
            self.exported_for_one |= assigned
        return self._execute(words, self.source.line(node), document, assigned)

    def _execute(
        self, words: tuple[Value, ...], line: int, document: Value | None, given: Mapping[str, Variable]
    ) -> bool | None:
        name, texts = text_of(words[0]), [*map(text_of, words)]
        command = (*self._starter, *words)
        self.budget.spend(400 + sum(map(len, command)))
        if name == "eval":
            script = [piece for word in words[1:] for piece in (*word, Piece(" ", line))]
            if script and script[0].doubt == OUTPUT:
                what = f"The output of a command that line {line} evaluates"
                self.notes.append(f"{what} was not read; what it sets is missing.")
            self.read_source(parse_value(self.budget.value(script), self.budget))
            return None
        if name.startswith("--") and self.commands:
            self.notes.append(f"Line {line}: {name} was not read; bash ends the command before it.")
            self.commands[-1] += tuple(doubted(word, "bash ends the command before it") for word in words)
            return None
        self.commands.append(command)
        if called := [text for text in texts[:2] if text in self._functions]:  # the second one in `time f`
            self._call(called[0])
        elif name in ("source", "."):
            self._source_file((words[1:2] or words)[0], line)
        elif name in ("cd", "pushd"):
            if "".join(texts[1:]).strip("${}") not in (".", "SLURM_SUBMIT_DIR"):
                self.variables["PWD"] = unknown("the script changes the folder")
        elif name in _SET_VARIABLES or (name == "printf" and "-v" in texts):
            self._set_by(texts, line, document)
        elif (nested := _nested_script(words, document)) is not None:
            self._nested(*nested, given)
        self.files |= dict.fromkeys(_json_files(texts, document))
        return None if doubt_of(words[0]) else _STATUS.get(name)

    def _nested(self, starter: tuple[Value, ...], script: Value, given: Mapping[str, Variable]) -> None:
        """Read a script that another shell runs. Its commands have the words before it, which may start their ranks."""
        exported = {name: value for name, value in self.variables.items() if name in self.exported or name == "PWD"}
        outer, self._starter = self._starter, (*self._starter, *starter)
        with self._inside(self.source, ChainMap({**exported, **given})):
            self.read_source(parse_value(script, self.budget))
        self._starter = outer

    def _set_by(self, words: Sequence[str], line: int, document: Value | None) -> None:
        """`read`, `let`, `printf -v`: they set variables to what is not read, but for a here-document that `read -d`
        takes as a whole."""
        names = [re.search(r"[A-Za-z_]\w*", word) for word in words[1:] if not word.startswith("-")]
        self.variables |= {name[0]: unknown(f"it is set by {words[0]} (line {line})") for name in names if name}
        if document is not None and "-d" in words:
            self.variables[words[-1]] = (document,)

    def _source_file(self, name: Value, line: int) -> None:
        """Read a file in the script's folder, or below it, that the script itself does not write."""
        path = posixpath.normpath(text_of(name))
        is_readable = doubt_of(name) is None and path.partition("/")[0] not in ("", "..") and path not in self.files
        if not name or name[0].text != ".":
            is_readable &= doubt_of(self.variables["PWD"][0]) is None
        try:
            if self._read_file is None or not is_readable:
                raise OSError
            text = self._read_file(text_of(name))
        except (InputError, OSError):
            named = text_of(name) if _PLAIN_PATH.fullmatch(text_of(name)) else f"The file that line {line} sources"
            self.notes.append(f"{named} was not read; what it sets is missing.")
        else:
            self.read_source(parse_script(text, self.budget, line))


def _redirects(node: Node) -> Iterator[Node]:
    """The redirections; the parser has those behind a here-document inside of it."""
    for child in node.children_by_field_name("redirect"):
        yield child
        yield from _redirects(child)


def _json_files(words: Sequence[str], document: Value | None) -> Iterator[str]:
    """JSON files that a command is told, in its words or its here-document, and which it may write. A training only
    reads its configuration."""
    for part in re.split(r"[^\w./${}-]+", _DS_CONFIG.sub("", " ".join((*words, text_of(document or ()))))):
        if part.endswith(".json"):
            yield posixpath.normpath(part)


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
