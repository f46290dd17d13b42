"""Output of the benchmarks: lines, each a dictionary, as JSON or as text."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

Line = dict[str, Any]


def arguments_of(docstring: str | None, *paths: str, **options: Any) -> argparse.Namespace:
    """Command line of a benchmark, with its docstring as help and the option `--json`.

    `paths` are positional: `name`, or `name+` for several. `options` have their defaults, which say their types.
    """
    parser = argparse.ArgumentParser(description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter)
    for path in paths:
        parser.add_argument(path.rstrip("+"), type=Path, nargs="+" if path.endswith("+") else None)
    for name, default in options.items():
        kind = {"action": "store_true"} if default is False else {"default": default, "type": type(default)}
        parser.add_argument(f"--{name.replace('_', '-')}", **kind)
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    return parser.parse_args()


def show(lines: Iterable[Line], as_json: bool) -> list[Line]:
    """Print each line as it comes; return them all."""
    shown = []
    for line in lines:
        print(json.dumps(line) if as_json else readable(line), flush=True)
        shown.append(line)
    return shown


def readable(line: Mapping[str, Any]) -> str:
    """Names and values; summaries begin with an equals sign, and what is unknown is left out."""
    words = [f"{name.replace('_', ' ')} {short(value)}" for name, value in line.items() if value is not None]
    return f"= {', '.join(words[1:])}" if "summary" in line else ", ".join(words)


def short(value: Any) -> Any:
    """The value with four digits, also within a list or dictionary."""
    if isinstance(value, Mapping):
        return {name: short(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [short(inner) for inner in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def mean_of(values: Iterable[float | None]) -> float | None:
    """Mean of those that are known; of truth values the share that is true."""
    known = [value for value in values if value is not None]
    return round(fmean(known), 4) if known else None
