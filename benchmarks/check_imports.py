"""Oracle of `parlay init --from`: every option of real launch scripts and configurations, and what became of it.

    PARLAY_DOWNLOADS=FOLDER python -m benchmarks.check_imports [--project NAME] [--file TEXT] [--json] [--all]

FOLDER has checkouts named Megatron-LM, Megatron-Bridge, gpt-neox, nanotron, Megatron-DeepSpeed, DeepSpeedExamples and
accelerate; those that are not there are left out. Every launch script runs under bash with stubs in place of all
programs (stubbed_runs.py), so name only checkouts that you trust. What the training command is really given is
parsed by the trainer's own parser (real_parsers.py), and compared with the search file that Parlay writes.

An option is read if it decides a field that agrees; of no effect if Parlay's table says so of it or of its value, or it
has the parser's default; noted if a note names it; refused if the file is. Every other one, and every field that
differs without a note, is silent. The exit code is 1 if anything is silent or an import ended in a traceback.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import re
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.config_expectations import expected_of_config, flat, load_config
from benchmarks.import_cases import PROJECTS, Case, Form, cases
from benchmarks.import_expectations import MISSING, Expected, SearchFile, launcher_sizes, megatron
from benchmarks.parser_process import DOWNLOADS, ask
from benchmarks.stubbed_runs import StubbedBash
from orchestrator import importers
from orchestrator.config.init import render_from
from orchestrator.importers.option_table import Handling, OptionTable
from search_spaces.errors import InputError

OUTCOMES = ("read", "no effect", "noted", "kept", "refused", "silent")


@dataclass(frozen=True)
class Import:
    """Result of `parlay init --from` on a file: a search file with notes, problems, or a traceback."""

    text: str = ""
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    traceback: str = ""


@dataclass
class Result:
    """Options of one file by outcome."""

    project: str
    file: str
    imported: Import
    outcome_of: dict[str, str] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    """Sentences on what is silent."""
    is_training: bool = True
    remark: str = ""
    """Reason why there is nothing to compare with, else empty."""


@dataclass(frozen=True)
class Command:
    """A training command that a script started: the launcher's words, and the words after the program."""

    launcher: tuple[str, ...]
    program: str
    arguments: tuple[str, ...]
    deepspeed_config: Mapping[str, Any] = field(default_factory=dict)
    """Content of the configuration that it names."""


def import_file(path: Path) -> Import:
    """The import of a file as `parlay init --from` does it."""
    try:
        text, notes = render_from(path)
    except InputError as error:
        return Import(problems=tuple(p.rule or p.message for p in error.problems))
    except Exception:
        return Import(traceback=traceback.format_exc())
    return Import(text, tuple(notes))


_STARTERS = re.compile(r"(torchrun|python[\d.]*|deepspeed|accelerate|ft_launcher)")
_CHARACTERISTIC = ("num-layers", "hidden-size", "tensor-model-parallel-size", "micro-batch-size", "seq-length")


def training_command(started: Sequence[Sequence[str]]) -> Command | None:
    """The first command with most of Megatron's characteristic options; None without any Python program."""
    found = [command for words in started if (command := _split(words))]
    return max(found, key=_num_characteristic, default=None)


def _num_characteristic(command: Command) -> int:
    names = {option_name(word) for word in command.arguments}
    return len(names & {*_CHARACTERISTIC})


def option_name(word: str) -> str:
    """`--global_batch_size=8` is global-batch-size; "" for another word."""
    return word[2:].partition("=")[0].replace("_", "-") if word.startswith("--") else ""


def _value_of(words: Sequence[str], option: str) -> str | None:
    """Value of an option, as `--option value` or `--option=value`."""
    for word, following in pairwise([*words, ""]):
        if option_name(word) == option:
            return word.partition("=")[2] or following
    return None


def _of_deepspeed_config(project: str, config: Mapping[str, Any]) -> Iterator[Expected]:
    """Expectations from the configuration that the training command names."""
    for one in expected_of_config(project, config, None) if config else ():
        yield replace(one, options=(*one.options, "deepspeed-config"))


