"""Launch of a recorded attempt, once."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.launchers.base import LaunchPostponed, LaunchRefused, LaunchRequest
from orchestrator.search.context import SearchContext
from trials.ledger.events import EndReason


class OnceLauncher:
    """Passes each request to the launcher once, and keeps its job id until that is recorded: the disk may be full."""

    def __init__(self, context: SearchContext):
        self._context = context
        self._launched: dict[str, str | None] = {}

    def launch(self, request: LaunchRequest, record: Callable[[str], object]) -> None:
        """Launch the request and `record` its job id. What can be done later is left to the next call; a refusal by the
        launcher stops the search."""
        self._context.callbacks.renew_lease()  # many launches may together outlast the lease
        try:
            if request.key not in self._launched:
                self._launched[request.key] = self._context.launcher.launch(
                    self._context.factory.with_spec_file(request)
                )
        except LaunchPostponed as postponed:
            self._context.log_once.info(str(postponed))
            return
        except LaunchRefused as refusal:
            self._context.stop(EndReason.SUBMISSION_REJECTED, str(refusal))
            return
        except OSError as error:  # this folder cannot be written; others may be
            self._context.log_once.warning(f"retrying: {error}")
            return
        if (job_id := self._launched[request.key]) is not None:
            record(job_id)
        del self._launched[request.key]
