"""Values that trainers' own parsers read, with modules in place of those that are not installed.

    python -m benchmarks.real_parsers PARSER CHECKOUT QUESTIONS.json ANSWERS.json

PARSER is one of megatron-lm, megatron-deepspeed, gpt-neox, nanotron, deepspeed, torchtitan and accelerate. A question
has `words`, the arguments of pretrain_gpt.py or torchtitan.train, or paths of YAML files, and `world`, the number of
ranks, null where it is unknown. An answer has `values` by the parser's names, `defaults`, the words that the parser
does not know in `unknown`, and in `error` why there are no values. `checked` says whether the values also passed the
trainer's own checks, which fill in derived ones.

A question about an export also has `tokens`, those of the tokenizer: its answer has the `configs` that the trainer
makes of the values (real_configs.py) and the padded `vocabulary`. It may have `environment`, variables of the ranks,
`deepspeed`, the content of DeepSpeed's configuration, `data_parallel`, the number of its ranks, and `folder`, from
which modules are imported.

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
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import typing_extensions

from benchmarks import real_configs

Answer = dict[str, Any]
Question = Mapping[str, Any]
_OWN_PACKAGES = ("megatron", "tools", "nanotron")
_ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def main() -> None:
    name, checkout, questions, answers = sys.argv[1:]
    with warnings.catch_warnings(action="ignore"):
        given = [_answered(question, checkout, name) for question in json.loads(Path(questions).read_text())]
    Path(answers).write_text(json.dumps(given, default=real_configs.plain))


def _answered(question: Question, checkout: str, name: str) -> Answer:
    prepare(Path(checkout) / _SOURCES.get(name, "."), _STAND_INS[name])
    try:
        return _PARSERS[name](question)
    except (Exception, SystemExit) as error:
        return {"error": f"{type(error).__name__}: {error}", "values": {}}


def prepare(checkout: Path, missing: Sequence[str]) -> None:
    """Make a checkout's packages importable. What they import is a mock if `missing` names it, or has `*` and it is not
    installed."""
    if str(checkout) in sys.path:
        return
    sys.path.insert(0, str(checkout))
    typing.override = typing_extensions.override  # type: ignore[attr-defined] # Python 3.12
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


_STAND_INS = {
    "megatron-lm": ("triton", "regex"),
    "megatron-deepspeed": ("*",),
    "gpt-neox": ("*",),
    "nanotron": ("*",),
    "deepspeed": (),
    "torchtitan": (),
    "accelerate": (),
}
"""Megatron-LM asks itself what is installed, triton apart, and a tokenizer's regex."""
_SOURCES = {"nanotron": "src", "torchtitan": "..", "accelerate": ".."}


def _mock() -> MagicMock:
    mock = MagicMock()
    mock.__version__ = "3.5.0"
    return mock


def _megatron_lm(question: Question) -> Answer:
    import torch
    from megatron.training import arguments  # type: ignore[import-not-found]

    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(major=9, minor=0)
    parser = _lm_parser(arguments.add_megatron_arguments)
    with real_configs.transformer_engine_stubbed():
        return _by_argparse(parser, question, arguments, _of_megatron_lm)


def _of_megatron_lm(question: Question, args: argparse.Namespace) -> Answer:
    vocabulary = real_configs.megatron_lm_vocabulary(args, question["tokens"])
    return {"configs": real_configs.of_megatron_lm(args, args.data_parallel_size), "vocabulary": vocabulary}


@cache
def _lm_parser(add_arguments: Callable[..., argparse.ArgumentParser]) -> argparse.ArgumentParser:
    return add_arguments(argparse.ArgumentParser(allow_abbrev=False))


def _megatron_deepspeed(question: Question) -> Answer:
    import deepspeed
    from megatron import arguments  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in dir(arguments):
        if name.startswith("_add_") and name.endswith("_args"):
            getattr(arguments, name)(parser)
    deepspeed.add_config_arguments(parser)
    return _by_argparse(parser, question, arguments, _of_megatron_deepspeed)


def _of_megatron_deepspeed(question: Question, args: argparse.Namespace) -> Answer:
    from megatron.tokenizer.tokenizer import _vocab_size_with_padding  # type: ignore[import-not-found]

    has_pipeline = not args.no_pipeline_parallel
    made = real_configs.of_deepspeed(question["deepspeed"], args.data_parallel_size, has_pipeline)
    return {"configs": {"deepspeed": made}, "vocabulary": _vocab_size_with_padding(question["tokens"], args)}


