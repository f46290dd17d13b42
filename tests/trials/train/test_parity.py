"""Ten clipped steps of every layout against a plain GPT that shares nothing with the trial program but its weights."""

from __future__ import annotations

from typing import Any

import pytest

from search_spaces.layout import Layout
from search_spaces.model_shape import ModelShape
from tests.trials.train.ranks import RanksFailed, WarmRanks
from trials.train.reductions import Reduction

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

PROGRAMS = "tests.trials.train.rank_programs"
TOLERANCE = 1e-5
BF16_TOLERANCE = 1e-2
GLOBAL_BATCH_SIZE = 16
MODEL = ModelShape(
    num_layers=4,
    hidden_size=64,
    num_attention_heads=4,
    num_key_value_heads=4,
    ffn_hidden_size=256,
    gated_mlp=False,
    vocab_size=32,
    seq_length=32,
    tied_embeddings=False,
    position_embedding="learned",
    norm="layernorm",
)
MODELS = {
    "untied": MODEL,
    "tied": ModelShape.from_json(MODEL.to_json() | {"tied_embeddings": True}),
    "three_layers": ModelShape.from_json(MODEL.to_json() | {"num_layers": 3}),
}


def layout(engine: str = "torch", micro_batch_size: int = 4, **fields: Any) -> Layout:
    accumulation = GLOBAL_BATCH_SIZE // micro_batch_size // fields.get("data_parallel", 1)
    given = Layout(engine=engine, micro_batch_size=micro_batch_size, grad_accum_steps=accumulation, **fields)
    return given.canonical()


def case(name: str, model: str = "untied", **fields: Any) -> Any:
    return pytest.param(model, layout(**fields), id=f"{fields.get('engine', 'torch')}-{name}")


TP2, PP2, DP2 = {"tensor_parallel": 2}, {"pipeline_parallel": 2}, {"data_parallel": 2}
CASES = [
    case("one_rank"),
    case("tp2", **TP2),
    case("tp4", tensor_parallel=4),
    case("pp2", **PP2),
    case("pp2_gpipe", pipeline_schedule="gpipe", **PP2),
    case("pp4_one_layer_each", pipeline_parallel=4),
    case("pp2_uneven", "three_layers", **PP2),
    case("dp2", **DP2),
    case("tp2_pp2", **TP2, **PP2),
    case("tp2_dp2", **TP2, **DP2),
    case("pp2_dp2", **PP2, **DP2),
    case("tied_one_rank", "tied"),
    case("tied_tp2", "tied", **TP2),
    case("tied_pp2", "tied", **PP2),
    case("tied_tp2_pp2", "tied", **TP2, **PP2),
    case("tied_pp2_dp2", "tied", **PP2, **DP2),
    case("recompute_tp2_pp2", activation_checkpointing="full", **TP2, **PP2),
    case("flash_tp2", attention_kernel="flash", **TP2),
    case("one_rank", engine="deepspeed"),
    case("tp2", engine="deepspeed", **TP2),
    case("dp2_zero0", engine="deepspeed", **DP2),
    case("dp2_zero1", engine="deepspeed", zero_stage=1, **DP2),
    case("tp2_dp2_zero0", engine="deepspeed", **TP2, **DP2),
    case("tp2_dp2_zero1", engine="deepspeed", zero_stage=1, **TP2, **DP2),
    case("pp2", engine="deepspeed", **PP2),
    case("pp2_uneven", "three_layers", engine="deepspeed", **PP2),
    case("tp2_pp2", engine="deepspeed", **TP2, **PP2),
    case("pp2_dp2_zero0", engine="deepspeed", **PP2, **DP2),
    case("pp2_dp2_zero1", engine="deepspeed", zero_stage=1, **PP2, **DP2),
    case("tied_tp2_pp2", "tied", engine="deepspeed", **TP2, **PP2),
    case("tied_pp2_dp2_zero0", "tied", engine="deepspeed", **PP2, **DP2),
    case("tied_pp2_dp2_zero1", "tied", engine="deepspeed", zero_stage=1, **PP2, **DP2),
    case("tied_tp2_dp2_zero1", "tied", engine="deepspeed", zero_stage=1, **TP2, **DP2),
    case("recompute_pp2_dp2", engine="deepspeed", activation_checkpointing="full", zero_stage=1, **PP2, **DP2),
]


