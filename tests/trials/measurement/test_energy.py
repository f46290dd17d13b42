"""Energy of a token from the counters of the ranks' GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trials.measurement.energy import RankEnergy, energy_fault, energy_fields

RANKS = [RankEnergy("gpu-0", 4000.0, 10.0), RankEnergy("gpu-1", 6000.0, 8.0)]


def test_the_energy_of_all_ranks_is_shared_by_the_tokens_with_the_counters_resolution():
    found = energy_fields(RANKS, tokens=20_000)
    assert found["joules_per_token"] == pytest.approx(0.5)
    ends = [found["joules_per_token_low"], found["joules_per_token_high"]]
    assert ends == pytest.approx([0.5 * (1 - 0.1 / 8), 0.5 * (1 + 0.1 / 8)]), "of the rank that was read most closely"


@pytest.mark.parametrize(
    ("rank", "words"),
    [
        (RankEnergy(None), "rank 1: the driver of its device reports no energy"),
        (replace(RANKS[1], joules=0.0), "rank 1: the driver"),
        (replace(RANKS[1], joules=-5.0), "rank 1: the driver"),
        (replace(RANKS[1], gpu="gpu-0"), "several ranks share a GPU"),
        (replace(RANKS[1], seconds=2.5), "the measured steps took 2.5 s"),
    ],
)
def test_energy_that_is_not_known_of_every_rank_is_absent_with_its_reason(rank, words):
    ranks = [RANKS[0], rank]
    assert (energy_fault(ranks) or "").startswith(words)
    assert energy_fields(ranks, tokens=20_000) == {}
