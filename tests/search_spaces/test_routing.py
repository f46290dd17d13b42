"""Routing of experts: its text, and what it makes of the ranks' loads."""

from __future__ import annotations

import numpy as np
import pytest

from search_spaces.errors import InputError
from search_spaces.routing import Routing, load_of_fullest_rank


@pytest.mark.parametrize(
    ("text", "kind", "skew", "written"),
    [
        ("balanced", "balanced", 1.0, "balanced"),
        ("skewed(2)", "skewed", 2.0, "skewed(2)"),
        ("skewed( 1.50 )", "skewed", 1.5, "skewed(1.5)"),
        (None, "learned", None, "learned"),
    ],
)
def test_a_text_is_a_routing(text, kind, skew, written):
    found = Routing.of(text)
    assert (found.kind, found.skew, str(found)) == (kind, skew, written)
    assert Routing.of(written) == found


@pytest.mark.parametrize("text", ["skewed", "skewed(1)", "skewed(0.5)", "skewed(-2)", "skewed(x)", "balance", "2", ""])
def test_any_other_is_refused(text):
    with pytest.raises(InputError, match="skewed\\(s\\) with s above 1"):
        Routing.of(text)


def test_the_fullest_rank_has_the_most_loaded_expert_and_its_share_of_the_rest():
    # Of 8 experts with 2 of 16 tokens each, the first now has 9 and the other seven 1 each.
    loads = load_of_fullest_rank(4.5, 8, np.array([1, 2, 4, 8]))
    assert loads == pytest.approx([1.0, (9 + 3) / 8, (9 + 1) / 4, 9 / 2])
    assert load_of_fullest_rank(1.0, 8, np.array([1, 8])) == pytest.approx([1.0, 1.0])
    assert load_of_fullest_rank(1.0, 1, np.array([1])) == 1.0
