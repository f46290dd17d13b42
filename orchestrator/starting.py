"""A search that begins or goes on: everything is checked first, then it is written down."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dashboards.mlflow_sync import MlflowSync
from orchestrator.earlier import collected
from orchestrator.find import Found
from orchestrator.search_file import SearchSpec
from orchestrator.session import create_search, open_tracking, prepare, with_carried_options
from orchestrator.site_check import require_site
from search_spaces.layout import Layout
from search_spaces.space import SearchSpace
from trials.folder import SearchFolder
from trials.ledger.place import ledger_url


@dataclass(frozen=True)
class Checked:
    """A new search that may begin; nothing is written yet."""

    spec: SearchSpec
    space: SearchSpace
    ledger_url: str


@dataclass(frozen=True)
class Started:
    """A search that is written down and can be driven; `candidates` is what may be tried."""

    folder: SearchFolder
    spec: SearchSpec
    candidates: Sequence[Layout]
    tracking: MlflowSync | None
    ledger_url: str


def checked(spec: SearchSpec, note: Callable[[str], None], default_ledger: str | None = None) -> Checked:
    """Whatever can be known to be wrong before anything is written or launched, as InputError or OutsideRefused.

    `default_ledger` is the URL where the search names none; without it Parlay's own.
    """
    spec = with_carried_options(spec, os.environ, note)
    url = default_ledger if spec.ledger.url is None and default_ledger is not None else ledger_url(spec.ledger.url)
    space = prepare(spec)
    require_site(spec, space, note)
    return Checked(spec, space, url)


def begun(search: Checked, note: Callable[[str], None]) -> Started:
    """Write the new search down, with what earlier ones teach it. InputError as `create_search`."""
    tracking = open_tracking(search.spec, note)
    earlier = collected(search.spec, search.ledger_url)
    for words in earlier.told:
        note(words)
    folder = create_search(search.spec, search.ledger_url, earlier)
    return Started(folder, search.spec, search.space.feasible, tracking, search.ledger_url)


def gone_on(found: Found, note: Callable[[str], None]) -> Started:
    """A search as it goes on; one that has ended needs nothing but its place, and is only left in order."""
    candidates = () if found.record.state.is_ended else prepare(found.spec).feasible
    return Started(found.folder, found.spec, candidates, open_tracking(found.spec, note), found.ledger_url)
