"""`parlay serve`: the service."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import LedgerUrl
from orchestrator.cli.output import Exit, print_result, warn
from orchestrator.lifecycle.exit_codes import ExitCode
from orchestrator.service.driver_process import ExecutorKind
from search_spaces.errors import Problem
from trials.files.text import plural

if TYPE_CHECKING:
    from orchestrator.service.state_dir import ServiceAnswer, ServiceStateDir


def serve(
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65535, help="Listen on this port of 127.0.0.1 (0: a free one) and require a token."
        ),
    ] = None,
    executor: Annotated[
        ExecutorKind,
        typer.Option("--executor", help="process: a process per search. ray: started by a Ray actor per search."),
    ] = ExecutorKind.PROCESS,
    max_in_flight: Annotated[
        int | None,
        typer.Option(
            "--max-in-flight", min=1, metavar="N", help="Limit on trials in flight of all searches, shared fairly."
        ),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Pages in a browser cannot cancel or resume a search.")
    ] = False,
    page: Annotated[
        bool, typer.Option("--page", help="Only print an address of the running service's pages, valid once.")
    ] = False,
    ledger: LedgerUrl = None,
) -> None:
    from orchestrator.service.state_dir import PageAnswer, ServiceAlreadyRunning, ServiceStateDir
    from trials.ledger.location import home_folder, ledger_url

    if page:
        from orchestrator.service.client import service_address

        address = service_address(home_folder(), time.time())
        print_result(PageAnswer(address=address), address)
        return
    from orchestrator.service.server import ServiceOptions
    from orchestrator.service.server import serve as serve_here

    wanted = ServiceOptions(port, executor, max_in_flight, read_only)
    state_dir = ServiceStateDir.of(home_folder())
    try:
        unended = serve_here(
            state_dir, ledger_url(ledger), wanted, lambda about: print_result(about, _where(about, state_dir))
        )
    except ServiceAlreadyRunning as other:
        fix = f"use it, or stop it first: kill {other.pid}" if other.pid else None
        raise Exit(ExitCode.HELD_BY_ANOTHER, Problem("held", str(other), fix=fix)) from other
    if unended:
        warn(
            f"stopped with {plural(len(unended), 'search')} unfinished; parlay serve or parlay resume ID continues them"
        )
        raise Exit(ExitCode.STOPPED_EARLY)


def _where(about: ServiceAnswer, state_dir: ServiceStateDir) -> str:
    if about.port is None:
        return f"listening on {about.socket} (process {about.pid}, executor {about.executor})"
    return (
        f"listening on http://127.0.0.1:{about.port} (process {about.pid}, executor {about.executor});"
        f" the token is in {state_dir.token}; for a browser: {_page_hint(about.port, state_dir)}"
    )


def _page_hint(port: int, state_dir: ServiceStateDir) -> str:
    """An address that opens the pages, printed only to a terminal and never to a log."""
    from dashboards.access.browser_sessions import entry_address

    if not sys.stdout.isatty():
        return "parlay serve --page prints an address"
    address = entry_address(port, state_dir.read_token(), time.time())
    return f"{address} (it opens once, within ten minutes; parlay serve --page prints another)"
