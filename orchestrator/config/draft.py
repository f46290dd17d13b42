"""Draft of a search file, and its rendering as commented YAML with a table of what was read from where. Pure."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from search_spaces.model_shape import MODEL_DEFAULTS, ModelShape
from search_spaces.schema.unsafe_text import safe_text
from search_spaces.schema.validation import FILL_IN

MODEL_FIELDS = tuple(f.name for f in fields(ModelShape) if f.name not in MODEL_DEFAULTS)
_HEADINGS = ("key", "value", "read from")
_NOT_FOUND = "unknown: fill it in"
_MOST_VALUE, _WIDTH = 40, 108


@dataclass(frozen=True)
class Draft:
    """Content of a search file. `task` has the task and its adapters, and is empty for a pretraining. `baseline` is
    empty if the file has no layout, `launcher` if the file is no Slurm job, `trainer` if Parlay's own trainer runs the
    trials. `origins` tell where the values of an imported file were read, by their keys (`model.num_layers`)."""

    title: str
    name: str
    model: Mapping[str, Any]
    cluster: Mapping[str, Any]
    global_batch_size: int | str
    baseline: Mapping[str, Any] = field(default_factory=dict)
    space: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    site: str | None = None
    launcher: Mapping[str, Any] = field(default_factory=dict)
    trainer: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)


def search_name(path: Path) -> str:
    """Name of a search, derived from the file's name."""
    name = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")
    return name[:41].strip("-") or "search"


def draft_title(path: Path, source: str) -> str:
    """Title of a draft made from this file."""
    return safe_text(f"Made by `parlay init --from {path.name}`, which looks like {source}.")


def printable_notes(notes: Iterable[str]) -> tuple[str, ...]:
    """Notes without unprintable characters and secrets, which may come from the file."""
    return tuple(map(safe_text, notes))


def cluster_section(accelerator: str, gpus: int | None, nodes: int | None, notes: list[str]) -> dict[str, Any]:
    """Cluster section; an unknown size is left to fill in, with a note."""
    for name, value in (("gpus_per_node", gpus), ("num_nodes", nodes)):
        if value is None:
            notes.append(f"cluster.{name} is unknown: fill it in.")
    return {"accelerator": accelerator, "gpus_per_node": gpus or FILL_IN, "num_nodes": nodes or FILL_IN}


def size_of(cluster: Mapping[str, Any]) -> tuple[int, int]:
    """GPUs per node and number of nodes; 8 for a value still to fill in."""
    gpus, nodes = (v if isinstance(v, int) else 8 for v in (cluster["gpus_per_node"], cluster["num_nodes"]))
    return gpus, nodes


def powers_of_two(most: int) -> list[int]:
    """Powers of two from 1 up to `most`."""
    return [2**n for n in range(most.bit_length()) if 2**n <= most]


def render(draft: Draft) -> str:
    """Render the search file, each section with a comment."""
    sections = [
        "\n".join(
            [
                *_comment(draft.title),
                *_origin_table(draft),
                *(line for note in draft.notes for line in _comment(note, "- ")),
            ]
        ),
        "schema: parlay.search/1",
        _section("Beginning of the search's id.", {"name": draft.name}),
        _section(
            "The model to train. vocab_size is the padded one: every tensor_parallel tried divides it. The name of a"
            " ready-made model works as well, for example `model: gpt2-124m`.",
            {"model": draft.model},
        ),
        *([_section("What trains: adapters beside frozen weights, or all.", draft.task)] if draft.task else []),
        _section("The cluster: equal nodes. On a CPU, a GPU is a process.", {"cluster": draft.cluster}),
        _section(
            "Sequences per optimizer step, the same in every layout: micro_batch_size x grad_accum_steps x"
            " data_parallel. grad_accum_steps follows from it, data_parallel from the ranks.",
            {"global_batch_size": draft.global_batch_size},
        ),
        *([_section(_TRAINER, {"trainer": _quoted(draft.trainer)})] if draft.trainer else []),
        *([_section(_BASELINE, {"baseline": draft.baseline})] if draft.baseline else []),
        _section(
            "The layouts to try: a value, a list, or {min, max, step}. Combinations that cannot work are rejected;"
            " `parlay plan` lists them with the reason.",
            {"space": draft.space},
        ),
        _REST + _launcher(draft),
    ]
    return "\n\n".join(sections)


def _origin_table(draft: Draft) -> Iterator[str]:
    """The table of origins between empty comment lines."""
    slurm = draft.launcher.get("slurm", {})
    sections = {
        "model": draft.model,
        "adapters": draft.task.get("adapters", {}),
        "cluster": draft.cluster,
        "trainer": draft.trainer,
        "baseline": draft.baseline,
        "space": draft.space,
        "launcher.slurm": slurm,
    }
    values = {f"{section}.{key}": value for section, found in sections.items() for key, value in found.items()}
    lines = origin_lines({**values, "global_batch_size": draft.global_batch_size}, draft.origins)
    yield from ["#", *(f"#   {line}" for line in lines), "#"] if lines else []


