"""`parlay serve`: the service; and handing a search over to a running service."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import AsJson, LedgerUrl
from orchestrator.cli.output import Exit, exit_with_error, print_result, warn
from orchestrator.common.exit_codes import ExitCode
from search_spaces.errors import ExternalError, Problem
from slurm.environment import cluster_variables
from trials.files.text import plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.config.spec import SearchSpec
    from orchestrator.service.state_dir import ServiceAnswer, ServiceStateDir
    from trials.files.folders import SearchFolder


def serve(
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65535, help="Listen on this port of 127.0.0.1 (0: a free one) and require a token."
        ),
    ] = None,
    executor: Annotated[
        str, typer.Option("--executor", help="process: a process per search. ray: started by a Ray actor per search.")
    ] = "process",
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
    as_json: AsJson = False,
) -> None:
    """Drive the searches of many terminals until ctrl-C; a restart continues them."""
    if page:
        _print_address(as_json)
        return
    from orchestrator.service.executors import executor_named
    from orchestrator.service.server import ServiceOptions
    from orchestrator.service.server import serve as serve_here
    from orchestrator.service.state_dir import ServiceAlreadyRunning, ServiceStateDir
    from trials.ledger.location import home_folder, ledger_url

    wanted = ServiceOptions(port, executor_named(executor), max_in_flight, read_only)
    state_dir = ServiceStateDir.of(home_folder())

    def tell(about: ServiceAnswer) -> None:
        print_result(about, as_json, _where(about, state_dir))

    try:
        unended = serve_here(state_dir, ledger_url(ledger), wanted, tell)
    except ServiceAlreadyRunning as other:
        problem = Problem("held", str(other), fix=f"use it, or stop it first: kill {other.pid}" if other.pid else None)
        exit_with_error(ExitCode.HELD_BY_ANOTHER, problem, as_json)
    if unended:
        warn(
            f"stopped with {plural(len(unended), 'search')} unfinished; parlay serve or parlay resume ID continues them"
        )
        raise Exit(ExitCode.STOPPED_EARLY)


def _print_address(as_json: bool) -> None:
    from orchestrator.service.client import page_address
    from orchestrator.service.state_dir import PageAnswer
    from trials.ledger.location import home_folder

    address = page_address(home_folder(), time.time())
    print_result(PageAnswer(address=address), as_json, address)


def hand_over_to_service(folder: SearchFolder, spec: SearchSpec, url: str) -> int | None:
    """Have a running service drive the search; return its pid, or None if there is none.

    None, too, if the service uses another Slurm, or the search names a Ray of its own.
    """
    from orchestrator.service.client import running_service
    from trials.ledger.location import home_folder

    found = None if spec.launcher.address else running_service(home_folder())
    if found is None:
        return None
    client, health = found
    if spec.launcher.uses_slurm and (other := _other_slurm(health["slurm"])):
        warn(f"the service (process {health['pid']}) has another {other}; starting a separate driver process")
        return None
    try:
        client.resume(folder.search_id, folder.path, url)
    except ExternalError as refused:
        warn(f"{refused}; starting a separate driver process")
        return None
    return int(health["pid"])


def _other_slurm(of_service: Mapping[str, str]) -> str:
    """Environment variables in which the service's Slurm differs from this shell's; "" if none."""
    here = cluster_variables(os.environ)
    return ", ".join(sorted(name for name in here.keys() | of_service.keys() if here.get(name) != of_service.get(name)))


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
