"""References of the pages exist: verbs and options, links and headings, files and modules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import typer

from orchestrator.cli.verbs import app
from tests.docs.console import ROOT
from tests.docs.references import (
    Mention,
    commands_named,
    headings,
    links,
    make_targets_named,
    modules_named,
    options_listed,
    pages,
    paths_named,
)

TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in pages()}


def test_there_are_pages():
    assert len(TEXTS) > 20


def wrong(broken: Callable[[str], Iterable[object]]) -> dict[str, list[object]]:
    """Pages that break a rule, each with its violations; `broken` is given their text."""
    return {page: found for page, text in TEXTS.items() if (found := list(broken(text)))}


@pytest.fixture(scope="module")
def options() -> dict[str, set[str]]:
    """Options of each verb; a verb of a group has the group's name: `slurm-sandbox start`."""
    found: dict[str, set[str]] = {}
    for name, verb in typer.main.get_command(app).commands.items():
        inner = getattr(verb, "commands", {})
        found[name] = _options(verb).union(*map(_options, inner.values()))
        found |= {f"{name} {part}": _options(command) for part, command in inner.items()}
    return found


def _options(command) -> set[str]:
    return {"--help"}.union(*(parameter.opts + parameter.secondary_opts for parameter in command.params))


def test_every_command_that_is_named_exists_with_its_options(options):
    def unknown(text):
        for mention in commands_named(text):
            if mention.verb not in options or set(mention.options) - options[mention.verb]:
                yield mention

    assert wrong(unknown) == {}


def test_every_option_that_a_table_explains_is_one_of_a_verb(options):
    there = set().union(*options.values())
    assert wrong(lambda text: options_listed(text) - there) == {}


def test_every_target_of_make_that_is_named_exists():
    targets = set(" ".join(re.findall(r"^([a-z -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)).split())
    assert wrong(lambda text: make_targets_named(text) - targets) == {}


def test_every_link_leads_somewhere():
    dead = [(page, target) for page, text in TEXTS.items() for target in links(text) if not _leads(page, target)]
    assert dead == []


def _leads(page: str, target: str) -> bool:
    name, _, anchor = target.partition("#")
    place = (ROOT / page).parent / name if name else ROOT / page
    return place.exists() and (not anchor or anchor in headings(place.read_text()))


def test_every_file_and_module_that_is_named_exists():
    def gone(text):
        yield from (path for path in paths_named(text) if not _is_there(path))
        yield from (name for name in modules_named(text) if not _is_run(ROOT / name.replace(".", "/")))

    assert wrong(gone) == {}


def _is_run(module: Path) -> bool:
    return module.with_suffix(".py").exists() or (module / "__main__.py").exists()


def _is_there(path: str) -> bool:
    """From the project's folder, or from tests/ as the tables of tests have it."""
    return any(any(place.glob(path)) for place in (ROOT, ROOT / "tests"))


def test_every_page_of_the_folder_is_in_its_index():
    index = (ROOT / "docs" / "README.md").read_text()
    listed = {Path(target.partition("#")[0]) for target in links(index)}
    there = {page.relative_to(ROOT / "docs") for page in pages() if (ROOT / "docs") in page.parents}
    assert not there - listed - {Path("README.md")}


# -- how they are found


def test_commands_are_found_in_blocks_in_indented_lines_and_between_backticks():
    text = """\
Say `parlay run --json`, or parlay --never in prose.

    parlay watch | tee --append log

```console
$ parlay slurm-sandbox start --nodes 2 \\
    --install
```
"""
    assert set(commands_named(text)) == {
        Mention("run", ("--json",)),
        Mention("watch", ()),
        Mention("slurm-sandbox start", ("--nodes", "--install")),
    }


def test_headings_are_anchors_as_github_makes_them():
    assert headings("# In a browser\n## `cluster.links`\n```\n# no heading\n```\n") == {"in-a-browser", "clusterlinks"}


def test_paths_and_modules_are_those_of_the_project():
    text = "`trials/trial.py`, `tests/bad_inputs/*.py`, `recipe/code/`, `trials/NAME.py`; python -m benchmarks.driver"
    assert paths_named(text) == {"trials/trial.py", "tests/bad_inputs/*.py"}
    assert modules_named(text) == {"benchmarks.driver"}
