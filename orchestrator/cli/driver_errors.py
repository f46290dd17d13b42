"""Errors and exit codes shared by the verbs that drive a search."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from orchestrator.cli.output import exit_with_error, print_result
from orchestrator.common.exit_codes import ExitCode
from search_spaces.errors import ExternalError, Problem

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec
    from trials.files.folders import SearchFolder
    from trials.ledger.events import SearchRecord


@contextmanager
def exit_on_driver_errors(folder: SearchFolder, as_json: bool) -> Iterator[None]:
    """Within this block an error that ends the driver becomes an exit code and a fix."""
    from orchestrator.lifecycle.driver_job import DriverAlreadyQueued
    from orchestrator.search.lease import HELD_FIX, LeaseHeld, LeaseLost
    from trials.ledger.database import LedgerDamaged
    from trials.ledger.events import FencedError

    try:
        yield
    except LeaseHeld as held:
        fix = HELD_FIX if held.lease.is_fresh(time.time()) else None
        exit_with_error(ExitCode.HELD_BY_ANOTHER, Problem("held", str(held), fix=fix), as_json)
    except DriverAlreadyQueued as queued:
        exit_with_error(ExitCode.HELD_BY_ANOTHER, Problem("held", str(queued), fix=HELD_FIX), as_json)
    except (LeaseLost, FencedError) as lost:
        exit_with_error(ExitCode.STOPPED_EARLY, Problem("lease_lost", str(lost), fix=resume_fix(folder)), as_json)
    except LedgerDamaged as damaged:
        fix = f"{damaged.fix}; then {resume_fix(folder)}"
        exit_with_error(ExitCode.REFUSED, Problem("refused", str(damaged), fix=fix), as_json)
    except ExternalError as refused:
        exit_with_error(
            ExitCode.REFUSED, Problem("refused", str(refused), fix=refused.fix or resume_fix(folder)), as_json
        )
    except OSError as error:
        exit_with_error(ExitCode.REFUSED, Problem("refused", str(error), fix=resume_fix(folder)), as_json)
    except KeyboardInterrupt:
        problem = Problem("interrupted", "stopped; nothing is lost", fix=resume_fix(folder))
        exit_with_error(ExitCode.INTERRUPTED, problem, as_json)


def exit_code_of(search: SearchRecord) -> ExitCode:
    """Exit code for a search that has ended."""
    from trials.ledger.events import EndReason

    if search.best_trial is not None:
        return ExitCode.SUCCESS
    return ExitCode.REFUSED if search.end_reason is EndReason.SUBMISSION_REJECTED else ExitCode.NO_MEASUREMENT


def print_search(search: SearchRecord, folder: SearchFolder, spec: SearchSpec, as_json: bool) -> None:
    """Print the search as `status` does."""
    if as_json:
        from orchestrator.records.summary import status_of

        print_result(status_of(search, spec, folder), True)
    else:
        from orchestrator.cli.search_summary import print_search_summary

        print_search_summary(search, spec, folder)


def resume_fix(folder: SearchFolder) -> str:
    """Command that resumes the search."""
    return f"parlay resume {folder.cli_name}"
