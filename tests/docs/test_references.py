"""References of the pages exist: verbs and options, links and headings, files and modules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from orchestrator.cli.verbs import VERBS, command_of
from tests.docs.console import ROOT, pages

TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in pages()}
ROOMS = "search_spaces|slurm|trials|dashboards|orchestrator|tests|benchmarks|docs"

_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")
_INDENTED = re.compile(r"^(?: {4,}|\t)(.+)$", re.MULTILINE)
_COMMAND = re.compile(r"(?:^|[\s$(`])parlay ((?:[a-z][a-z-]*)(?: (?:start|stop|rebuild))?)\b([^|;&\n`)#]*)")
_PATH = re.compile(rf"(?:{ROOMS})/[\w./*-]*")


def wrong(broken: Callable[[str], Iterable[object]]) -> dict[str, list[object]]:
    """Pages that break a rule, each with its violations; `broken` is given their text."""
    return {page: found for page, text in TEXTS.items() if (found := list(broken(text)))}


def commands_named(text: str) -> Iterator[tuple[str, set[str]]]:
    """`parlay VERB` with its options, in blocks, indented lines and between backticks."""
    prose = _FENCE.sub("", text)
    spans = (" ".join(span.split()) for span in _SPAN.findall(prose))
    for code in (*_FENCE.findall(text), *_INDENTED.findall(prose), *spans):
        for verb, rest in _COMMAND.findall(re.sub(r"\\\n\s*", " ", code)):
            yield verb, set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+|-[a-z])\b", rest))


@pytest.fixture(scope="module")
def options() -> dict[str, set[str]]:
    """Options of each verb; a verb of a group has the group's name: `slurm-sandbox start`."""
    found: dict[str, set[str]] = {}
    for name, verb in ((name, command_of(name)) for name in VERBS):
        inner = getattr(verb, "commands", {})
        found[name] = _options(verb).union(*map(_options, inner.values()))
        found |= {f"{name} {part}": _options(command) for part, command in inner.items()}
    return found


def _options(command) -> set[str]:
    return {"--help"}.union(*(parameter.opts + parameter.secondary_opts for parameter in command.params))


def test_every_command_that_is_named_exists_with_its_options_and_so_do_those_that_a_table_explains(options):
    assert len([verb for text in TEXTS.values() for verb, _ in commands_named(text)]) > 200
    assert wrong(lambda text: [one for one in commands_named(text) if not one[1] <= options.get(one[0], set())]) == {}

    def unknown(text):
        cells = re.findall(r"^\| (`--[^|]*)", text, re.MULTILINE)
        return {option for cell in cells for option in re.findall(r"`(--[a-z][a-z-]+)", cell)} - there

    there = set().union(*options.values())
    assert wrong(unknown) == {}


def test_every_target_of_make_that_is_named_exists():
    targets = set(" ".join(re.findall(r"^([a-z -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)).split())
    assert wrong(lambda text: set(re.findall(r"(?:^\$ |`)make ([a-z-]+)", text, re.MULTILINE)) - targets) == {}


def test_every_link_leads_somewhere():
    found = [(page, target) for page, text in TEXTS.items() for target in links(text)]
    assert len(found) > 200
    assert [(page, target) for page, target in found if not _leads(page, target)] == []


def links(text: str) -> list[str]:
    """Targets of links and pictures within the project."""
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", _FENCE.sub("", text)) if "://" not in target]


def _leads(page: str, target: str) -> bool:
    name, _, anchor = target.partition("#")
    place = (ROOT / page).parent / name if name else ROOT / page
    return place.exists() and (not anchor or anchor in headings(place.read_text()))


def headings(text: str) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    titles = re.findall(r"^#+ (.+)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_file_and_module_that_is_named_exists():
    def gone(text):
        spans = {span for span in _SPAN.findall(_FENCE.sub("", text)) if _PATH.fullmatch(span)}
        for_any = {span for span in spans if re.search(r"[A-Z]{3,}(?!\w*\.md)", span)}
        yield from (span for span in spans - for_any if not _is_there(span))
        yield from (name for name in re.findall(rf"-m\s+((?:{ROOMS})[\w.]*)", text) if not _is_run(name))

    assert wrong(gone) == {}


def _is_there(path: str) -> bool:
    """From the project's folder, or from tests/ as the tables of tests have it."""
    return any(any(place.glob(path)) for place in (ROOT, ROOT / "tests"))


def _is_run(name: str) -> bool:
    module = ROOT / name.replace(".", "/")
    return module.with_suffix(".py").exists() or (module / "__main__.py").exists()


def test_every_page_of_the_folder_is_in_its_index():
    docs = ROOT / "docs"
    listed = {Path(target.partition("#")[0]) for target in links((docs / "README.md").read_text())}
    assert {page.relative_to(docs) for page in pages() if docs in page.parents} - listed == {Path("README.md")}
