"""What all of Parlay's own pages are made of: one file each, that asks for nothing it does not hold itself.

What trials and users wrote is hostile until it is escaped: every value goes through Jinja's escaping, data for scripts
stand in a block that no text can end, and the page's policy lets only its own scripts run, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

# Styles are our own and without addresses; plotly sets some beside its elements, which no hash can name.
_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; connect-src {connects};"
    " base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Page:
    """A whole document, and the Content-Security-Policy that it carries."""

    text: str
    policy: str


def html_page(
    template: str, title: str, scripts: Sequence[str] = (), asks_service: bool = False, **values: Any
) -> Page:
    """The template with these values; `asks_service`: its scripts may ask whoever served the page, and nobody else."""
    allowed = " ".join(map(_hash, scripts)) or "'none'"
    policy = _POLICY.format(scripts=allowed, connects="'self'" if asks_service else "'none'")
    common = {"title": title, "policy": policy, "css": Markup(own("page.css")), "scripts": list(map(Markup, scripts))}
    return Page(_environment().get_template(template).render(common | values), policy)


def fragment(template: str, **values: Any) -> str:
    """A part of somebody else's page: the template with these values, escaped."""
    return _environment().get_template(template).render(values)


def embedded_json(value: Any) -> Markup:
    """JSON that can stand inside a script element: nothing in it is markup. ValueError for what is not finite."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&'":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


@cache
def own(name: str) -> str:
    """A file of this package."""
    return resources.files("dashboards.report").joinpath(name).read_text(encoding="utf-8")


@cache
def plotly() -> str:
    """plotly.js as its package brings it; `import plotly` loads nothing of it."""
    text = resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    return text.replace("</script", "<\\/script")


@cache
def _environment() -> Environment:
    loader = FunctionLoader(own)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


@cache
def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
