"""Epoch time and loss of a trial with a token file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kit import SPEC, TINY
from trials.measurement.epochs import epoch_fields, steps_per_epoch
from trials.measurement.step_log import StepPhase, StepRecord

BATCH = SPEC.global_batch_size * TINY.seq_length
"""Tokens of a step."""


def spec_on(num_tokens: int):
    data = {"kind": "tokens", "path": "/data/tokens.bin", "num_tokens": num_tokens}
    return replace(SPEC, trainer={"kind": "parlay", "data": data})


def records(times_s: list[float], samples: int = SPEC.global_batch_size) -> list[StepRecord]:
    """The n-th step's loss is 6 - n."""
    return [
        StepRecord(n, StepPhase.WARMUP, "", time_s, time_s, loss=6.0 - n, grad_norm=1.0, samples=samples)
        for n, time_s in enumerate(times_s, 1)
    ]


@pytest.mark.parametrize(("num_tokens", "steps"), [(BATCH + 1, 1), (2 * BATCH, 2), (2 * BATCH + 1, 2), (40, 1)])
def test_an_epoch_has_as_many_steps_as_it_takes_to_see_every_sequence(num_tokens: int, steps: int):
    assert steps_per_epoch(spec_on(num_tokens)) == steps


def test_an_epoch_took_what_its_steps_took_and_taught_what_the_next_one_shows():
    spec = spec_on(3 * BATCH + 1)
    assert epoch_fields(spec, records([4.0, 2.0, 1.0, 1.0, 1.0])) == {"epoch_s": 7.0, "loss_after_epoch": 2.0}


def test_a_trial_that_ends_with_the_epoch_knows_no_loss_after_it():
    assert epoch_fields(spec_on(3 * BATCH + 1), records([4.0, 2.0, 1.0])) == {"epoch_s": 7.0}


def test_half_an_epoch_says_nothing():
    assert epoch_fields(spec_on(3 * BATCH + 1), records([4.0, 2.0])) == {}


def test_shorter_steps_make_no_epoch():
    assert epoch_fields(spec_on(2 * BATCH + 1), records([1.0] * 9, samples=6)) == {}


def test_synthetic_sequences_have_no_epoch():
    assert steps_per_epoch(SPEC) is None
    assert epoch_fields(SPEC, records([1.0] * 9)) == {}
