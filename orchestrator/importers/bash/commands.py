"""Commands of a script: their words, what they write, the scripts that they run, and the builtins."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from orchestrator.importers.bash.assignments import Assigner
from orchestrator.importers.bash.conditions import OPERATORS, Operand, Token, condition
from orchestrator.importers.bash.environment import Environment
from orchestrator.importers.bash.files import Files, changed_files, given_files, output_text, path_of
from orchestrator.importers.bash.nested import assigned_by_env, heredoc_is_script, nested_script, script_of_file
from orchestrator.importers.bash.syntax import Source, parse_script, parse_value
from orchestrator.importers.bash.values import (
    Piece,
    Undecided,
    Value,
    Variable,
    is_decided,
    known_text,
    names_in,
    text_of,
    whole_number,
)
from search_spaces.errors import InputError

if TYPE_CHECKING:
    from orchestrator.importers.bash.syntax import Node


_DEEPEST = 8
_MOST_COMMANDS = 10_000
_SUCCEED = ("cd", "pushd", "popd", "mkdir", "echo", "printf", "set", "shopt", "module", "source", ".", "cp", "ulimit")
_PLAIN_PATH = re.compile(r"[\w./~+{}$-]+")
"""A path without blanks, commands and addresses, which may hold a secret."""
_NO_WORDS = ("variable_assignment", "comment", "ERROR")


class ScriptEnd(Exception):
    """The script or subshell ends here; `error_line` is the line of an exit that reports an error."""

    def __init__(self, error_line: int | None = None):
        super().__init__()
        self.error_line = error_line


class FunctionEnd(Exception):
    """The function or sourced file ends here."""


class CommandReader(Assigner):
    """Reads commands. What a script consists of beside them is read by its subclass."""

    def __init__(self, read_file: Callable[[str], str] | None):
        super().__init__()
        self.commands: list[tuple[Value, ...]] = []
        self.files_before: list[Files] = []
        self.prefix_exports: dict[str, str] = {}
        self.started_by: list[int | None] = []
        self.jobs: dict[int, Value] = {}
        self._starter: int | None = None
        self._read_file = read_file
        self._functions: dict[str, tuple[Source, Node]] = {}

    def _read_source(self, source: Source) -> bool | None:
        raise NotImplementedError

    def _statement(self, node: Node) -> bool | None:
        raise NotImplementedError

    def _list(self, node: Node, redirected: Node | None = None) -> bool | None:
        raise NotImplementedError

    def _call(self, name: str, arguments: tuple[Value, ...] | None) -> bool | None:
        raise NotImplementedError

    def _test(self, node: Node) -> bool | None:
        is_double = node.children[0].type == "[["
        tokens = [token for child in node.children[1:-1] for token in self._tokens(child, is_double)]
        return self._condition(tokens)

    def _condition(self, tokens: Sequence[Token]) -> bool | None:
        self._read.update(name for token in tokens if isinstance(token, Operand) for name in names_in(token.value))
        return condition(tokens, self.log.budget)

    def _tokens(self, node: Node, is_double: bool) -> Iterator[Token]:
        if node.type.endswith("_expression"):
            for child in node.children:
                yield from self._tokens(child, is_double)
        elif node.type == "test_operator" or not node.is_named:
            yield self._source.written(node)
        elif node.type == "extglob_pattern" or (is_double and node.type in ("word", "regex")):
            yield Operand(self._expander.value(node), self._source.written(node))
        else:
            yield Operand(self._expander.value(node))

    def _redirected(self, node: Node) -> bool | None:
        """A command with redirections: what it writes to a file, and a script that it passes to a shell."""
        body = node.child_by_field_name("body")
        if body is not None and body.type == "list":
            return self._list(body, node)
        return self._redirected_body(node, body)

    def _redirected_body(self, node: Node, body: Node | None) -> bool | None:
        first = len(self.commands)
        extra, files, document = self._redirections(node)
        if body is None:
            status: bool | None = True
        elif body.type == "command":
            status = self._command(body, extra)
        else:
            status = self._statement(body)
        added = self.commands[first:]
        command = [text_of(word) for word in added[-1]] if added else []
        if document is not None and command[:1] == ["read"] and "-d" in command:
            self.environment.variables[command[-1]] = document
        elif document is not None and heredoc_is_script(command):
            self._nested(document, self.environment.of_exported(), len(self.commands) - 1)
        elif document is not None and added:
            self._write([(name, None) for name in given_files(added[-1], document, self.environment.files)])
        is_one = len(added) == 1 and body is not None and body.type == "command"
        text = output_text(added[0], document, self.environment.files) if is_one else None
        tees = [word for word in command[1:] if command[0] == "tee" and not word.startswith("-")]
        self._write([(name, text) for name in (*files, *tees)], self._appends(node) or (bool(tees) and "-a" in command))
        return status

    def _write(self, written: Sequence[tuple[str, Value | None]], appends: bool = False) -> None:
        """Note what is in these files from now on. Commands before keep the files that they found."""
        if not written:
            return
        files = dict(self.environment.files)
        for name, text in written:
            old = files.get(path_of(name)) if appends else ()
            files[path_of(name)] = None if old is None or text is None else self.log.budget.value((*old, *text))
        self.log.budget.spend(len(files))
        self.environment.files = files

    @staticmethod
    def _appends(node: Node) -> bool:
        return any(child.children and child.children[0].type in (">>", "&>>") for child in node.named_children)

    def _redirections(self, node: Node) -> tuple[list[Node], list[str], Value | None]:
        """(arguments that stand behind a redirection, names of the files written, the here-document)."""
        extra: list[Node] = []
        files: list[str] = []
        document: Value | None = None
        for child in node.children_by_field_name("redirect"):
            if child.type == "file_redirect":
                targets = child.children_by_field_name("destination")
                extra += targets[1:]
                operators = [c.type for c in child.children if not c.is_named]
                if targets and operators and operators[0] in (">", ">>", "&>", "&>>", ">|"):
                    files.append(text_of(self._expander.value(targets[0])))
            elif child.type == "heredoc_redirect":
                document = self._document(child)
                more, written, _ = self._redirections(child)
                extra += [*child.children_by_field_name("argument"), *more]
                files += written
                files += self._piped(child)
        return extra, files, document

    def _piped(self, node: Node) -> list[str]:
        """Names of the files to which `tee` writes a here-document that is piped to it; what else it is piped to writes
        a text that is not known."""
        pipelines = [child for child in node.named_children if child.type == "pipeline"]
        commands = [list(nodes_of(pipeline, "command")) for pipeline in pipelines]
        words = [[text_of(word) for word in self._expander.words(c.named_children)] for each in commands for c in each]
        targets = [
            t for p in pipelines for r in nodes_of(p, "file_redirect") for t in r.children_by_field_name("destination")
        ]
        names = [text_of(self._expander.value(target)) for target in targets]
        tees = [word for command in words if command[:1] == ["tee"] for word in command[1:] if not word.startswith("-")]
        self._write([(name, None) for name in (*names, *tees)])
        return tees if len(words) == 1 else []

    def _document(self, node: Node) -> Value:
        start = next((self._source.written(c) for c in node.named_children if c.type == "heredoc_start"), "")
        body = next((c for c in node.named_children if c.type == "heredoc_body"), None)
        if body is None:
            return ()
        if start[:1] in ("'", '"', "\\"):
            value = tuple(self._source.literal(body.start_byte, body.end_byte))
        else:
            value = self._expander.spliced(body)
        if node.children[0].type == "<<-":
            value = tuple(replace(piece, text=piece.text.lstrip("\t")) for piece in value)
        return value

    def _command(self, node: Node, extra: Sequence[Node] = ()) -> bool | None:
        own_extra, _, _ = self._redirections(node)
        nodes = [c for c in node.named_children if c.type not in _NO_WORDS and not c.type.endswith("_redirect")]
        words = self._expander.words([*nodes, *own_extra, *extra])
        prefixes = [child for child in node.named_children if child.type == "variable_assignment"]
        before = self._prefixed(prefixes)
        if not words:
            return True
        exported = self.environment.exported
        self.environment.exported = exported | before.keys()
        status = self._execute(tuple(words))
        self.environment.exported = exported
        for name, value in before.items():
            self.environment.variables.pop(name, None)
            if value is not None:
                self.environment.variables[name] = value
        return status

    def _prefixed(self, nodes: Sequence[Node]) -> dict[str, Variable | None]:
        """Assign what stands before a command; the values before."""
        before: dict[str, Variable | None] = {}
        for node in nodes:
            target = node.child_by_field_name("name")
            if target is not None:
                name = self._source.written(target)
                before[name] = self.environment.variables.get(name)
                self._assign(node)
        self.prefix_exports |= dict(self.environment.known(before))
        return before

    def _execute(self, words: tuple[Value, ...]) -> bool | None:
        name = text_of(words[0])
        self.log.budget.spend(sum(len(word) for word in words))
        if name in self._functions and self._depth < _DEEPEST and is_decided(words[0]):
            return self._call(name, words[1:])
        if len(self.commands) >= _MOST_COMMANDS:
            self.log.budget.spend(2**30)
        self.commands.append(words)
        self.started_by.append(self._starter)
        self.files_before.append(self.environment.files)
        self._write([*changed_files(words, self.environment.files)])
        if (builtin := self._BUILTINS.get(name)) is not None:
            return builtin(self, words)
        if not self._run_script(words):
            self._write([(given, None) for given in given_files(words, None, self.environment.files)])
        return True if name in _SUCCEED else None

    def _run_script(self, words: tuple[Value, ...]) -> bool:
        """Read the script that another shell runs by this command; False where there is none."""
        environment = self.environment.of_exported()
        environment.start_with(assigned_by_env(words))
        starter = len(self.commands) - 1
        if (script := nested_script(words)) is not None:
            is_remote = text_of(words[0]) in ("ssh", "pdsh")
            self._nested(script, Environment() if is_remote else environment, starter)
            return True
        if (found := script_of_file(words, self.files_before[-1])) is not None:
            environment.positional = found[1]
            self._nested(found[0], environment, starter)
            return True
        return False

    def _nested(self, script: Value, environment: Environment, starter: int) -> None:
        """Read a script that another shell runs, started by this command."""
        if text_of(self.commands[starter][0]) == "sbatch":
            self.jobs[starter] = script
        outer, self._starter = self._starter, starter
        try:
            with self._in_shell(environment):
                self._evaluate(script)
        finally:
            self._starter = outer

    @contextmanager
    def _in_shell(self, environment: Environment) -> Iterator[None]:
        """Read with the variables of another shell, whose end does not end this one."""
        outer, self.environment = self.environment, environment
        environment.files = outer.files
        try:
            with suppress(ScriptEnd, FunctionEnd):
                yield
        finally:
            outer.files, self.environment = self.environment.files, outer

    def _evaluate(self, script: Value) -> bool | None:
        if self._depth >= _DEEPEST or not script:
            return None
        with self._deeper():
            return self._read_source(parse_value(script, self.log.budget))

    def _eval(self, words: tuple[Value, ...]) -> bool | None:
        blank = Piece(" ", words[0][0].line)
        return self._evaluate(tuple(piece for word in words[1:] for piece in (*word, blank)))

    def _source_file(self, words: tuple[Value, ...]) -> bool | None:
        if len(words) < 2:
            return None
        path = text_of(words[1])
        if (script := self.environment.files.get(path_of(path))) is not None:
            with suppress(FunctionEnd):
                self._evaluate(script)
            return True
        try:
            is_known = known_text(words[1]) is not None and path_of(path) not in self.environment.files
            if self._read_file is None or self._depth >= _DEEPEST or not is_known:
                raise OSError
            text = self._read_file(path)
        except (InputError, OSError):
            named = path if _PLAIN_PATH.fullmatch(path) else f"The file that line {words[0][0].line} sources"
            self.log.note(f"{named} was not read; what it sets is missing.")
            return True
        self.log.budget.spend(len(text))
        with suppress(FunctionEnd), self._deeper():
            self._read_source(parse_script(text, self.log.budget, words[0][0].line))
        return True

    def _exit(self, words: tuple[Value, ...]) -> bool | None:
        status = whole_number(text_of(words[1])) if len(words) > 1 else None
        raise ScriptEnd(words[0][0].line if status else None)

    def _return(self, words: tuple[Value, ...]) -> bool | None:
        raise FunctionEnd

    def _exec(self, words: tuple[Value, ...]) -> bool | None:
        if len(words) == 1:
            return True
        self._run_script(words)
        raise ScriptEnd

    def _set(self, words: tuple[Value, ...]) -> bool | None:
        texts = [text_of(word) for word in words]
        if "--" in texts:
            self.environment.positional = words[texts.index("--") + 1 :]
        return True

    def _shift(self, words: tuple[Value, ...]) -> bool | None:
        count = whole_number(text_of(words[1])) if len(words) > 1 else 1
        if self.environment.positional is not None and count is not None:
            self.log.budget.spend(len(self.environment.positional))
            self.environment.positional = self.environment.positional[count:]
        return True

    def _change_directory(self, words: tuple[Value, ...]) -> bool | None:
        here = self.environment.variables.get("PWD")
        target = words[-1] if len(words) > 1 else ()
        path: Variable = Undecided.VALUE
        if target and is_decided(target) and isinstance(here, tuple) and is_decided(here):
            text = posixpath.normpath(posixpath.join(text_of(here), text_of(target)))
            path = (Piece(text, target[0].line),)
        self.environment.variables["PWD"] = path
        return True

    def _read_variables(self, words: tuple[Value, ...]) -> bool | None:
        """`read`, `mapfile`, `getopts`, `printf -v`: they set variables to what is not in the script."""
        names = [text_of(word) for word in words[1:]]
        if text_of(words[0]) == "printf":
            names = [name for option, name in pairwise(names) if option == "-v"]
        for name in names:
            if re.fullmatch(r"[A-Za-z_]\w*", name):
                self.environment.variables[name] = Undecided.VALUE
        return True

    def _let(self, words: tuple[Value, ...]) -> bool | None:
        status: bool | None = True
        for word in words[1:]:
            status = self._calculate(word) if word else None
        return status

    def _test_words(self, words: tuple[Value, ...]) -> bool | None:
        texts = [text_of(word) for word in words[1:]]
        is_operator = [text in OPERATORS or re.fullmatch(r"-\w", text) for text in texts]
        return self._condition(
            [t if is_op else Operand(w) for t, is_op, w in zip(texts, is_operator, words[1:], strict=True)]
        )

    _BUILTINS: ClassVar[dict[str, Callable[[CommandReader, tuple[Value, ...]], bool | None]]] = {
        "eval": _eval,
        "source": _source_file,
        ".": _source_file,
        "exit": _exit,
        "return": _return,
        "exec": _exec,
        "set": _set,
        "shift": _shift,
        "cd": _change_directory,
        "pushd": _change_directory,
        "read": _read_variables,
        "mapfile": _read_variables,
        "readarray": _read_variables,
        "getopts": _read_variables,
        "printf": _read_variables,
        "let": _let,
        "test": _test_words,
        "true": lambda self, words: True,
        ":": lambda self, words: True,
        "false": lambda self, words: False,
    }


def nodes_of(node: Node, kind: str, without: Node | None = None) -> Iterator[Node]:
    """The nodes of a kind inside, not looking into `without`."""
    for child in node.named_children:
        if child == without:
            continue
        if child.type == kind:
            yield child
        else:
            yield from nodes_of(child, kind, without)
