"""Values that trainers' own parsers read, with modules in place of those that are not installed.

    python -m benchmarks.real_parsers PARSER CHECKOUT QUESTIONS.json ANSWERS.json

PARSER is one of megatron-lm, megatron-deepspeed and gpt-neox. A question has `words`, the arguments of pretrain_gpt.py
or paths of YAML files, and `world`, the number of ranks, null where it is unknown. An answer has `values` by the
parser's names, `defaults`, the words that the parser does not know in `unknown`, and in `error` why there are no
values. `checked` says whether the values also passed the trainer's own checks, which fill in derived ones.

It is a program of its own: two of the trainers have a package called megatron.
"""

from __future__ import annotations

import argparse
import builtins
import json
import os
import sys
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import typing_extensions

Answer = dict[str, Any]
_OWN_PACKAGES = ("megatron", "tools")


def main() -> None:
    name, checkout, questions, answers = sys.argv[1:]
    with warnings.catch_warnings(action="ignore"):
        given = [_answered(question, checkout, name) for question in json.loads(Path(questions).read_text())]
    Path(answers).write_text(json.dumps(given, default=str))


def _answered(question: Mapping[str, Any], checkout: str, name: str) -> Answer:
    prepare(Path(checkout), _STAND_INS[name])
    try:
        return _PARSERS[name](question["words"], question["world"])
    except (Exception, SystemExit) as error:
        return {"error": f"{type(error).__name__}: {error}", "values": {}}


def prepare(checkout: Path, missing: Sequence[str]) -> None:
    """Make a checkout's packages importable. What they import is a mock if `missing` names it, or has `*` and it is not
    installed."""
    if str(checkout) in sys.path:
        return
    sys.path.insert(0, str(checkout))
    typing.override = typing_extensions.override  # Python 3.12
    real_import = builtins.__import__

    def import_or_mock(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        importer = str((globals or {}).get("__name__", "")).partition(".")[0]
        package = name.partition(".")[0]
        is_theirs = importer in _OWN_PACKAGES and level == 0 and package not in _OWN_PACKAGES
        if is_theirs and package in missing:
            return _mock()
        try:
            return real_import(name, globals, locals, fromlist, level)
        except ImportError:
            if is_theirs and "*" in missing:
                return _mock()
            raise

    builtins.__import__ = import_or_mock


_STAND_INS = {"megatron-lm": ("triton",), "megatron-deepspeed": ("*",), "gpt-neox": ("*",)}
"""Megatron-LM asks itself what is installed, triton apart."""


def _mock() -> MagicMock:
    mock = MagicMock()
    mock.__version__ = "3.5.0"
    return mock


def _megatron_lm(words: Sequence[str], world: int | None) -> Answer:
    import torch
    from megatron.training import arguments  # type: ignore[import-not-found]

    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(major=9, minor=0)
    parser = _lm_parser(arguments.add_megatron_arguments)
    return _by_argparse(parser, words, world, arguments.parse_args, arguments.validate_args)


@cache
def _lm_parser(add_arguments: Callable[..., argparse.ArgumentParser]) -> argparse.ArgumentParser:
    return add_arguments(argparse.ArgumentParser(allow_abbrev=False))


def _megatron_deepspeed(words: Sequence[str], world: int | None) -> Answer:
    import deepspeed
    from megatron import arguments  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in dir(arguments):
        if name.startswith("_add_") and name.endswith("_args"):
            getattr(arguments, name)(parser)
    deepspeed.add_config_arguments(parser)
    return _by_argparse(parser, words, world, arguments.parse_args, arguments.validate_args)


def _by_argparse(
    parser: argparse.ArgumentParser,
    words: Sequence[str],
    world: int | None,
    parse: Callable[..., argparse.Namespace],
    validate: Callable[[argparse.Namespace], None],
) -> Answer:
    parser.exit_on_error = False
    defaults = vars(parser.parse_args([]))
    read, empty = without_empty(parser, words)
    values, unknown = parser.parse_known_args(read)
    names = {option: action.dest for option, action in parser._option_string_actions.items()}
    answer = {"values": vars(values), "defaults": defaults, "unknown": unknown, "empty": empty, "names": names}
    return answer | {"error": None} | _checked(read, values, world, parse, validate)


def without_empty(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(the words without options that lack their value, those options): a variable that nobody set is no word."""
    read: list[str] = []
    empty = []
    for word, following in pairwise([*words, "--"]):
        action = parser._option_string_actions.get(word)
        takes_one = action is not None and action.nargs in (None, "+")
        if takes_one and (following.startswith("--") or following == ""):
            empty.append(word)
        elif word != "":
            read.append(word)
    return read, empty


def _checked(
    words: Sequence[str],
    values: argparse.Namespace,
    world: int | None,
    parse: Callable[..., argparse.Namespace],
    validate: Callable[[argparse.Namespace], None],
) -> Answer:
    """The values after the trainer's own checks, if they pass."""
    degrees = [
        getattr(values, f"{axis}_parallel_size", 1) or 1 for axis in ("tensor_model", "pipeline_model", "context")
    ]
    ranks = degrees[0] * degrees[1] * degrees[2]
    os.environ |= {"WORLD_SIZE": str(world or ranks), "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    sys.argv = ["pretrain_gpt.py", *words]
    try:
        checked = parse(ignore_unknown_args=True)
        validate(checked)
    except (Exception, SystemExit) as error:
        return {"checked": False, "failed_check": f"{type(error).__name__}: {error}"}
    return {"checked": True, "values": vars(checked)}


def _gpt_neox(words: Sequence[str], world: int | None) -> Answer:
    import torch
    from megatron.neox_arguments import NeoXArgs  # type: ignore[import-not-found]

    torch.cuda.device_count = lambda: world or 8
    values = NeoXArgs.from_ymls(list(words))
    return {"error": None, "values": vars(values), "unknown": [], "checked": True}


_PARSERS: Mapping[str, Callable[[Sequence[str], int | None], Answer]] = {
    "megatron-lm": _megatron_lm,
    "megatron-deepspeed": _megatron_deepspeed,
    "gpt-neox": _gpt_neox,
}

if __name__ == "__main__":
    main()