def _by_argparse(
    parser: argparse.ArgumentParser,
    question: Question,
    arguments: ModuleType,
    made: Callable[[Question, argparse.Namespace], Answer],
) -> Answer:
    parser.exit_on_error = False
    defaults = vars(parser.parse_args([]))
    read, empty = without_empty(parser, question["words"])
    values, unknown = parser.parse_known_args(read)
    names = {option: action.dest for option, action in parser._option_string_actions.items()}
    answer = {"values": vars(values), "defaults": defaults, "unknown": unknown, "empty": empty, "names": names}
    return answer | {"error": None} | _checked(question, read, values, arguments, made)


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
    question: Question,
    words: Sequence[str],
    values: argparse.Namespace,
    arguments: ModuleType,
    made: Callable[[Question, argparse.Namespace], Answer],
) -> Answer:
    """The values after the trainer's own checks, if they pass, and what it makes of them for an export."""
    degrees = [
        getattr(values, f"{axis}_parallel_size", 1) or 1 for axis in ("tensor_model", "pipeline_model", "context")
    ]
    ranks = degrees[0] * degrees[1] * degrees[2]
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ |= {"WORLD_SIZE": str(question["world"] or ranks), **question.get("environment", _ENVIRONMENT)}
    sys.argv = ["pretrain_gpt.py", *words]
    try:
        checked = arguments.parse_args(ignore_unknown_args=True)
        arguments.validate_args(checked)
        more = made(question, checked) if "tokens" in question else {}
    except (Exception, SystemExit) as error:
        return {"checked": False, "failed_check": f"{type(error).__name__}: {error}"}
    return {"checked": True, "values": vars(checked), **more}


def _gpt_neox(question: Question) -> Answer:
    import torch
    from megatron.neox_arguments import NeoXArgs, arguments  # type: ignore[import-not-found]

    world = question["world"] or 8
    torch.cuda.device_count = lambda: world
    if "tokens" in question:
        arguments.version = lambda _: "2.8.0"  # flash-attn's, which is not installed
    args = NeoXArgs.from_ymls(list(question["words"]))
    answer = {"error": None, "values": vars(args), "unknown": [], "checked": True}
    return answer | (_of_gpt_neox(question, args) if "tokens" in question else {})


def _of_gpt_neox(question: Question, args: Any) -> Answer:
    from megatron.tokenizer.tokenizer import _vocab_size_with_padding

    has_pipeline = args.pipe_parallel_size > 0
    made = real_configs.of_deepspeed(args.deepspeed_config, question["data_parallel"], has_pipeline)
    return {"configs": {"deepspeed": made}, "vocabulary": _vocab_size_with_padding(question["tokens"], args)}


def _nanotron(question: Question) -> Answer:
    import dacite  # type: ignore[import-not-found]  # noqa: F401  # the parser itself, so never a mock
    from nanotron.config import get_config_from_file  # type: ignore[import-not-found]

    config = get_config_from_file(question["words"][0])
    return {"error": None, "values": real_configs.fields_of(config), "unknown": [], "checked": True}


def _deepspeed(question: Question) -> Answer:
    made = real_configs.of_deepspeed(question["deepspeed"], question["data_parallel"], question["has_pipeline"])
    return {"error": None, "values": made, "unknown": [], "checked": True}


def _torchtitan(question: Question) -> Answer:
    made = real_configs.of_torchtitan(question["words"], question["folder"], question["world"])
    return {"error": None, "values": made, "unknown": [], "checked": True}


def _accelerate(question: Question) -> Answer:
    made = real_configs.of_accelerate(question["words"][0])
    return {"error": None, "values": made, "unknown": [], "checked": True}


_PARSERS: Mapping[str, Callable[[Question], Answer]] = {
    "megatron-lm": _megatron_lm,
    "megatron-deepspeed": _megatron_deepspeed,
    "gpt-neox": _gpt_neox,
    "nanotron": _nanotron,
    "deepspeed": _deepspeed,
    "torchtitan": _torchtitan,
    "accelerate": _accelerate,
}

if __name__ == "__main__":
    main()
