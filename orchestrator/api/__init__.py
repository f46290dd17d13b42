"""Public Python API: plan, run, load, cancel, replay, compare and forecast searches (docs/api.md).

    from orchestrator import api

    search = api.run("search.yaml", search={"max_trials": 20}, launcher={"kind": "slurm"})
    search.trials, search.best, search.figures["progress"]

The functions do what the verbs of the command line do. They raise InputError for what the caller can correct,
ExternalError for what Slurm, Ray or a database refuses, and LeaseHeld for a search that another driver holds.
"""

from orchestrator.api.functions import cancel, compare, forecast, load, plan, replay, resume, run, searches
from orchestrator.api.search import Search
from orchestrator.search.lease import LeaseHeld
from search_spaces.errors import ExternalError, InputError

__all__ = [
    "ExternalError",
    "InputError",
    "LeaseHeld",
    "Search",
    "cancel",
    "compare",
    "forecast",
    "load",
    "plan",
    "replay",
    "resume",
    "run",
    "searches",
]
