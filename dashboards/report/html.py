"""Self-contained HTML pages from templates.

Text of trials and users is untrusted: Jinja escapes every value, data for scripts are in a block that no text can end,
and the Content-Security-Policy allows only the page's own scripts, by their hashes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

# Inline styles are allowed, since plotly.js sets some on its elements, which no hash can name.
_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; connect-src {connects};"
    " base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Page:
    """Whole document, and its Content-Security-Policy."""

    text: str
    policy: str


def html_page(
    template: str,
    title: str,
    scripts: Sequence[str] = (),
    asks_service: bool = False,
    draws: bool = False,
    styles: Sequence[str] = ("page.css",),
    **values: Any,
) -> Page:
    """Render a template as a page; with `asks_service` its scripts may connect to the server of the page only.

    With `draws` it begins with page.js and plotly.js, packed, which page.js unpacks. `scripts` and `styles` are files
    of this package.
    """
    scripts = [package_file(name) for name in (("page.js",) if draws else ()) + tuple(scripts)]
    allowed = " ".join(map(_hash, (*scripts, *((_plotly(),) if draws else ())))) or "'none'"
    policy = _POLICY.format(scripts=allowed, connects="'self'" if asks_service else "'none'")
    common = {
        "title": title,
        "policy": policy,
        "css": Markup("".join(map(package_file, styles))),
        "plotly": Markup(_packed_plotly()) if draws else None,
        "scripts": list(map(Markup, scripts)),
    }
    return Page(_environment().get_template(template).render(common | values), policy)


def fragment(template: str, **values: Any) -> str:
    """Render a template as a fragment of a foreign page, with escaped values."""
    return _environment().get_template(template).render(values)


def embedded_json(value: Any) -> Markup:
    """JSON that is safe inside a script element; ValueError for numbers that are not finite."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&'":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


@cache
def package_file(name: str) -> str:
    """Text of a file of this package."""
    return resources.files("dashboards.report").joinpath(name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    """Source of plotly.js from the plotly package."""
    return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")


@cache
def _packed_plotly() -> str:
    """The same as gzip in base64, with 2 MB in place of 4.8."""
    return base64.b64encode(gzip.compress(_plotly().encode(), mtime=0)).decode()


@cache
def _environment() -> Environment:
    loader = FunctionLoader(package_file)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


@cache
def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
