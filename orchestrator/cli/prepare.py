"""`parlay prepare`: a token file from JSON lines."""

from __future__ import annotations

import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchestrator.cli.output import Exit, log, print_result, warn
from orchestrator.common.answer import Answer
from orchestrator.common.exit_codes import ExitCode
from search_spaces.errors import InputError, Problem

if TYPE_CHECKING:
    from trials.data.prepare import Preparation, Progress
    from trials.data.token_file import TokenHeader


class PrepareAnswer(Answer):
    """Printed by prepare."""

    schema_: Literal["parlay.prepare/1"] = "parlay.prepare/1"
    out: str
    num_documents: int
    num_skipped: int
    num_tokens: int
    vocab_size: int
    checksum: str


LINE_INTERVAL_S = 10.0
MAX_SKIPPED_LISTED = 5


def prepare(
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT...", help="JSON Lines files; - is stdin.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Token file to create.")],
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", help="A Hugging Face tokenizer.json, or `bytes`: one token per byte.")
    ],
    fields: Annotated[
        str,
        typer.Option("--fields", help="Fields of each line to join, in this order: context,instruction,response."),
    ] = "text",
    separator: Annotated[
        str, typer.Option("--separator", help=r"Text between fields; \n is a newline, \t a tab.")
    ] = r"\n",
    append_eos: Annotated[bool, typer.Option("--append-eos", help="Append the tokenizer's end token to each text.")] = (
        False
    ),
    eos_token: Annotated[
        str | None, typer.Option("--eos-token", help="End token, if it is not one of the usual ones.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Maximum number of texts.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip and count invalid lines.")] = False,
) -> None:
    from trials.data.prepare import Preparation

    if eos_token is not None and not append_eos:
        fix = "add --append-eos, or leave --eos-token out"
        raise InputError.of("usage", "needs --append-eos", key="--eos-token", value=eos_token, fix=fix)
    names = tuple(name.strip() for name in fields.split(","))
    between = separator.replace(r"\n", "\n").replace(r"\t", "\t")
    preparation = Preparation(tuple(inputs), names, between, append_eos, limit, skip_bad)
    header, done = _write(preparation, tokenizer, eos_token, out)
    answer = PrepareAnswer(
        out=str(out),
        num_documents=done.num_documents,
        num_skipped=done.num_skipped,
        num_tokens=header.num_tokens,
        vocab_size=header.vocab_size,
        checksum=header.checksum,
    )
    print_result(answer, _format_result(header, done, out))


def _write(preparation: Preparation, tokenizer: str, eos_token: str | None, out: Path) -> tuple[TokenHeader, Progress]:
    """Write the file and show progress; exits with an error if interrupted."""
    from trials.data.prepare import ProgressListener
    from trials.data.prepare import prepare as write_tokens
    from trials.data.tokenizer import open_tokenizer

    # A batch job that is terminated must not leave a partial file either.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        chosen = open_tokenizer(tokenizer, eos_token)
        with _progress_display(None if preparation.limit else _total_bytes(preparation.inputs)) as on_progress:
            return write_tokens(preparation, chosen, out, ProgressListener(on_progress, _SkippedLines().report))
    except KeyboardInterrupt:
        raise Exit(ExitCode.INTERRUPTED, _interrupted(out)) from None


def _format_result(header: TokenHeader, done: Progress, out: Path) -> str:
    skipped = f"; {done.num_skipped} invalid lines skipped" if done.num_skipped else ""
    return (
        f"{out}: {header.num_tokens} tokens of {done.num_documents} texts, vocabulary {header.vocab_size}{skipped}\n"
        f"in the search file: trainer: {{data: {{kind: tokens, path: {out}}}}}"
    )


def _interrupted(out: Path) -> Problem:
    """Problem after an interrupt; the writer has removed a partial file."""
    if out.exists():  # the interrupt came after the rename, or `out` existed before
        return Problem("interrupted", f"stopped; {out} is complete")
    return Problem("interrupted", f"stopped; {out} was not written", fix="run it again; it starts over")


class _SkippedLines:
    """Reports the first skipped lines, up to MAX_SKIPPED_LISTED."""

    def __init__(self) -> None:
        self._count = 0

    def report(self, problem: Problem) -> None:
        self._count += 1
        if self._count <= MAX_SKIPPED_LISTED:
            warn(f"skipped: {problem.file}:{problem.line}: {problem.message}")
        elif self._count == MAX_SKIPPED_LISTED + 1:
            warn("skipped: further lines are not listed")


@contextmanager
def _progress_display(total_bytes: int | None) -> Iterator[Callable[[Progress], None]]:
    """Progress callback for this block: a bar on a terminal, else a line from time to time."""
    from dashboards.terminal.live_table import console_for

    console = console_for(sys.stderr)
    if not console.is_terminal or console.is_dumb_terminal:
        yield _ProgressLines(total_bytes).report
        return
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("", total=total_bytes)
        yield lambda progress: bar.update(task, completed=progress.bytes_read, description=_format_progress(progress))


class _ProgressLines:
    def __init__(self, total_bytes: int | None) -> None:
        self._total_bytes = total_bytes
        self._printed_at = time.monotonic()

    def report(self, progress: Progress) -> None:
        if time.monotonic() - self._printed_at < LINE_INTERVAL_S:
            return
        self._printed_at = time.monotonic()
        share = f"{progress.bytes_read / self._total_bytes:.0%}, " if self._total_bytes else ""
        log(share + _format_progress(progress))


def _format_progress(progress: Progress) -> str:
    return f"{progress.num_documents} texts, {progress.num_tokens} tokens"


def _total_bytes(inputs: Sequence[str]) -> int | None:
    """Size of all inputs; None if one is not a regular file."""
    sizes = []
    for name in inputs:
        try:
            found = Path(name).stat()
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        sizes.append(found.st_size)
    return sum(sizes)
