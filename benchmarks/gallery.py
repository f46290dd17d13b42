"""Twins of the gallery: the five systems, a model with experts, long sequences and adapters, scaled down and trained on
this machine, one after another.

    python -m benchmarks.gallery [--twin NAME] [--work-dir runs/gallery] [--page docs/gallery.md] [--json]

Each is a search of search_spaces/searches/twins that ends in a recipe. ASC22-Yuan's runs twice: as it is, and with a
program that leaks host memory in every step whose optimizer is on the host, which its trials must flag. The Frontier
study's runs with its own sampler and with the default one. The ZeRO project's trains on an epoch of a dataset, made
of Parlay's own pages. `--page` writes the results into that page, between marks (`filled`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.output import Line, arguments_of, short, show
from orchestrator.recipe.read import read_recipe
from orchestrator.records.lookup import LocatedSearch, find_search
from search_spaces.schema import presets
from tests.trials.datasets import write_documents
from trials.trial import Flag, Trial

SOURCES = Path(presets.__file__).parents[2]
TWINS_FOLDER = SOURCES / "search_spaces" / presets.TWINS
PACKAGES = ("dashboards", "orchestrator", "search_spaces", "slurm", "trials")
ENGINE = Path("trials/train/engines/deepspeed_engine.py")
"""File in Parlay's sources in which a DeepSpeed step ends."""
_LEAKING_SPACE = ("space.offload=optimizer", "search.max_trials=2")
_FINALS_OF_200_STEPS = (
    "search.finalists=1",
    "search.finals=fixed",
    "search.finalist_repeats=1",
    "measure.finalist_time=5m",
)
LEAK_MIB = 4
"""Memory of the planted leak per step and rank."""
EPOCH_TOKENS = 32 * 16 * 64 + 1
"""An epoch of 32 steps of the ZeRO project's twin, and the token after the last one."""
_END_OF_STEP = "        return StepResult(total / len(micro_batches), self._grad_norm())\n"
_OF_LAYOUT = ("zero_stage", "offload", "micro_batch_size", "grad_accum_steps")
_COLLECTED = ("tokens_per_sec", "epoch_s", "peak_memory_gib", "peak_host_memory_gib", "loss_first", "loss_after_epoch")


@dataclass(frozen=True)
class Twin:
    """Twin of a system: its search file, overrides, program and data."""

    name: str
    file: str
    settings: tuple[str, ...] = ()
    leaks: bool = False
    reads_tokens: bool = False


TWINS = (
    Twin("asc22-yuan", "asc22-yuan"),
    Twin("asc22-yuan-leaking", "asc22-yuan", (*_LEAKING_SPACE, *_FINALS_OF_200_STEPS), leaks=True),
    Twin("mt-nlg-530b", "mt-nlg-530b"),
    Twin("yuan-245b", "yuan-245b"),
    Twin("frontier", "frontier"),
    Twin("frontier-guided", "frontier", ("search.sampler=guided",)),
    Twin("zero-mini", "zero-mini", reads_tokens=True),
    Twin("qwen3-30b-a3b", "qwen3-30b-a3b"),
    Twin("llama-3-long", "llama-3-long"),
    Twin("llama3-8b-lora", "llama3-8b-lora"),
)


def main() -> None:
    arguments = arguments_of(__doc__, twin="", work_dir=Path("runs/gallery"), page="")
    lines = show(_lines(arguments), arguments.json)
    sys.exit(any(line["faults"] for line in lines))


def _lines(arguments: argparse.Namespace) -> Iterator[Line]:
    for twin in TWINS:
        if arguments.twin not in ("", twin.name):
            continue
        print(f"{twin.name}: trains", file=sys.stderr)
        line = run_twin(twin, arguments.work_dir)
        if arguments.page:
            fill(Path(arguments.page), page_parts(line))
        yield line


