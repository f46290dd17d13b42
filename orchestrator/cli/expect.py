"""`parlay expect`: whether a training is as fast as it should be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import Overrides, to_overrides
from orchestrator.cli.output import exit_with, print_result
from orchestrator.lifecycle.exit_codes import ExitCode
from search_spaces.errors import InputError
from search_spaces.schema.yaml_document import Override

if TYPE_CHECKING:
    from orchestrator.planning.expect import ExpectAnswer


def expect(
    training: Annotated[
        str,
        typer.Argument(
            help="A launch script, a trainer's configuration, a search file, a recipe, or a search that has one."
        ),
    ],
    sets: Overrides = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME|FILE", help="The cluster, where the file does not say it.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--log", help="A log of the training; its steps give the measured speed.")
    ] = None,
    tokens_per_sec: Annotated[
        float | None, typer.Option("--tokens-per-sec", help="Measured tokens/s of all ranks.")
    ] = None,
    tflops: Annotated[
        float | None, typer.Option("--tflops", help="Measured model TFLOP/s of one GPU, as its trainer counts them.")
    ] = None,
) -> None:
    """Exit code 0: normal, or no speed was given. 10: slow. 13: too little is known."""
    from orchestrator.cli.expect_source import speed_in_log, training_named
    from orchestrator.planning.expect import SpeedVerdict, answer_of

    given = [name for name, value in _measured(log, tokens_per_sec, tflops) if value is not None]
    if len(given) > 1:
        raise InputError.of("usage", f"is given with {given[1]}", key=given[0], fix="give one measured speed")
    by_cluster = [] if cluster is None else [Override(f"cluster={json.dumps(_cluster(cluster))}", "--cluster")]
    named = training_named(training, [*by_cluster, *to_overrides(sets)])
    of_log = None if log is None else speed_in_log(log, named.training)
    text, notes, measured = named.text, [*named.notes], tokens_per_sec
    if of_log is not None:
        text, measured = f"{text}\n{of_log.text}", of_log.tokens_per_sec
        notes.append(f"{of_log.steps} steps in the log; the measured speed is the median of their last half")
    elif tflops is not None:
        measured = tflops * named.training.layout.num_gpus / named.training.tflops_per_token
        notes.append("tokens/s are --tflops over Parlay's FLOPs of a token; a trainer may count others")
    answer = answer_of(named.training, measured, text, named.try_next(), notes)
    if of_log is not None and of_log.printed_tflops is not None and answer.measured_tflops_per_gpu is not None:
        counted = f"{answer.measured_tflops_per_gpu:.0f} here"
        answer.notes.append(f"the log prints {of_log.printed_tflops:.0f} TFLOP/s a GPU, which are {counted}")
    print_result(answer, "\n".join(_lines(answer)))
    if measured is not None:
        codes = {SpeedVerdict.SLOW: ExitCode.REPLAY_SLOWER, SpeedVerdict.UNKNOWN: ExitCode.REPLAY_INCONCLUSIVE}
        exit_with(codes.get(answer.verdict, ExitCode.SUCCESS))


def _cluster(given: str) -> str:
    """A described cluster's name, or a file's absolute path."""
    return str(Path(given).absolute()) if "/" in given or given.endswith((".yaml", ".yml")) else given


def _measured(*values: object) -> Iterator[tuple[str, object]]:
    yield from zip(("--log", "--tokens-per-sec", "--tflops"), values, strict=True)


def _lines(answer: ExpectAnswer) -> Iterator[str]:
    per_gpu = f"{answer.tflops_per_gpu:.0f} TFLOP/s a GPU"
    yield f"{answer.layout_key} on {answer.num_gpus} {answer.accelerator}"
    yield f"expected: {answer.median:,.0f} tokens/s ({answer.low:,.0f} to {answer.high:,.0f}), {per_gpu}"
    if answer.measured is not None:
        found = f"{answer.measured:,.0f} tokens/s, {answer.measured_tflops_per_gpu:.0f} TFLOP/s a GPU"
        slow = "" if answer.slow_by is None else " by a factor of {:.2g} to {:.2g}".format(*answer.slow_by)
        yield f"measured: {found}: {answer.verdict}{slow}"
    for cause in answer.causes:
        part = "" if cause.factor is None else f", {cause.factor:.2g} times as slow"
        what = "explains it" if cause.explains else "explains a part"
        yield f"- {cause.cause}{part}: {cause.tokens_per_sec:,.0f} tokens/s, {what}. {cause.evidence}"
        yield f"  shown by: {cause.shown_by}"
    yield "nearest published:"
    for row in answer.nearest:
        machine = f"{row.num_gpus} {row.machine}, {row.engine}"
        rate = f"{row.tokens_per_sec_per_gpu:,.0f} tokens/s and {row.tflops_per_gpu:.0f} TFLOP/s a GPU"
        yield f"- {row.model} on {machine}: {rate}, {row.over_expected:.2f} of what is expected of it"
        yield f"  {row.source}, {row.date}{row.release and f', release {row.release}'}; {', '.join(row.differs)}"
    if answer.try_next is not None:
        gain = f"{answer.try_next.gain:.2f} x as fast, predicted"
        yield f"parlay run would try {answer.try_next.layout_key}: {gain}"
    yield from (f"note: {note}" for note in answer.notes)
