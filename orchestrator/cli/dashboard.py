"""`parlay dashboard`: MLflow's UI on this machine."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from orchestrator.cli.output import Exit, log, print_result
from orchestrator.lifecycle.exit_codes import ExitCode
from search_spaces.errors import Problem


def dashboard(
    uri: Annotated[str | None, typer.Option("--mlflow-uri", help="Tracking store; default: Parlay's own.")] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, help="Port on loopback; default: a free one.")
    ] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Only print an address of the running dashboard, valid once.")
    ] = False,
) -> None:
    from dashboards.mlflow.backend_store import tracking_uri
    from dashboards.mlflow.server import ServerFailed, page_address, show_dashboard
    from orchestrator.service.state_dir import DashboardAnswer, PageAnswer
    from trials.ledger.location import home_folder

    home = home_folder()
    if page:
        address = page_address(home, port, time.time())
        print_result(PageAnswer(address=address), address)
        return
    try:
        show_dashboard(tracking_uri(uri, home), home, log, port)
    except ServerFailed as error:
        raise Exit(ExitCode.REFUSED, Problem("mlflow", str(error))) from error
    except KeyboardInterrupt:
        print_result(DashboardAnswer(uri=tracking_uri(uri, home)))