def run_twin(twin: Twin, work_dir: Path, settings: Sequence[str] = ()) -> Line:
    """Run the search to its end and return its line; `settings` are KEY=VALUE on top of the twin's own."""
    work_dir = work_dir.resolve()
    work_dir.mkdir(parents=True, exist_ok=True)
    given = [*twin.settings, *settings, "tracking.enabled=false", "search.warm_start=none"]
    if twin.reads_tokens:
        given += ["trainer.data.kind=tokens", f"trainer.data.path={_tokens(work_dir)}"]
    sources = leaking_copy(work_dir / "leaking") if twin.leaks else SOURCES
    words = ["run", str(TWINS_FOLDER / f"{twin.file}.yaml"), "--work-dir", str(work_dir)]
    began = time.monotonic()
    result = _parlay([*words, *(word for pair in given for word in ("--set", pair))], work_dir, sources)
    line = line_of(twin, find_search(str(work_dir / result["search_id"]), None), result)
    line["seconds"] = round(time.monotonic() - began, 1)
    return line


def line_of(twin: Twin, found: LocatedSearch, result: Mapping[str, Any]) -> Line:
    """Gallery line of an ended search. `result` is the answer of `parlay run --json`.

    `grows` names the trials whose host memory grew, with the step at which a node would be full; `faults` lists
    deviations from what the twin should show.
    """
    trials = found.record.trials
    best, verdict = result["best"] or {}, result["verdict"]
    line = {
        "twin": twin.name,
        "search_id": result["search_id"],
        "end_reason": result["end_reason"],
        "trials": {trial.trial: str(trial.reason or trial.state) for trial in trials},
        "best": best.get("trial"),
        "layout_key": found.record.trial(best["trial"]).layout.key if best else None,
        "tokens_per_sec": best.get("tokens_per_sec"),
        "flags": best.get("flags", []),
        "speedup": verdict["speedup"],
        "speedup_low": verdict["speedup_low"],
        "speedup_high": verdict["speedup_high"],
        "recipe": result["recipe"],
        "caveats": list(read_recipe(Path(result["recipe"])).recipe.caveats) if result["recipe"] else [],
        "grows": {
            trial.trial: int(trial.measured.host_memory_full_at_step)
            for trial in trials
            if trial.measured and Flag.HOST_MEMORY_GROWTH in trial.flags
        },
        "runs": [run_of(trial) for trial in trials if trial.measured],
    }
    return line | {"faults": list(faults_of(twin, line))}


def run_of(trial: Trial) -> Line:
    """Layout and measurements of a trial, as the ZeRO project collected them."""
    layout = {name: getattr(trial.layout, name) for name in _OF_LAYOUT}
    return {"trial": trial.trial, **layout, **{name: getattr(trial.measured, name) for name in _COLLECTED}}


def faults_of(twin: Twin, line: Mapping[str, Any]) -> Iterator[str]:
    """Deviations from what the twin should show."""
    measured = {run["trial"] for run in line["runs"]}
    if line["recipe"] is None:
        yield "ended without a recipe"
    if twin.leaks and (unseen := measured - set(line["grows"])):
        yield f"the planted leak was not seen in {', '.join(sorted(unseen))}"
    if twin.leaks and not any("node is full at step" in caveat for caveat in line["caveats"]):
        yield "the recipe does not say when its training fills a node's memory"
    if not twin.leaks and line["grows"]:
        yield f"host memory grows in {', '.join(line['grows'])}, and no leak was planted"
    if twin.reads_tokens and any(run["loss_after_epoch"] is None for run in line["runs"]):
        yield "a run ended before its epoch"


def leaking_copy(copy: Path) -> Path:
    """Copy of Parlay's sources whose DeepSpeed steps leak memory where the optimizer is on the host.

    ValueError where the engine's source has changed from what this benchmark patches.
    """
    for package in PACKAGES:
        shutil.copytree(
            SOURCES / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
        )
    before, *after = (copy / ENGINE).read_text().split(_END_OF_STEP)
    if len(after) != 1:
        raise ValueError(f"{ENGINE} does not end a step as this benchmark knows it")
    leak = (
        '        if self._training.layout.offload == "optimizer":\n'
        f'            self.__dict__.setdefault("_leaked", []).append(b"1" * {LEAK_MIB * 2**20})\n'
    )
    (copy / ENGINE).write_text(before + leak + _END_OF_STEP + after[0])
    return copy


