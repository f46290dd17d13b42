"""Examples of the pages that run no trial, with their output."""

from __future__ import annotations

import pytest

from tests.docs.console import ROOT, assert_as_shown, commands_of, environment_of_a_user, run
from tests.docs.references import pages

pytestmark = pytest.mark.slow

WITH_TESTS_OF_THEIR_OWN = {"README.md", "docs/quickstart_slurm.md"}
PAGES = [
    name
    for page in pages()
    if commands_of(page.read_text()) and (name := str(page.relative_to(ROOT))) not in WITH_TESTS_OF_THEIR_OWN
]


@pytest.mark.timeout(120)  # a handful of command lines each
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_do_what_it_shows(page, tmp_path):
    commands = commands_of((ROOT / page).read_text())
    assert_as_shown(commands, run(commands, tmp_path, environment_of_a_user(), timeout_s=110))
