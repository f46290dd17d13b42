"""A block compiles to one graph: with graph breaks a layout would be called compiled that hardly is. And a trial tells
what compiling took."""

from __future__ import annotations

import shutil

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.train.parity import NO_COMPILER, PROGRAMS
from tests.trials.train.ranks import WarmRanks
from tests.trials.train.trial_processes import make_spec
from trials.diagnostics.parity_cases import named_case
from trials.ranks.startup import StartupPart


@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize("splits_sequence", [False, True])
@pytest.mark.parametrize("shape", ["gpt2", "llama"])
def test_a_tensor_parallel_block_is_one_graph_for_all_layers(ranks: WarmRanks, shape, splits_sequence):
    arguments = {"case": named_case("compiled", shape).to_json(), "splits_sequence": splits_sequence}
    assert ranks.run(f"{PROGRAMS}:graphs_of_compiled_blocks", 1, arguments) == [1]


@pytest.mark.walks
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_a_trial_that_compiles_tells_the_compilers_time_apart_from_its_first_steps(start):
    if shutil.which("g++") is None:
        pytest.skip(NO_COMPILER)
    trial = start(make_spec(Layout(micro_batch_size=2, grad_accum_steps=2, torch_compile=True)))
    assert trial.wait() == [0], trial.logs()
    measured, first_s = trial.outcome().measured, trial.outcome().step_times_s[0]
    parts = measured.startup_parts_s
    assert list(parts) == list(StartupPart)
    assert 0.5 * first_s < parts["compile"] < parts["compile"] + parts["first_step"]
    assert parts["compile"] + parts["first_step"] >= first_s
    assert sum(parts.values()) == pytest.approx(measured.startup_s)
