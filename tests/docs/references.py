"""References of the pages that must exist: commands with options, links, headings, files and modules. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.docs.console import ROOT

ROOMS = ("search_spaces", "slurm", "trials", "dashboards", "orchestrator", "tests", "benchmarks", "docs")

_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")
_INDENTED = re.compile(r"^(?: {4,}|\t)(.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_COMMAND = re.compile(r"(?:^|[\s$(`])parlay ((?:[a-z][a-z-]*)(?: (?:start|stop|rebuild))?)\b([^|;&\n`)#]*)")
_MODULE = re.compile(rf"-m\s+((?:{'|'.join(ROOMS)})[\w.]*)")
_PATH = re.compile(rf"(?:{'|'.join(ROOMS)})/[\w./*-]*")


def pages() -> list[Path]:
    """Every page that people read: those beside the rooms, and docs/ with what is below it."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@dataclass(frozen=True)
class Mention:
    """`parlay VERB` with the options that follow it on a line."""

    verb: str
    options: tuple[str, ...]


def commands_named(text: str) -> Iterator[Mention]:
    """In code: blocks, indented lines, and what stands between backticks."""
    for code in _codes(text):
        for verb, rest in _COMMAND.findall(re.sub(r"\\\n\s*", " ", code)):
            yield Mention(verb, tuple(re.findall(r"(?<![\w-])(--[a-z][a-z-]+|-[a-z])\b", rest)))


def options_listed(text: str) -> set[str]:
    """Those that tables explain, in their first column."""
    cells = re.findall(r"^\| (`--[^|]*)", text, re.MULTILINE)
    return {option for cell in cells for option in re.findall(r"`(--[a-z][a-z-]+)", cell)}


def _codes(text: str) -> Iterator[str]:
    yield from _FENCE.findall(text)
    prose = _FENCE.sub("", text)
    yield from _INDENTED.findall(prose)
    yield from (" ".join(span.split()) for span in _SPAN.findall(prose))


def links(text: str) -> list[str]:
    """Targets of links and pictures within the project, `page#heading` as they stand there."""
    return [target for target in _LINK.findall(_FENCE.sub("", text)) if "://" not in target]


def headings(text: str) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    titles = re.findall(r"^#+ (.+)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def paths_named(text: str) -> set[str]:
    """Files and folders of the project between backticks; not those that stand for any (`NAME`)."""
    spans = {span for span in _SPAN.findall(_FENCE.sub("", text)) if _PATH.fullmatch(span)}
    return {span for span in spans if not re.search(r"[A-Z]{3,}(?!\w*\.md)", span)}


def make_targets_named(text: str) -> set[str]:
    """`make TARGET`, typed or between backticks."""
    return set(re.findall(r"(?:^\$ |`)make ([a-z-]+)", text, re.MULTILINE))


def modules_named(text: str) -> set[str]:
    """Modules that `python -m` runs on a page."""
    return set(_MODULE.findall(text))
