from __future__ import annotations

from itertools import product

import pytest
import torch

from search_spaces.layout import Layout
from tests.trials.train.trial_processes import MODEL
from trials.train.data import SyntheticData, sample_indices
from trials.train.world import Coordinates

CPU = torch.device("cpu")
LAYOUTS = [
    Layout(micro_batch_size=m, grad_accum_steps=a, data_parallel=24 // m // a) for m in (1, 2, 4) for a in (1, 3)
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.key)
@pytest.mark.parametrize("step", [0, 7])
def test_a_step_trains_each_sample_of_the_global_batch_once_whatever_the_layout(layout, step):
    indices = torch.cat([sample_indices(layout, rank, step) for rank in range(layout.data_parallel)])
    assert sorted(indices.tolist()) == list(range(24 * step, 24 * (step + 1)))


def test_a_sample_is_the_same_on_whichever_rank_it_falls():
    for layout, step in product(LAYOUTS, (0, 3)):
        whole = SyntheticData(MODEL, Layout(), 0, CPU).samples(torch.arange(24 * (step + 1)))
        for rank in range(layout.data_parallel):
            batch = SyntheticData(MODEL, layout, rank, CPU).batch(step)
            assert torch.equal(batch.ids, whole.ids[sample_indices(layout, rank, step)])


def test_targets_are_the_ids_that_follow():
    batch = SyntheticData(MODEL, LAYOUTS[0], 0, CPU).batch(0)
    assert torch.equal(batch.ids[:, 1:], batch.targets[:, :-1])
    assert batch.ids.shape == (LAYOUTS[0].micro_batch_size * LAYOUTS[0].grad_accum_steps, MODEL.seq_length)


def test_samples_differ_and_stay_within_the_vocabulary():
    ids = SyntheticData(MODEL, Layout(), 0, CPU).samples(torch.arange(200)).ids
    assert len({tuple(row) for row in ids.tolist()}) > 100
    assert 0 <= ids.min() <= ids.max() < MODEL.vocab_size


def test_coordinates_are_tensor_innermost_then_data_then_stage():
    layout = Layout(tensor_parallel=2, data_parallel=3, pipeline_parallel=2)
    assert [Coordinates.of(rank, layout) for rank in (0, 1, 2, 6)] == [
        Coordinates(tensor=0, data=0, stage=0),
        Coordinates(tensor=1, data=0, stage=0),
        Coordinates(tensor=0, data=1, stage=0),
        Coordinates(tensor=0, data=0, stage=1),
    ]
    assert [Coordinates.of(rank, layout).rank(layout) for rank in range(12)] == list(range(12))
