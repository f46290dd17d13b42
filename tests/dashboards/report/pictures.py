"""Pictures of docs/images: `python -m tests.dashboards.report.pictures REPORT.html`.

The first screen of REPORT.html and of the searches in `STATES`, at 1440 pixels, dark, and at 390 pixels.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from PIL import Image

from dashboards.report.data import report_data
from dashboards.report.page import report_page
from tests.chromium import Chromium, started_chromium
from tests.dashboards.report.searches import STATES
from tests.dashboards.searches import START
from tests.sources import ROOT

_COLOURS = 128
_VIEWS = {"desktop": (1440, 900, "light"), "dark": (1440, 900, "dark"), "phone": (390, 844, "light")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, help="report.html of a search that has ended")
    report = parser.parse_args().report.resolve()
    images = ROOT / "docs" / "images"
    with started_chromium() as chromium, tempfile.TemporaryDirectory() as folder:
        take(chromium, report, images, "report")
        for name, search in STATES.items():
            page = Path(folder) / f"{name}.html"
            page.write_text(report_page(report_data(search().record, START + 660)), encoding="utf-8")
            take(chromium, page, images, f"report-{name.replace('_', '-')}")


def take(chromium: Chromium, page: Path, images: Path, name: str) -> None:
    """Write the three pictures of one page, with few colours so that they are small."""
    for view, (width, height, scheme) in _VIEWS.items():
        file = images / f"{name}-{view}.png"
        with chromium.tab() as tab:
            tab.look(width, height, scheme)
            tab.open(page.as_uri())
            tab.picture(file)
        Image.open(file).convert("RGB").quantize(_COLOURS).save(file, optimize=True)


if __name__ == "__main__":
    main()