def page_parts(line: Mapping[str, Any]) -> dict[str, str]:
    """Texts between the page's marks: `twin NAME` for a cell of its table, `runs NAME` for a table of runs."""
    parts = {f"twin {line['twin']}": cell_of(line)}
    if line["twin"] in WITH_RUNS:
        parts[f"runs {line['twin']}"] = f"\n{runs_table(line)}\n"
    return parts


def fill(page: Path, parts: Mapping[str, str]) -> None:
    page.write_text(filled(page.read_text(), parts))


def filled(page: str, parts: Mapping[str, str]) -> str:
    """Page with each part between its marks, `<!-- NAME -->` and `<!-- / -->`; parts without marks are ignored."""
    for name, text in parts.items():
        mark = f"<!-- {name} -->"
        page = re.sub(re.escape(mark) + ".*?<!-- / -->", lambda _, new=f"{mark}{text}<!-- / -->": new, page, flags=re.S)
    return page


def cell_of(line: Mapping[str, Any]) -> str:
    """Summary of a twin: best layout, speed-up over its baseline, trials, time."""
    if line["layout_key"] is None:
        return "; ".join(line["faults"])
    counted = f"{len(line['trials'])} trials in {line['seconds']:.0f} s"
    words = [f"`{line['layout_key']}`", _speedup_text(line), counted]
    words += [f"host memory grows: full at step {full_at} ({name})" for name, full_at in line["grows"].items()]
    return "; ".join(words + list(line["faults"]))


def runs_table(line: Mapping[str, Any]) -> str:
    """Table of the trials: what their layouts differ in, and what was measured, as the ZeRO project collected it."""
    runs = sorted(line["runs"], key=lambda run: [run[name] for name in ("offload", "zero_stage", "micro_batch_size")])
    varied = [name for name in _OF_LAYOUT if len({run[name] for run in runs}) > 1]
    columns = varied + [name for name in _COLLECTED if any(run[name] is not None for run in runs)]
    rows = [[str(short(run[name])) for name in columns] for run in runs]
    table = [[name.replace("_", " ") for name in columns], ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in table)


WITH_RUNS = ("mt-nlg-530b", "zero-mini")
"""Twins whose runs are a table of the page."""


def _parlay(words: Sequence[str], work_dir: Path, sources: Path) -> dict[str, Any]:
    """Answer of a command; SystemExit with its message on an error."""
    command = [sys.executable, "-P", "-m", "orchestrator.cli.main", *words, "--json", "--launcher", "local"]
    environment = os.environ | {"PARLAY_HOME": str(work_dir / "home"), "PYTHONPATH": str(sources)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        answer = {"error": done.stderr[-2000:]}
    if "error" in answer:
        raise SystemExit(f"{' '.join(command)} left with {done.returncode}: {answer['error']}")
    return answer


def _tokens(work_dir: Path) -> Path:
    """Dataset of one epoch of the ZeRO project's twin: the start of Parlay's pages, one byte per token."""
    pages = "\n".join(page.read_text() for page in sorted((SOURCES / "docs").glob("*.md")))
    write_documents(prefix := work_dir / "pages", [[*pages.encode("ascii", "ignore")[: EPOCH_TOKENS - 1], 256]])
    return prefix


def _speedup_text(line: Mapping[str, Any]) -> str:
    if line["speedup"] is None:
        return "no speed-up over the baseline"
    low, high = line["speedup_low"], line["speedup_high"]
    between = "" if low is None else f" ({low:.2f} to {high:.2f})"
    return f"{line['speedup']:.2f} x the baseline's tokens/s{between}"


if __name__ == "__main__":
    main()