def _split(words: Sequence[str]) -> Command | None:
    """The command split at its Python program; None if it starts none."""
    begins = next((n for n, word in enumerate(words) if _STARTERS.fullmatch(Path(word).name)), None)
    if begins is None:
        return None
    for n, word in enumerate(words[begins:], begins):
        is_launcher = word.startswith("torch.distributed")
        if word.endswith(".py") or (words[n - 1] == "-m" and n > begins and not is_launcher):
            return Command(tuple(words[begins:n]), word, tuple(words[n + 1 :]))
    return None


def classified(names: Mapping[str, bool], imported: Import, tables: Sequence[OptionTable]) -> Iterator[tuple[str, str]]:
    """(option, outcome) of each option; `names` says whether it has the parser's default."""
    notes = "\n".join(imported.notes)
    for name, is_default in names.items():
        groups = [table.group_of[part] for part in sections(name) for table in tables if part in table.group_of]
        handling = groups[0].handling if groups else None
        is_empty_section = is_default and any(name in table.sections for table in tables)
        if imported.problems:
            yield name, "refused"
        elif any(is_named(part, notes) for part in sections(name)):
            yield name, "noted"
        elif handling is Handling.READ:
            yield name, "read"
        elif handling is Handling.NO_EFFECT or (is_default and handling) or is_empty_section:
            yield name, "no effect"
        elif is_named(name, imported.text) or "\n  template: " in imported.text:
            yield name, "kept"
        else:
            yield name, "silent"


def neox_key(name: str) -> str:
    """A key as GPT-NeoX takes it: dashes are underscores, and deepspeed_extra_args are DeepSpeed's own keys."""
    return name.replace("-", "_").removeprefix("deepspeed_extra_args.")


def is_neutral(name: str, value: Any, tables: Sequence[OptionTable]) -> bool:
    """True for a key without a value, and for a value that a table says is as good as none."""
    return value in (None, False, "", [], {}) or str(value).lower() in neutral_words(name, tables)


def neutral_words(name: str, tables: Sequence[OptionTable]) -> set[str]:
    """Values of a key or option that a table says are as good as none, in lower case."""
    return {word for table in tables for word in table.neutral.get(name, "").lower().split("|")}


def sections(name: str) -> list[str]:
    """`a.b.c`, `a.b` and `a`: a key and the sections that it is in."""
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(len(parts), 0, -1)]


def trains_gpt(program: str) -> bool:
    """False for a program of the frameworks' own that does something else, by its name."""
    return _OTHER_PROGRAMS.search(Path(program).name) is None


_OTHER_PROGRAMS = re.compile(
    "bert|t5|ict|vlm|mamba|hybrid|vision|retro|biencoder|dpr|mimo|_rl|generat|infer|merge|convert|analyz|preproc|eval"
    "|^main.py|serve|quant|prune|export|detoxify|perplexity|samples"
)


def is_named(name: str, notes: str) -> bool:
    """True if a note names this option or field as a word of its own."""
    spelled = "[-_]".join(map(re.escape, re.split("[-_]", name)))
    return re.search(rf"(?<![\w-])(?:--)?{spelled}(?![\w-])", notes) is not None


def differences(expected: Sequence[Expected], imported: Import) -> Iterator[str]:
    """Fields of the search file that differ without a note on them or on an option that decides them."""
    file, notes = SearchFile(imported.text), "\n".join(imported.notes)
    for one in expected:
        value = file.value(one.field)
        name = one.field.rpartition(".")[2]
        if (
            value in (MISSING, one.value)
            or file.tries(one)
            or any(is_named(word, notes) for word in (name, *one.options))
        ):
            continue
        yield f"{one.field} is {value!r}, the trainer has {one.value!r}"


