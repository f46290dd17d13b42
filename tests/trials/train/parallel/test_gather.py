"""JSON data that ranks share, so that nothing is unpickled."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

TOLD = "tests.trials.train.rank_programs:told_each_other"


@pytest.mark.security("no_pickle")
def test_every_rank_has_what_each_of_them_told_in_rank_order(ranks):
    told = [{"host": "n1", "probe_ms": 1.5}, ["Ω", None, "a" * 300], ""]
    assert ranks.run(TOLD, 3, {"told": told, "longest_bytes": 1024}) == [told] * 3


def test_more_than_a_rank_may_tell_is_refused_by_all_of_them_alike(ranks):
    words = ranks.run(TOLD, 2, {"told": ["short", "x" * 99], "longest_bytes": 100})
    assert words == ["rank 1 sent 101 bytes, more than the limit of 100"] * 2
