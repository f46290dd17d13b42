"""Tokens a day of a training, less the stalls of its checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces.adapters import Adapters
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from search_spaces.schema.validation import validate
from search_spaces.schema.yaml_document import parse_document
from tests.kit import TINY
from trials.analysis.training_rate import Checkpoints, checkpoint_bytes, training_rate
from trials.schema.checkpoint_section import CheckpointSection, checkpoints_of

LAYOUT = Layout(micro_batch_size=4, engine="torch", precision="bf16")
TOKENS_PER_SEC = 4 * TINY.seq_length / 2.0
"""Steps of two seconds."""


@pytest.mark.parametrize(
    ("checkpoints", "share"),
    [
        (None, None),
        (Checkpoints(every_steps=99, stall_s=2.0), 0.01),
        (Checkpoints(every_s=30.0, stall_s=10.0), 0.25),
        (Checkpoints(every_s=30.0, write_gb_per_s=TINY.parameters * 14 / 1e9 / 10.0), 0.25),
    ],
)
def test_the_training_stalls_for_its_share_of_the_time(checkpoints, share):
    found, tokens_per_sec = (
        training_rate(TOKENS_PER_SEC, TINY, LAYOUT, checkpoints),
        TOKENS_PER_SEC * (1 - (share or 0.0)),
    )
    assert found.stalled_share == pytest.approx(share)
    assert (found.tokens_per_sec, found.tokens_per_day) == pytest.approx((tokens_per_sec, tokens_per_sec * 86400))


@pytest.mark.parametrize(
    ("changes", "bytes_per_parameter"),
    [
        ({"precision": "bf16"}, 14),  # weights, fp32 copy and two moments
        ({"precision": "fp32"}, 12),
        ({"precision": "bf16", "moment_dtype": "bf16"}, 10),
        ({"precision": "bf16", "data_parallel": 8, "zero_stage": 3}, 14),  # once, however it is sharded
    ],
)
def test_a_checkpoint_holds_weights_and_optimizer_once(changes, bytes_per_parameter):
    layout = replace(LAYOUT, **changes)
    assert checkpoint_bytes(TINY, layout) == bytes_per_parameter * TINY.parameters
    tuned = replace(TINY, adapters=Adapters(4), trainable=())
    assert checkpoint_bytes(tuned, layout) == bytes_per_parameter * tuned.trainable_parameters


def section(text: str) -> CheckpointSection:
    return validate(CheckpointSection, parse_document(text.encode(), "search.yaml", Path()))


def test_the_section_says_how_often_and_how_long_and_is_read_again_from_the_record():
    given = section("{every: 30m, stall: 45s}")
    assert given.checkpoints() == Checkpoints(every_s=1800.0, stall_s=45.0)
    record = {"trainer": {"checkpoint": given.model_dump(mode="json", by_alias=True, exclude_none=True)}}
    assert checkpoints_of(record) == given.checkpoints()
    assert checkpoints_of({"trainer": {}}) is None


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("{every: 30m}", "stall", "neither is given"),
        ("{every: 30m, every_steps: 100, stall: 1s}", "every", "both are given"),
        ("{every_steps: 0, stall: 1s}", "every_steps", "at least 1"),
        ("{every: 0, stall: 1s}", "every", "0"),
        ("{every: 30m, write_gb_per_s: 1.0e-300}", "write_gb_per_s", "at least 0.001"),
    ],
)
def test_a_section_that_says_too_little_or_too_much_is_refused(text, key, words):
    with pytest.raises(InputError) as caught:
        section(text)
    (problem,) = caught.value.problems
    assert problem.key == key
    assert problem.fix
    assert words in f"{problem.message} {problem.rule}"