class Oracle:
    """Checks the files of one checkout."""

    def __init__(self, checkout: Path, scratch: Path):
        self.checkout = checkout
        self.scratch = scratch
        self.bash = StubbedBash(checkout, scratch)
        self.is_deepspeed = checkout.name == "Megatron-DeepSpeed"
        self._tables = sorted(option_tables(), key=lambda table: table.trainer != checkout.name)

    def results(self, part: str) -> Iterator[Result]:
        """Results of all files whose path contains `part`."""
        found = [case for case in cases(self.checkout) if part in str(case.path)]
        commands = {case.path: self._command(case) for case in found if case.form is Form.SCRIPT}
        parsed = self._parsed({path: command for path, command in commands.items() if command})
        for case in found:
            imported = import_file(self._path_of(case))
            if case.form is Form.SCRIPT:
                yield self._script_result(case, imported, commands[case.path], parsed.get(case.path))
            elif isinstance(config := load_config(self.checkout / case.path), dict):
                yield self._config_result(case, imported, config)

    def _path_of(self, case: Case) -> Path:
        if case.text is None:
            return self.checkout / case.path
        made = self.bash.copy / case.path.with_suffix(".made.sh")
        made.write_text(case.text)
        return made

    def _command(self, case: Case) -> Command | None:
        script = self._path_of(case).relative_to(self.bash.copy if case.text else self.checkout)
        found = []
        for folder in dict.fromkeys((script.parent, Path())):
            command = training_command([each.words for each in self.bash.commands(script, folder)])
            if command is not None:
                # The next run may write another configuration of this name.
                named = self.bash.copy / folder / (_value_of(command.arguments, "deepspeed-config") or "none")
                config = load_config(named) if named.is_file() else None
                found.append(replace(command, deepspeed_config=config if isinstance(config, dict) else {}))
        return max(found, key=_num_characteristic, default=None)

    def _parsed(self, commands: Mapping[Path, Command]) -> dict[Path, dict[str, Any]]:
        """Answers of the trainer's parser to the commands of its own options."""
        parser = {"Megatron-LM": "megatron-lm", "Megatron-DeepSpeed": "megatron-deepspeed"}.get(self.checkout.name)
        asked = {path: command for path, command in commands.items() if parser and _num_characteristic(command) > 1}
        questions = [{"words": command.arguments, "world": world_size(command.launcher)} for command in asked.values()]
        return dict(zip(asked, ask(parser, self.checkout, questions, self.scratch) if asked else [], strict=True))

    def _script_result(
        self, case: Case, imported: Import, command: Command | None, answer: dict[str, Any] | None
    ) -> Result:
        result = Result(self.checkout.name, str(case.path), imported, is_training=command is not None)
        if command is None or imported.traceback:
            return result
        values, defaults = (answer or {}).get("values", {}), (answer or {}).get("defaults", {})
        names = {option_name(word): False for word in (*command.launcher, *command.arguments) if option_name(word)}
        for option, key in (answer or {}).get("names", {}).items():
            if (name := option_name(option)) in names and key in values:
                is_default = values[key] == defaults.get(key)
                names[name] = is_default or str(values[key]).lower() in neutral_words(name, self._tables)
        result.outcome_of = dict(classified(names, imported, self._tables))
        result.silent = [f"--{name}" for name, outcome in result.outcome_of.items() if outcome == "silent"]
        if answer is None or answer["error"]:
            result.remark = "" if answer is None else f"the trainer's parser says {answer['error']}"
        elif imported.text:
            expected = list(megatron(values, launcher_sizes(command.launcher), self.is_deepspeed))
            if values.get("deepspeed"):
                expected += _of_deepspeed_config(self.checkout.name, command.deepspeed_config)
            result.silent += differences(expected, imported)
        if imported.text and not trains_gpt(command.program):
            result.silent.append(f"{command.program} is no training of a GPT")
        return result

    def _config_result(self, case: Case, imported: Import, config: Mapping[str, Any]) -> Result:
        result = Result(self.checkout.name, str(case.path), imported)
        if imported.traceback:
            return result
        spell = neox_key if self.checkout.name == "gpt-neox" else str
        keys = {spell(name): value for name, value in flat(config).items()}
        names = {name: is_neutral(name, value, self._tables) for name, value in keys.items()}
        result.outcome_of = dict(classified(names, imported, self._tables))
        result.silent = [name for name, outcome in result.outcome_of.items() if outcome == "silent"]
        if imported.text:
            parsed = self._neox_values(case) if self.checkout.name == "gpt-neox" else None
            result.silent += differences(list(expected_of_config(self.checkout.name, config, parsed)), imported)
        return result

    def _neox_values(self, case: Case) -> dict[str, Any]:
        question = {"words": [str(self.checkout / case.path)], "world": None}
        values: dict[str, Any] = ask("gpt-neox", self.checkout, [question], self.scratch)[0]["values"]
        return values


