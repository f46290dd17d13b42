"""Megatron-LM beside a training script, read without importing it. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from search_spaces.plain_file import read_referenced
from trials.trainers.common.megatron_options import GRADIENT_DTYPE, Option, newer_megatron_lm
from trials.trainers.common.options import option_name, option_names

_PARSER, _VERSION = "megatron/training/arguments.py", "megatron/core/package_info.py"
_MOST_BYTES = 4 * 2**20


def gradient_options(layout: Layout, script: str, arguments: Sequence[str]) -> list[Option]:
    """Options by which this script's Megatron-FSDP sums gradients in fp32; none where it does so by default, and none
    that the user's `arguments` have.

    InputError where the layout depends on it and the script's folder has no Megatron-LM. OSError where it cannot be
    read.
    """
    given = option_names(arguments)
    missing = [option for option in newer_megatron_lm(layout) if option_name(option[0]) not in given]
    return missing if missing and _sums_in_dtype_of_weights(script) else []


def _sums_in_dtype_of_weights(script: str) -> bool:
    """True from core_v0.17.0 on, and if the parser has the option: main had it before its version said 0.17."""
    parser, package = _beside(script, _PARSER), _beside(script, _VERSION)
    version = tuple(int(number) for number in re.findall(r"^(?:MAJOR|MINOR) *= *(\d+)", package, re.MULTILINE))
    if parser and len(version) == 2:
        return version >= (0, 17) or GRADIENT_DTYPE[0] in parser
    raise InputError.of(
        "script",
        f"{script} has no {_PARSER} and {_VERSION} with a version beside it",
        rule="zero_stage 2 and 3 in bf16 and fp16 sum gradients in fp32, for which Megatron-LM needs an option from"
        " core_v0.17.0 on and has none before",
        fix=f"name the script in a checkout of Megatron-LM, or add {' '.join(GRADIENT_DTYPE)} to trainer.arguments if"
        " it has this option, or set zero_stage to 0 or 1",
        key="trainer.script",
        value=script,
    )


def core_version(script: str) -> str | None:
    """Version of the megatron-core beside this script, which Python imports before an installed one; None without it.

    OSError where it cannot be read.
    """
    text = _beside(script, _VERSION)
    found = dict(re.findall(r"^(MAJOR|MINOR|PATCH|PRE_RELEASE) *= *['\"]?(\w*)", text, re.MULTILINE))
    numbers = [found.get(name, "") for name in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(numbers) + found.get("PRE_RELEASE", "") if all(numbers) else None


def _beside(script: str, name: str) -> str:
    """Text of a file of the script's folder; "" without the file."""
    try:
        return read_referenced(Path(script).resolve().parent / name, _MOST_BYTES).decode("utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return ""
