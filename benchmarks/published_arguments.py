"""Published layouts as arguments: how many of those that can be said the trainer's own parser takes.

    PARLAY_DOWNLOADS=FOLDER python -m benchmarks.published_arguments throughput_2023_2026.csv

FOLDER and parsers are those of benchmarks/check_exports.py, which compares what they understand with the layout. Rows
of Megatron-Bridge are asked of Megatron-LM, which it drives; Composer has no export. A layout that several rows have is
asked once, and counts for all.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.check_exports import PROJECTS, Checked, Project, checked, question
from benchmarks.export_cases import Case
from benchmarks.parser_process import DOWNLOADS, ask
from benchmarks.published_throughput import Reading, Training, read_rows
from search_spaces.engines import PARLAY, TORCHTITAN
from search_spaces.errors import Problem
from search_spaces.routing import BALANCED
from trials.measure_rules import MeasureRules
from trials.trainers.base import LayoutExport
from trials.trainers.registry import TRAINERS
from trials.trial import TrialKind, TrialSpec


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", type=Path, metavar="TABLE", help="throughput_2023_2026.csv")
    readings = [Reading.of(row) for row in read_rows(parser.parse_args().table)]
    for line in argument_lines(readings, os.environ.get(DOWNLOADS)):
        print(line)


@dataclass(frozen=True)
class Outcome:
    """The answer of a parser on one training: `is_taken`, or the `reason` why not."""

    is_taken: bool
    reason: str = ""


def argument_lines(readings: Iterable[Reading], downloads: str | None) -> Iterator[str]:
    """A line for each trainer, and one for each reason why its parser did not take rows."""
    by_trainer: dict[str, list[Training]] = {}
    for reading in readings:
        if reading.training is not None:
            by_trainer.setdefault(reading.row["trainer"], []).append(reading.training)
    for trainer, trainings in sorted(by_trainer.items()):
        outcomes = outcomes_of(trainer, trainings, downloads)
        taken = sum(outcome.is_taken for outcome in outcomes)
        yield f"{trainer}: {taken} of {len(trainings)} rows are arguments that its parser takes"
        reasons = Counter(outcome.reason for outcome in outcomes if not outcome.is_taken)
        yield from (f"  {count:4} {reason}" for reason, count in reasons.most_common())


def outcomes_of(trainer: str, trainings: Sequence[Training], downloads: str | None) -> list[Outcome]:
    """Outcome of each training."""
    project = _PROJECT_OF_TRAINER.get(trainer)
    if project is None:
        return [Outcome(False, "no export")] * len(trainings)
    source = project.source(downloads)
    if source is None:
        return [Outcome(False, f"{project.checkout} is not there")] * len(trainings)
    form = _form(project)
    specs = {training: spec_of(training) for training in trainings}
    problems = {training: form.problem(spec.layout, spec.model) for training, spec in specs.items()}
    asked = [training for training, problem in problems.items() if problem is None]
    cases = [Case(specs[training], form.files(specs[training])) for training in asked]
    answers = dict(zip(asked, _answers(project, source, cases), strict=True))
    return [_outcome(problems[training], answers.get(training)) for training in trainings]


_PROJECT_OF_TRAINER: Mapping[str, Project] = {
    TORCHTITAN: next(project for project in PROJECTS if project.trainer == TORCHTITAN),
    "megatron-bridge": next(
        project for project in PROJECTS if project.trainer == "megatron-lm" and not project.version
    ),
}


def _form(project: Project) -> LayoutExport:
    return next(made for one in TRAINERS.values() if (made := one.export) is not None and made.name == project.trainer)


def _answers(project: Project, source: Path, cases: Sequence[Case]) -> list[Checked]:
    with tempfile.TemporaryDirectory(prefix="parlay-published-") as folder:
        scratch = Path(folder)
        questions = [question(project.trainer, case, scratch / f"{n}") for n, case in enumerate(cases)]
        for asked, case in zip(questions, cases, strict=True):
            asked["words"] += [word for option in project.advised(case.spec.layout) for word in option]
        answers = ask(project.trainer, source.resolve(), questions, scratch)
    return [checked(project.trainer, case, answer) for case, answer in zip(cases, answers, strict=True)]


def _outcome(problem: Problem | None, answer: Checked | None) -> Outcome:
    if answer is None:
        return Outcome(False, problem.message if problem is not None else "")
    return Outcome(not answer.differing, "; ".join(answer.differing))


def spec_of(training: Training) -> TrialSpec:
    """A trial of the training, as its recipe would have it."""
    layout, cluster = training.layout, training.cluster
    return TrialSpec(
        search_id="published-aaaaaa",
        trial="t0001",
        attempt="a1",
        nonce="0" * 32,
        kind=TrialKind.SEARCH,
        layout=layout,
        model=training.model,
        global_batch_size=layout.global_batch_size,
        num_gpus=layout.num_gpus,
        gpus_per_node=cluster.gpus_per_node,
        accelerator=cluster.accelerator.name,
        measure=MeasureRules(routing=None if training.model.num_experts is None else BALANCED),
        trainer={"kind": PARLAY},
    )


if __name__ == "__main__":
    main()
