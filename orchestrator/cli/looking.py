"""Verbs that look at a search and at what it found: status, best, logs, replay, dashboard."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import AsJson, LedgerUrl, SearchId
from orchestrator.cli.output import Exit, answer, fail, say
from orchestrator.cli.stop import Stop
from search_spaces.errors import InputError, Problem
from trials.folder import SearchFolder, write_json
from trials.text import counted, tail

if TYPE_CHECKING:
    from orchestrator.recipe.read import LoadedRecipe
    from orchestrator.replay import ReplayResult, ReplayRules

BEST_SCHEMA = "parlay.best/1"
LOGS_SCHEMA = "parlay.logs/1"
DASHBOARD_SCHEMA = "parlay.dashboard/1"
SEARCHES_SCHEMA = "parlay.searches/1"
EXCERPT_LINES = 40


class ReplayLauncher(StrEnum):
    """What may start a replay's ranks."""

    LOCAL = "local"
    RAY = "ray"
    SLURM = "slurm"


def add_to(app: typer.Typer) -> None:
    """Register this file's verbs."""
    for verb in (status, best, logs, replay, dashboard):
        app.command()(verb)


def status(
    search: SearchId = None,
    every: Annotated[bool, typer.Option("--all", help="One line for each search of the ledger.")] = False,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show where a search stands."""
    if every:
        _list_searches(ledger, as_json)
        return
    from orchestrator.cli.find import find_search
    from orchestrator.cli.summary import show_search
    from orchestrator.status import search_summary

    found = find_search(search, ledger)
    spec = found.spec
    summary = search_summary(found.record, spec, found.folder)
    answer(summary, as_json)
    if not as_json:
        show_search(found.record, spec, found.folder)


def best(search: SearchId = None, ledger: LedgerUrl = None, as_json: AsJson = False) -> None:
    """Print the best layout of a search and where its recipe lies."""
    from dashboards.trial_words import flag_words, time_words
    from orchestrator.cli.find import find_search
    from orchestrator.cli.summary import answer_in_words
    from orchestrator.status import recipe_path
    from trials.answer import best_json
    from trials.ranking import rank

    found = find_search(search, ledger)
    spec = found.spec
    ranking = rank(found.record.trials, spec.objective, spec.global_batch_size)
    winner = best_json(ranking)
    if winner is None:
        yet = "" if found.record.state.is_ended else " yet"
        problem = Problem("no_measurement", f"search {found.record.search_id} has measured no layout{yet}")
        fail(ExitCode.NO_MEASUREMENT, problem, as_json)
    data = {"schema": BEST_SCHEMA, "search_id": found.record.search_id} | winner
    data |= {"recipe": recipe_path(found.folder)}
    lines = [answer_in_words(found.record, spec), time_words(winner), *map(flag_words, winner["flags"])]
    lines.append(f"recipe: {data['recipe'] or 'not written yet'}")
    answer(data, as_json, "\n".join(filter(None, lines)))


def logs(
    trial: Annotated[str, typer.Argument(help="t0001 (its last attempt) or t0001.a1.")],
    search: Annotated[
        str | None, typer.Option("--search", help="The search's id or folder; the newest if absent.")
    ] = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Print the whole log of this rank.")] = None,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show what a trial's ranks wrote, and the first real error among it."""
    from dashboards.trial_words import failure_words
    from orchestrator.cli.find import find_attempt, find_search
    from orchestrator.cli.summary import what_to_try

    found = find_search(search, ledger)
    which, attempt = find_attempt(found.record, trial)
    folder = found.folder.attempt(which.trial, attempt.attempt)
    excerpt = attempt.excerpt
    if rank is not None:
        excerpt = _whole_log(folder.rank_log(rank))
    elif excerpt is None and folder.rank_logs():
        excerpt = tail(folder.rank_logs()[0], EXCERPT_LINES)
    paths = [str(path) for path in folder.rank_logs()]
    data = {
        "schema": LOGS_SCHEMA,
        "trial": which.trial,
        "attempt": attempt.attempt,
        "files": paths,
        "excerpt": excerpt,
    }
    heading = [f"{which.trial}.{attempt.attempt}: {attempt.state}" + (f" ({attempt.reason})" if attempt.reason else "")]
    if words := failure_words(attempt, found.spec.measure.memory_limit_gib):
        heading.append(words)
    if advice := what_to_try(attempt.reason, found.spec):
        heading.append(f"to try: {advice}")
    answer(data, as_json, "\n".join([*heading, *paths, "", excerpt or "(nothing was written)"]))


def replay(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe's folder, or a search's id; the newest search if absent.")
    ] = None,
    launcher: Annotated[
        ReplayLauncher | None, typer.Option("--launcher", help="What starts the ranks; what the search used if absent.")
    ] = None,
    trainer: Annotated[
        str | None,
        typer.Option("--trainer", help="Another trainer's kind, told more by --set; the one that measured if absent."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Of that trainer: --set trainer.script=pretrain_gpt.py."),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", help="How often the layout is measured.")] = 5,
    margin: Annotated[float, typer.Option("--margin", help="Relative change that still counts as the same.")] = 0.05,
    force: Annotated[bool, typer.Option("--force", help="Read a recipe that was edited all the same.")] = False,
    work_dir: Annotated[Path, typer.Option("--work-dir", help="Folder in which the replay gets its own.")] = Path(
        "runs"
    ),
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Measure a recipe's layout again and say whether it was reproduced."""
    from orchestrator.recipe.read import read_recipe
    from orchestrator.replay import ReplayRules

    loaded = read_recipe(_recipe_folder(recipe, ledger), force)
    if loaded.banner:
        say(loaded.banner)
    rules = ReplayRules(repeats, margin)
    loaded, python = _with_trainer(loaded, trainer, sets or ())
    folder = SearchFolder(work_dir.absolute() / f"replay-{secrets.token_hex(3)}")
    result = _replayed(loaded, launcher, rules, folder, python, as_json)
    answer(result.to_json(), as_json, None if as_json else _replay_words(result))
    if (code := _REPLAY_EXITS[result.verdict.value]) is not ExitCode.DONE:
        raise Exit(code)


def dashboard(
    uri: Annotated[str | None, typer.Option("--mlflow-uri", help="Another tracking store than the default.")] = None,
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535, help="Port on loopback; a free one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Open MLflow's UI on what was recorded, on this machine's loopback, until ctrl-C."""
    from dashboards.mlflow_sync import tracking_uri
    from dashboards.server import ServerFailed, show_dashboard
    from trials.ledger.place import home_folder

    home = home_folder()
    try:
        show_dashboard(tracking_uri(uri, home), home, say, port)
    except ServerFailed as error:
        fail(ExitCode.REFUSED, Problem("mlflow", str(error)), as_json)
    except KeyboardInterrupt:
        answer({"schema": DASHBOARD_SCHEMA, "uri": tracking_uri(uri, home)}, as_json)


_REPLAY_EXITS = {
    "reproduced": ExitCode.DONE,
    "slower": ExitCode.REPLAY_SLOWER,
    "faster": ExitCode.REPLAY_FASTER,
    "impossible": ExitCode.REPLAY_IMPOSSIBLE,
    "inconclusive": ExitCode.REPLAY_INCONCLUSIVE,
}


def _list_searches(ledger: str | None, as_json: bool) -> None:
    from trials.ledger.place import ledger_url
    from trials.ledger.reader import LedgerReader

    with closing(LedgerReader(ledger_url(ledger))) as reader:
        searches = reader.searches()
    rows = [
        {
            "search_id": s.search_id,
            "state": s.state,
            "end_reason": s.end_reason,
            "num_trials": s.num_trials,
            "best_trial": s.best_trial,
            "folder": s.folder,
        }
        for s in searches
    ]
    lines = [f"{s.search_id}  {s.state}  {counted(s.num_trials, 'trial')}  {s.folder}" for s in searches]
    answer({"schema": SEARCHES_SCHEMA, "searches": rows}, as_json, "\n".join(lines) or "no search yet")


def _whole_log(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise InputError.of("unknown_id", f"there is no log {path.name}", value=str(path), key="--rank") from None


def _recipe_folder(given: str | None, ledger: str | None) -> Path:
    """The recipe a person means: its folder, a search's folder, or a search's id."""
    from orchestrator.cli.find import find_search

    if given is not None and ("/" in given or os.path.exists(given)) and not SearchFolder(Path(given)).is_one:
        return Path(given)
    found = find_search(given, ledger)
    if not found.folder.recipe.exists():
        raise InputError.of(
            "recipe", f"search {found.record.search_id} has no recipe yet", fix="one is written when it has ended"
        )
    return found.folder.recipe


def _with_trainer(loaded: LoadedRecipe, kind: str | None, sets: Sequence[str]) -> tuple[LoadedRecipe, str]:
    """The recipe as the trainer is to run it, and the interpreter that does."""
    from orchestrator.replay_trainer import trainer_section, under_trainer

    if kind is None and not sets:
        return loaded, sys.executable
    if kind is None:
        fix = "name the trainer with --trainer, or leave --set out"
        raise InputError.of("usage", "says something of another trainer", key="--set", value=sets[0], fix=fix)
    section = trainer_section(kind, sets, Path.cwd())
    return under_trainer(loaded, section), section.python or sys.executable


def _replayed(
    loaded: LoadedRecipe,
    kind: ReplayLauncher | None,
    rules: ReplayRules,
    folder: SearchFolder,
    python: str,
    as_json: bool,
) -> ReplayResult:
    """Measure under a launcher of its own; `ray` falls back to plain processes as in a search."""
    from orchestrator.launchers.factory import make_launcher
    from orchestrator.replay import launcher_section, this_machine
    from orchestrator.replay import replay as measure_again
    from orchestrator.replay_runs import ReplayWatcher

    section = launcher_section(loaded.recipe, None if kind is None else kind.value)
    is_here = section.kind == "local" or (section.kind == "ray" and section.address is None)
    here = this_machine(loaded.recipe.cluster, os.environ) if is_here else None
    stop = Stop()
    watcher = ReplayWatcher(say, stop.is_asked)
    try:
        launcher, remark = make_launcher(section, parallel_trials=1, cluster=here or loaded.recipe.cluster)
        say(remark or f"measuring {counted(rules.repeats, 'time')} in {folder.path}")
        with closing(launcher), stop.listening():
            result = measure_again(loaded, launcher, folder, python=python, rules=rules, here=here, watcher=watcher)
        if folder.path.exists():
            write_json(folder.path / "replay.json", result.to_json())
        return result
    except KeyboardInterrupt:
        problem = Problem("interrupted", "the replay was stopped before it had a verdict", fix="run it again")
        fail(stop.code, problem, as_json)
    except OSError as error:
        problem = Problem("refused", str(error), key="--work-dir", fix="name a folder that you may write to")
        fail(ExitCode.REFUSED, problem, as_json)


def _replay_words(result: ReplayResult) -> str:
    lines = [f"{result.verdict}: recorded {result.recorded_tokens_per_sec:,.0f} tokens/s"]
    found = result.comparison
    if found is not None and result.measured_tokens_per_sec is not None:
        lines[0] += (
            f", now {result.measured_tokens_per_sec:,.0f}{_with_whom(result.trainer)}"
            f" ({found.ratio:.3f} times as fast, 95 % between {found.low:.3f} and {found.high:.3f})"
        )
    if result.detail:
        lines.append(result.detail)
    lines += [f"  {d['field']}: recorded {d['recorded']}, here {d['here']}" for d in result.differences]
    return "\n".join(lines)


def _with_whom(trainer: str) -> str:
    return "" if trainer == "parlay" else f" with {trainer}"