class Parity:
    """Runs layouts, and the reference of each model once."""

    def __init__(self, ranks: WarmRanks):
        self._ranks = ranks
        self._references: dict[tuple[str, str], dict[str, list[float]]] = {}

    def reference(self, model: str, precision: str = "fp32") -> dict[str, list[float]]:
        if (model, precision) not in self._references:
            arguments = {"model": MODELS[model].to_json(), "layout": layout(precision=precision).to_json()}
            answers = self._ranks.run(f"{PROGRAMS}:train_reference", 1, arguments)
            self._references[model, precision] = answers[0]
        return self._references[model, precision]

    def train(self, model: str, given: Layout, steps: int = 10, without: str | None = None) -> list[dict[str, Any]]:
        shapes = {"model": MODELS[model].to_json(), "layout": given.to_json()}
        arguments = shapes | {"steps": steps, "without": without}
        return self._ranks.run(f"{PROGRAMS}:train_layout", given.num_gpus, arguments)

    def difference(self, model: str, trained: dict[str, Any], precision: str = "fp32") -> float:
        """Largest absolute difference of any loss or gradient norm."""
        reference = self.reference(model, precision)
        return max(
            abs(ours - plain)
            for name in ("losses", "grad_norms")
            for ours, plain in zip(trained[name], reference[name], strict=False)
        )


@pytest.fixture(scope="module")
def parity(ranks: WarmRanks) -> Parity:
    return Parity(ranks)


@pytest.mark.parametrize("model", MODELS)
def test_the_reference_learns_and_every_step_of_it_is_clipped(parity, model):
    reference = parity.reference(model)
    assert reference["losses"][-1] < 0.9 * reference["losses"][0]
    assert min(reference["grad_norms"]) > 0.5


@pytest.mark.parametrize(("model", "given"), CASES)
def test_ten_steps_of_a_layout_are_those_of_a_plain_gpt(parity, model, given, record_property):
    trained = parity.train(model, given)
    differences = [parity.difference(model, rank) for rank in trained]
    record_property("difference", max(differences))
    assert max(differences) <= TOLERANCE
    assert sum(rank["parameters"] for rank in trained) == given.data_parallel * MODELS[model].parameters
    assert {rank["micro_batches"] for rank in trained} == {10 * given.grad_accum_steps}


@pytest.mark.parametrize(
    "fields", [{}, TP2, PP2, DP2, {**TP2, **PP2}], ids=["one_rank", "tp2", "pp2", "dp2", "tp2_pp2"]
)
def test_bf16_is_a_plain_gpt_under_autocast(parity, fields, record_property):
    (trained, *_) = parity.train("untied", layout(precision="bf16", **fields))
    difference = parity.difference("untied", trained, "bf16")
    record_property("difference", difference)
    assert difference <= BF16_TOLERANCE
    assert parity.difference("untied", trained, "fp32") > TOLERANCE


MUTATIONS = [
    (Reduction.ROW_PARALLEL_OUTPUT, "untied", layout(**TP2)),
    (Reduction.COLUMN_PARALLEL_INPUT_GRADIENT, "untied", layout(**TP2)),
    (Reduction.EMBEDDING_OUTPUT, "untied", layout(**TP2)),
    (Reduction.HEAD_INPUT_GRADIENT, "untied", layout(**TP2)),
    (Reduction.LARGEST_LOGIT, "untied", layout(**TP2)),
    (Reduction.EXPONENTIALS, "untied", layout(**TP2)),
    (Reduction.TARGET_LOGIT, "untied", layout(**TP2)),
    (Reduction.TIED_GRADIENT, "tied", layout(**PP2)),
    (Reduction.DATA_PARALLEL_GRADIENT, "untied", layout(**DP2)),
    (Reduction.NORM_OVER_TENSOR_RANKS, "untied", layout(**TP2)),
    (Reduction.NORM_OVER_STAGES, "untied", layout(**PP2)),
    (Reduction.NORM_OVER_TENSOR_RANKS, "untied", layout(engine="deepspeed", **TP2)),
    (Reduction.NORM_OVER_STAGES, "untied", layout(engine="deepspeed", **PP2)),
    ("deepspeed_clipping", "untied", layout(engine="deepspeed", **PP2)),
    ("deepspeed_tied_gradients", "tied", layout(engine="deepspeed", **PP2)),
    ("deepspeed_parameter_marks", "untied", layout(engine="deepspeed", zero_stage=1, **TP2, **DP2)),
    ("deepspeed_parameter_marks", "tied", layout(engine="deepspeed", zero_stage=1, **PP2, **DP2)),
]


def test_every_reduction_has_a_test_that_switches_it_off():
    assert {name for name, _, _ in MUTATIONS} >= set(Reduction)


@pytest.mark.parametrize(("without", "model", "given"), MUTATIONS, ids=[f"{w}-{g.engine}" for w, _, g in MUTATIONS])
def test_without_any_one_reduction_or_guard_the_training_is_another(parity, without, model, given):
    try:
        trained = parity.train(model, given, steps=3, without=without)
    except RanksFailed:
        return
    assert all(rank["switched_off"] for rank in trained)
    assert max(parity.difference(model, rank) for rank in trained) > TOLERANCE
