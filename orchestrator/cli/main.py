"""The command `parlay`: verbs, errors and exit codes. What a verb needs is imported when the verb runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from orchestrator.cli import files, looking, running
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.output import Exit, report, report_input_error
from search_spaces.errors import InputError, OutsideRefused, Problem

app = typer.Typer(
    name="parlay",
    help="Finds the fastest way to lay a GPT training out over a cluster.",
    epilog="Begin with: parlay init > search.yaml; parlay plan search.yaml; parlay run search.yaml",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verbs in (files, running, looking):
    verbs.add_to(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit code."""
    os.umask(0o077)  # what a search writes is its user's own, also on a machine with a careless default
    words = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(int(run(words)))


def run(words: Sequence[str]) -> int:
    """Run one command; its exit code. Only our own bugs escape, as exceptions with a traceback."""
    as_json = "--json" in words
    try:
        return app(list(words), prog_name="parlay", standalone_mode=False) or ExitCode.DONE
    except Exit as exit:
        return exit.code
    except InputError as error:
        return report_input_error(error, as_json)
    except OutsideRefused as refused:
        return report(Problem("refused", str(refused)), ExitCode.REFUSED, as_json)
    except typer.TyperException as error:
        return report(Problem("usage", str(error), fix="parlay --help"), ExitCode.BAD_INPUT, as_json)
    except typer.Abort:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone; nothing is left to say
        return ExitCode.DONE


if __name__ == "__main__":
    main()
