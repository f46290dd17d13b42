"""What is said of a search before it begins."""

from __future__ import annotations

import pytest

from orchestrator.cli.search_summary import most_trials_words
from orchestrator.config.loader import load_search_file
from orchestrator.planning.candidates import candidates_of
from tests.orchestrator.cli.simulated import OK, write_simulated_search


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["search.max_trials=1"], "1 trial takes at most "),
        (["search.max_trials=2"], "2 trials take at most "),
        (["search.max_trials=1", "search.finalists=1", "search.finalist_repeats=1"], "1 trial and 1 repeat take at "),
    ],
)
def test_what_it_takes_at_most_is_a_sentence_for_one_trial_too(tmp_path, changes, words):
    spec = load_search_file(write_simulated_search(tmp_path, OK, OK), changes)
    assert most_trials_words(spec, candidates_of(spec)).startswith(words)
