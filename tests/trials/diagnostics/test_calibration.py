"""Groups and products of a calibration, and the meaning of its numbers; without any rank."""

from __future__ import annotations

import pytest

from tests.kit import model
from trials.diagnostics.calibration import (
    CPU_BUDGET,
    GPU_BUDGET,
    Collective,
    GroupTime,
    PairTime,
    block_sizes,
    model_products,
    pair_distances,
    pair_of,
    square_products,
)
from trials.train.diagnostics.node_probe import enable_nccl_log

GQA = model(num_attention_heads=8, num_key_value_heads=2, gated_mlp=True, position_embedding="rotary", norm="rmsnorm")


@pytest.mark.parametrize(
    ("gpus_per_node", "num_nodes", "sizes", "apart"),
    [
        (1, 1, [], []),
        (8, 1, [2, 4, 8], [1, 2, 4]),
        (6, 2, [2, 6, 12], [1, 2, 6]),
        (2, 3, [2, 4, 6], [1, 2]),
        (8, 16, [2, 4, 8, 16, 32, 64, 128], [1, 2, 4, 8]),
    ],
)
def test_groups_go_from_pairs_to_the_whole_world_and_pairs_leave_each_block(gpus_per_node, num_nodes, sizes, apart):
    assert block_sizes(gpus_per_node, num_nodes) == sizes
    assert pair_distances(gpus_per_node, num_nodes) == apart


@pytest.mark.parametrize(
    ("apart", "gpus_per_node", "alone", "pairs"),
    [
        (2, 6, False, [(0, 2), (1, 3), (0, 2), (1, 3), None, None, (6, 8), (7, 9), (6, 8), (7, 9), None, None]),
        (1, 4, True, [(0, 1), (0, 1), None, None, (4, 5), (4, 5), None, None]),
        (2, 2, True, [(0, 2), None, (0, 2), None, None, None]),
    ],
    ids=["all-at-once", "alone-inside", "alone-between"],
)
def test_pairs_talk_all_at_once_inside_their_nodes_or_one_alone(apart, gpus_per_node, alone, pairs):
    found = [pair_of(rank, apart, gpus_per_node, len(pairs), alone=alone) for rank in range(len(pairs))]
    assert found == pairs


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("num_nodes", [1, 2, 3, 4])
@pytest.mark.parametrize("gpus_per_node", [1, 2, 3, 4, 6, 8, 12])
def test_both_ranks_of_a_pair_know_it(gpus_per_node, num_nodes, alone):
    num_ranks = gpus_per_node * num_nodes
    for apart in pair_distances(gpus_per_node, num_nodes):
        pairs = {rank: pair_of(rank, apart, gpus_per_node, num_ranks, alone) for rank in range(num_ranks)}
        assert any(pairs.values())
        for rank, pair in pairs.items():
            assert pair is None or (rank in pair and pairs[pair[0]] == pairs[pair[1]] == pair)


def test_the_models_own_products_do_the_work_of_its_layers():
    products = model_products(GQA)
    of_a_layer = sum(product.flops for product in products if product.name != "head")
    norms = 2 * GQA.norm_parameters
    assert of_a_layer == 2 * GQA.seq_length * (GQA.layer_parameters - norms)
    assert products[-1].columns == GQA.vocab_size
    assert not any(product.is_square for product in products)
    assert all(product.is_square for product in square_products(CPU_BUDGET))


def test_over_a_slow_network_less_is_exchanged():
    assert GPU_BUDGET.bytes_in_time(probe_s=1e-3, num_ranks=8) == 2**30
    # At a tenth of a GB/s 1 GiB would take ten seconds; the probe is a 64th of it, and a second has five rounds.
    assert GPU_BUDGET.bytes_in_time(probe_s=10 / 64, num_ranks=8) == pytest.approx(2**30 / 50, rel=1e-6)
    assert GPU_BUDGET.bytes_in_time(probe_s=0.5, num_ranks=6) % 24 == 0
    assert CPU_BUDGET.bytes_in_time(probe_s=1e6, num_ranks=6) == 24


def test_bus_bandwidth_is_what_nccls_tests_print():
    """all_reduce_perf over 8 ranks: 1 GiB in 5 ms is an algbw of 214.7 GB/s and a busbw of 375.8."""
    assert GroupTime(Collective.ALL_REDUCE, 8, 2**30, 5e-3).bus_gb_per_s == pytest.approx(375.8, abs=0.05)
    assert GroupTime(Collective.ALL_GATHER, 8, 2**30, 5e-3).bus_gb_per_s == pytest.approx(187.9, abs=0.05)
    assert PairTime(1, True, 10**9, 0.5).gb_per_s == 2.0


def test_nccl_tells_in_the_ranks_log():
    environ = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/tmp/elsewhere", "NCCL_NET": "IB"}
    enable_nccl_log(environ)
    assert environ == {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET", "NCCL_NET": "IB"}