_TRAINER = "The program that runs in a trial (docs/trainers.md). Paths are those of the compute nodes."
_BASELINE = "The present layout. It is measured first; speedups are relative to it."
_REST = """\
# tokens_per_sec, tokens_per_sec_per_gpu, node_hours_per_billion_tokens or joules_per_token.
objective: tokens_per_sec

search:
  sampler: guided # a cost model proposes, each trial corrects it; it may end before max_trials
  max_trials: 12 # upper limit of layouts tried
  parallel_trials: 1 # concurrent trials, each on its own nodes

# A trial trains until its step time is steady, and then until it is known precisely enough.
measure:
  min_steps: 8
  max_steps: 30
  max_warmup_steps: 10
  time_limit: 10m

"""
_HERE = """\
# ray: a private Ray on this machine, or with `address: host:port` a running cluster. local: plain processes here.
launcher:
  kind: ray
"""
_AT_A_SITE = "slurm: a job for each trial. The site's profile (docs/sites.md) supplies the rest."
_AS_IN_THE_SCRIPT = (
    "slurm: a job for each trial, with the options of the script's own job; its size and time limit are Parlay's."
)


def _launcher(draft: Draft) -> str:
    """The launcher section: options of the script's own job come before the site's profile."""
    if draft.site is None and not draft.launcher:
        return _HERE
    options = _quoted(draft.launcher.get("slurm", {}))
    site = {} if draft.site is None else {"site": _quoted(draft.site)}
    section = {"kind": "slurm"} | ({"slurm": site | options} if site or options else {})
    comments = [_AS_IN_THE_SCRIPT] * bool(draft.launcher) + [_AT_A_SITE] * bool(site and not draft.launcher)
    comments += ["The site's profile (docs/sites.md) supplies the rest."] * bool(site and draft.launcher)
    lines = _section(" ".join(comments), {"launcher": section})
    return lines + ("" if "account" in options else _ACCOUNT if "slurm" in section else "") + "\n"


_ACCOUNT = "\n    # account: the project to charge"
_PLAIN_TEXT = re.compile(r"(?!(?:true|false|yes|no|on|off|null|y|n)$)[A-Za-z_][A-Za-z0-9_./+-]*", re.IGNORECASE)


def _quoted(value: Any) -> Any:
    """The value with every text in quotes that YAML would read as something else."""
    if isinstance(value, Mapping):
        return {key: _quoted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_quoted(inner) for inner in value]
    return (
        json.dumps(value, ensure_ascii=False) if isinstance(value, str) and not _PLAIN_TEXT.fullmatch(value) else value
    )


def _section(comment: str, content: Mapping[str, Any]) -> str:
    return "\n".join([*_comment(comment), *_lines(content, "")])


def _comment(text: str, bullet: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        110,
        initial_indent="# " + bullet,
        subsequent_indent="# " + " " * len(bullet),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _lines(content: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list):
            yield f"{indent}{key}: [{', '.join(scalar(v) for v in value)}]"
        else:
            yield f"{indent}{key}: {scalar(value)}"


def scalar(value: Any) -> str:
    """The value in YAML."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def origin_lines(values: Mapping[str, Any], origins: Mapping[str, str]) -> list[str]:
    """Lines of the table. `values` are those of the search file by key (`model.num_layers`); a key is in the table if
    it has an origin or is left to fill in."""
    rows = [
        (key, _shown(value), _NOT_FOUND if value == FILL_IN else safe_text(origins[key]))
        for key, value in values.items()
        if value == FILL_IN or key in origins
    ]
    if not rows or not origins:
        return []
    widths = [max(len(row[column]) for row in (_HEADINGS, *rows)) for column in (0, 1)]
    return [line for row in (_HEADINGS, *rows) for line in _row(row, widths)]


def _shown(value: Any) -> str:
    text = ", ".join(map(scalar, value)) if isinstance(value, list) else scalar(value)
    text = safe_text(text)
    return text if len(text) <= _MOST_VALUE else text[: _MOST_VALUE - 1] + "…"


def _row(row: tuple[str, str, str], widths: list[int]) -> Iterator[str]:
    start = f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  "
    wrapped = textwrap.wrap(row[2], max(30, _WIDTH - len(start)), break_long_words=False, break_on_hyphens=False)
    for index, part in enumerate(wrapped or [""]):
        yield ((start if index == 0 else " " * len(start)) + part).rstrip()