def world_size(launcher: Sequence[str]) -> int | None:
    """Ranks that a launcher starts, if it is told."""
    sizes = launcher_sizes(launcher)
    return sizes["gpus_per_node"] * sizes.get("num_nodes", 1) if "gpus_per_node" in sizes else None


def option_tables() -> list[OptionTable]:
    """All tables of options of the importers."""
    names = [module.name for module in pkgutil.walk_packages(importers.__path__, "orchestrator.importers.")]
    modules = [importlib.import_module(name) for name in sorted(names)]
    found = {
        id(value): value for module in modules for value in vars(module).values() if isinstance(value, OptionTable)
    }
    launcher = [value for module in modules for name, value in vars(module).items() if name == "LAUNCHER_GROUPS"]
    return [table.with_groups(launcher[0]) for table in found.values()]


def table(results: Sequence[Result]) -> Iterator[dict[str, Any]]:
    """Line per project."""
    for project in dict.fromkeys(result.project for result in results):
        found = [result for result in results if result.project == project]
        trainings = [result for result in found if result.is_training]
        outcomes = Counter(outcome for result in trainings for outcome in result.outcome_of.values())
        yield {
            "summary": True,
            "project": project,
            "files": len(found),
            "imported": sum(bool(result.imported.text) for result in found),
            "refused": sum(bool(result.imported.problems) for result in found),
            "crashed": sum(bool(result.imported.traceback) for result in found),
            "no_training": len(found) - len(trainings),
            "options": {outcome: outcomes[outcome] for outcome in OUTCOMES},
            "silent": sum(len(result.silent) for result in found),
            "reasons": dict(Counter(reason for result in found for reason in result.imported.problems).most_common()),
        }


def main() -> None:
    arguments = _arguments()
    downloads = os.environ.get(DOWNLOADS)
    if downloads is None:
        print(f"{DOWNLOADS} names no folder with checkouts: nothing was checked.")
        return
    results = []
    for project in PROJECTS:
        checkout = Path(downloads) / project
        if checkout.is_dir() and arguments.project in ("", project):
            with tempfile.TemporaryDirectory(prefix="parlay-imports-") as scratch:
                results += list(Oracle(checkout, Path(scratch)).results(arguments.file))
    for result in results:
        _show_result(result, arguments)
    for line in table(results):
        print(json.dumps(line) if arguments.json else _readable(line))
    sys.exit(int(any(result.silent or result.imported.traceback for result in results)))


def _show_result(result: Result, arguments: argparse.Namespace) -> None:
    if arguments.json:
        line = {"project": result.project, "file": result.file, "options": result.outcome_of, "silent": result.silent}
        print(json.dumps(line | {"problems": result.imported.problems, "traceback": result.imported.traceback}))
        return
    for sentence in (*result.silent, *filter(None, [result.imported.traceback])):
        print(f"{result.project}/{result.file}: {sentence}")
    if arguments.all and result.remark:
        print(f"{result.project}/{result.file}: not compared, {result.remark}")


def _readable(line: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{line[name]} {name.replace('_', ' ')}" for name in ("files", "imported", "refused", "crashed"))
    options = ", ".join(f"{count} {outcome}" for outcome, count in line["options"].items())
    reasons = "".join(f"\n    {count:4} refused: {reason}" for reason, count in line["reasons"].items())
    return f"= {line['project']}: {counts}, {line['no_training']} no training; options: {options}{reasons}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--project", default="", choices=("", *PROJECTS), help="one checkout")
    parser.add_argument("--file", default="", help="only files whose path contains this")
    parser.add_argument("--all", action="store_true", help="also say which files could not be compared")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    return parser.parse_args()


if __name__ == "__main__":
    main()
