"""The typer application: one module per verb."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from orchestrator.cli import (
    advance,
    best,
    calibrate,
    cancel,
    compare,
    dashboard,
    doctor,
    drive,
    export,
    forecast,
    import_results,
    init,
    ledger,
    logs,
    plan,
    replay,
    report,
    resume,
    schema,
    selftest,
    serve,
    slurm_sandbox,
    status,
    submit,
    sync,
    watch,
)
from orchestrator.cli.output import print_text
from orchestrator.cli.verbosity import Verb

app = typer.Typer(
    name="parlay",
    help="Finds the fastest way to lay a GPT training out over a cluster.",
    epilog="Start with: parlay init > search.yaml; parlay plan search.yaml; parlay run search.yaml",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verb in (
    init.init,
    plan.plan,
    schema.schema,
    drive.run,
    submit.submit,
    resume.resume,
    cancel.cancel,
    advance.advance,
    status.status,
    best.best,
    logs.logs,
    dashboard.dashboard,
    watch.watch,
    replay.replay,
    compare.compare,
    export.export,
    import_results.import_results,
    report.report,
    forecast.forecast,
    sync.sync,
    selftest.selftest,
    calibrate.calibrate,
    doctor.doctor,
    serve.serve,
):
    app.command(verb.__name__.removesuffix("_results"), cls=Verb)(verb)
app.add_typer(ledger.commands)
app.add_typer(slurm_sandbox.commands)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print_text(f"parlay {version('parlay')}")
        raise typer.Exit


@app.callback()
def _parlay(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the command itself; the callback of --version answers."""
