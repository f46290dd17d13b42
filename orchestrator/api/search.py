"""Search as an object: its record, tables, figures and report, as returned by `orchestrator.api`."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.records.output_file import write_new

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go

    from dashboards.search_view import SearchView
    from orchestrator.config.spec import SearchSpec
    from orchestrator.recipe.recipe import Recipe
    from orchestrator.records.lookup import LocatedSearch
    from orchestrator.records.summary import BestLayout, StatusAnswer
    from trials.ledger.events import EndReason, SearchState


@dataclass(frozen=True, repr=False)
class Search:
    """Snapshot of a search, taken when it was loaded or when its run ended; `refresh` takes a new one.

    All tables and figures of a Search show the same moment. Reading never changes the search.
    """

    _located: LocatedSearch

    @property
    def search_id(self) -> str:
        return self._located.record.search_id

    @property
    def folder(self) -> Path:
        """Folder with search.yaml, journal.jsonl, trials/, recipe/ and so on (docs/files.md)."""
        return self._located.folder.path

    @property
    def state(self) -> SearchState:
        return self._located.record.state

    @property
    def end_reason(self) -> EndReason | None:
        """Reason of its end; None while it has not ended."""
        return self._located.record.end_reason

    @property
    def spec(self) -> SearchSpec:
        """The search file with all defaults resolved."""
        return self._located.spec

    @cached_property
    def summary(self) -> StatusAnswer:
        """The object of `parlay status --json`: trial counts, failure reasons, node-hours, recipe and MLflow."""
        from orchestrator.records.summary import status_of

        return status_of(self._located.record, self.spec, self._located.folder)

    @property
    def best(self) -> BestLayout | None:
        """The best layout: trial, layout, tokens/s with its 95 % interval, ties; None without one."""
        return self.summary.best

    @cached_property
    def trials(self) -> pandas.DataFrame:
        """One row per trial in the order of proposal; columns as in trials.csv, unknown values are NA."""
        from orchestrator.api.dataframes import trials_frame

        return trials_frame(self._located.record)

    @cached_property
    def events(self) -> pandas.DataFrame:
        """One row per event of the journal: seq, fencing, at (UTC), kind, trial, attempt, data.

        OSError if the folder cannot be read.
        """
        from orchestrator.api.dataframes import events_frame
        from trials.ledger.journal import Journal

        with closing(Journal(self._located.folder.journal)) as journal:
            return events_frame(journal.read())

    @property
    def recipe(self) -> Recipe | None:
        """Recipe of the best layout, with its evidence; None until it is written. InputError for an edited one."""
        from orchestrator.recipe.read import read_recipe

        folder = self._located.folder.recipe
        return read_recipe(folder).recipe if folder.exists() else None

    @cached_property
    def figures(self) -> dict[str, go.Figure]:
        """The report's figures by name, those that have data: progress, importance, memory, heat, time, predictions."""
        from dashboards.report.figures.plotly_export import graph_figures

        return graph_figures(self._view)

    def report(self, output: Path | str | None = None) -> Path:
        """Write the report (HTML) to the new file `output`, or to report.html in the folder, and return its path."""
        from dashboards.report.write import report_text, write_report

        if output is None:
            write_report(self._located.record, self._located.folder, time.time())
            return self._located.folder.report
        write_new(Path(output), report_text(self._located.record, self._located.folder, time.time()), "output")
        return Path(output)

    def refresh(self) -> Search:
        """Load the search again."""
        from orchestrator.records.lookup import find_search

        return Search(find_search(str(self.folder), self._located.ledger_url))

    def __repr__(self) -> str:
        return f"<Search {self.search_id}, {self.state}: {self._headline}>"

    def _repr_html_(self) -> str:
        from dashboards.report.page import notebook_card

        return notebook_card(self._view)

    @cached_property
    def _view(self) -> SearchView:
        from dashboards.search_view import SearchView

        return SearchView.of(self._located.record, time.time())

    @property
    def _headline(self) -> str:
        from orchestrator.records.summary import result_line

        return result_line(self._located.record, self.spec)
