"""Axis values by engine: what a test trained, what a trainer's own parser takes in exports, what the rules accept.

`python -m tests.engine_table --write` brings search_spaces/verified.csv and the tables of README.md and of
docs/trainers.md up to date.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Iterator
from enum import IntEnum
from functools import cache
from io import StringIO
from itertools import chain, product
from pathlib import Path
from typing import Any

from search_spaces.engines import ENGINE_PROFILES, OWN_ENGINES
from search_spaces.engines import ENGINES as ALL_ENGINES
from search_spaces.layouts.axis import Kind
from search_spaces.layouts.layout import AXES, CHOICES, V_SCHEDULES, Layout
from search_spaces.rules.check import engine_violations
from search_spaces.verification import NOT_VERIFIED, TABLE, words_of
from tests.oracles.cases import FORMATS, export_cases
from tests.sources import ROOT
from trials.diagnostics.parity_cases import NATIVE_ENGINES, VALUES, Case, compiled_cases, covering_cases, violated_rules
from trials.diagnostics.parity_models import SHAPES

README, PAGE = ROOT / "README.md", ROOT / "docs" / "trainers.md"
ENGINES = tuple(reversed(OWN_ENGINES))
"""The default first."""

_BEGIN, _END = "<!-- engines -->\n", "<!-- / -->"
_GPU = "h100-80gb"
_NO_ROWS = ("num_nodes", "engine", "micro_batch_size", "grad_accum_steps", "data_parallel", "settings")
"""Axes of every engine."""
_NEUTRAL = ("none", "same")
"""Words for what every engine does without the axis."""


class Status(IntEnum):
    """How well a value is verified with an engine."""

    REFUSED = 0
    OPTION = 1
    RUN = 2

    @property
    def text(self) -> str:
        return ("", "option", "run")[self]


def rows() -> Iterator[tuple[str, Any]]:
    """Axes with their values: every word, else one that is not the default."""
    for name, axis in AXES.items():
        if name in _NO_ROWS:
            continue
        values = (
            axis.single_words
            if axis.parts
            else VALUES.get(name, axis.words or ((1, 2) if axis.is_number else (False, True)))
        )
        chosen = values if _has_words(name) else [value for value in values if value != axis.default][:1]
        yield from ((name, value) for value in chosen if value not in _NEUTRAL)


def _has_words(name: str) -> bool:
    return AXES[name].kind is Kind.WORD or name == "zero_stage"


def status(engine: str, name: str, value: Any) -> Status:
    """RUN where a parity case on a CPU has the value, OPTION where the engine accepts it in some layout on a GPU."""
    if any(_has(case, name, value) for case in _trained(engine)):
        return Status.RUN
    is_accepted = any(_is_accepted(case) for case in _possible(engine, name, value))
    return Status.OPTION if is_accepted else Status.REFUSED


def _trained(engine: str) -> Iterator[Case]:
    return (case for case in trained_cases() if case.layout.engine == engine)


def _has(case: Case, name: str, value: Any) -> bool:
    """True if the value, a part of a joined word, or another number than the default is in the layout and has an
    effect."""
    [word] = words_of(name, value)
    return word in words_of(name, getattr(case.layout, name)) and case.layout.has_effect(name)


def _is_accepted(case: Case) -> bool:
    return not any(engine_violations(case.layout, case.model)) and not violated_rules(case, _GPU)


def _possible(engine: str, name: str, value: Any) -> Iterator[Case]:
    """Layouts of this engine that have the value."""
    declared = AXES[name].values_of(engine)
    if declared is not None and value not in declared:
        return
    models = [SHAPES[name] for name in ("gpt2", "llama", "mixtral", "deepseek-moe")]
    for model, ranks, precision, kernel, others in product(
        models, _ranks(), CHOICES["precision"], CHOICES["attention_kernel"], _COMPANIONS
    ):
        fields = ranks | {"precision": precision, "attention_kernel": kernel} | others | {name: value}
        layout = Layout(engine=engine, micro_batch_size=2, grad_accum_steps=4, **fields).canonical()
        case = Case("", "", model, layout)
        if _has(case, name, value):
            yield case


_COMPANIONS: tuple[dict[str, Any], ...] = (
    {},
    {"sequence_parallel": True, "torch_compile": True},
    {"overlap_comm": True},
    {"activation_checkpointing": "full"},
    {"activation_checkpointing": "selective"},
)
"""Values that others need."""


def _ranks() -> list[dict[str, Any]]:
    """Degrees, with ZeRO stages of data-parallel ranks and schedules of a pipeline."""
    data = [{"data_parallel": ranks, "zero_stage": stage} for ranks in (2, 4) for stage in VALUES["zero_stage"]]
    schedules = [("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2), *((schedule, 2) for schedule in V_SCHEDULES)]
    stages = [
        {"pipeline_parallel": 2, "pipeline_schedule": schedule, "virtual_pipeline_stages": chunks}
        for schedule, chunks in schedules
    ]
    tensor = {"tensor_parallel": 2}
    return [
        *data,
        *stages,
        tensor,
        *(one | other for one in data[:4] for other in stages),
        *(tensor | one for one in data),
    ]


def full_table() -> str:
    """Status by axis and value, for docs/trainers.md."""
    lines = [[f"{name}: {value}" if _has_words(name) else name, *_cells(name, [value])] for name, value in rows()]
    return _table([["axis", *ENGINES], *lines, *_features()])


def _features() -> Iterator[list[str]]:
    """Fields of the model beyond GPT-2's and Llama's architecture."""
    for name in ENGINE_PROFILES[ENGINES[0]].model_features:
        yield [f"model.{name}", *(feature_status(engine, name).text for engine in ENGINES)]


def feature_status(engine: str, name: str) -> Status:
    """Status of a field of the model, as that of an axis."""
    if any(name in case.model.features for case in _trained(engine)):
        return Status.RUN
    return Status.OPTION if name in ENGINE_PROFILES[engine].model_features else Status.REFUSED


def short_table() -> str:
    """Status by axis, the best of its values but the default, for README.md."""
    values: dict[str, list[Any]] = {}
    for name, value in rows():
        if value != AXES[name].default:
            values.setdefault(name, []).append(value)
    return _table([["axis", *ENGINES], *([AXES[name].label, *_cells(name, those)] for name, those in values.items())])


def _cells(name: str, values: list[Any]) -> list[str]:
    return [max(status(engine, name, value) for value in values).text for engine in ENGINES]


def _table(lines: list[list[str]]) -> str:
    head, *body = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([head, "|---" * len(lines[0]) + "|", *body]) + "\n"


def page_with(page: str, table: str) -> str:
    """The page with this table between its marks."""
    return re.sub(f"{_BEGIN}.*?{_END}", lambda _: f"{_BEGIN}{table}{_END}", page, count=1, flags=re.DOTALL)


def pages() -> dict[Path, str]:
    """The text of each page with its table."""
    made = {README: short_table(), PAGE: full_table()}
    return {path: page_with(path.read_text(encoding="utf-8"), table) for path, table in made.items()}


def verified_values() -> str:
    """verified.csv: the words of each engine and axis by level, each at its highest."""
    trained, parsed = [case.layout for case in trained_cases()], parsed_layouts()
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["engine", "axis", "run", "parsed"])
    for engine in ALL_ENGINES:
        for axis in AXES:
            if axis in NOT_VERIFIED:
                continue
            run = words(trained, engine, axis)
            others = words(parsed, engine, axis) - run
            if run or others:
                writer.writerow([engine, axis, " ".join(sorted(run)), " ".join(sorted(others))])
    return text.getvalue()


@cache
def trained_cases() -> list[Case]:
    """Cases of the parity tests, by every engine of Parlay's trainer."""
    packaged = (covering_cases(engines=(engine,)) for engine in OWN_ENGINES if engine not in NATIVE_ENGINES)
    return [*covering_cases(), *compiled_cases(engines=OWN_ENGINES), *chain.from_iterable(packaged)]


def parsed_layouts() -> list[Layout]:
    """Layouts of the exports that trainers' parsers have read."""
    return [case.spec.layout for trainer in FORMATS for case in export_cases(trainer)]


def words(layouts: Iterable[Layout], engine: str, axis: str) -> set[str]:
    """Words of an axis in the engine's layouts, where they have an effect, without its default."""
    having = (layout for layout in layouts if layout.engine == engine and layout.has_effect(axis))
    found = {word for layout in having for word in words_of(axis, getattr(layout, axis))}
    return found - {str(AXES[axis].default)}


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        TABLE.write_text(verified_values(), encoding="utf-8")
        for path, text in pages().items():
            path.write_text(text, encoding="utf-8")
