"""A block compiles to one graph: with graph breaks a layout would be called compiled that hardly is."""

from __future__ import annotations

import pytest

from tests.trials.train.parity import PROGRAMS
from tests.trials.train.ranks import WarmRanks
from trials.diagnostics.parity_cases import named_case


@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize("splits_sequence", [False, True])
@pytest.mark.parametrize("shape", ["gpt2", "llama"])
def test_a_tensor_parallel_block_is_one_graph_for_all_layers(ranks: WarmRanks, shape, splits_sequence):
    arguments = {"case": named_case("compiled", shape).to_json(), "splits_sequence": splits_sequence}
    assert ranks.run(f"{PROGRAMS}:graphs_of_compiled_blocks", 1, arguments) == [1]
