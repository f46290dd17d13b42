"""Summary of a search in HTML, for a notebook's cell."""

from __future__ import annotations

from dashboards.report.data import ReportData
from dashboards.report.html import fragment
from dashboards.report.page import first_screen
from dashboards.terminal.headline import headline


def notebook_card(data: ReportData) -> str:
    """Headline, confidence, best layout and state; without scripts, in the notebook's own colours."""
    return fragment("notebook_card.html.jinja", data=data, headline=headline(data.verdict), **_shown(data))


def _shown(data: ReportData) -> dict[str, object]:
    screen = first_screen(data)
    return {name: screen[name] for name in ("below", "shape", "others", "tiles", "sure", "state")}
