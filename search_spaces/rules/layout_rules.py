"""Rules of every layout, independent of the engine: checked on a whole table, explained for one row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from search_spaces.engines import ACCELERATE, ACCELERATE_LAUNCH, MEGATRON_CORE, TORCHTITAN
from search_spaces.errors import Problem, format_value
from search_spaces.hardware.arithmetic import has_recipe
from search_spaces.hardware.cluster import BLACKWELL, HOPPER, chip_of
from search_spaces.layouts.layout import BATCH_RULE, CHOICES, FUSED_DISPATCHERS, WORLD_RULE, Layout, layout_mesh
from search_spaces.layouts.matmul_recipes import MATMUL_RECIPES
from search_spaces.layouts.mesh import RankMesh
from search_spaces.layouts.placement import leaves_domain
from search_spaces.layouts.table import LayoutTable
from search_spaces.layouts.workload import (
    BATCH_FIX,
    WORLD_FIX,
    Fields,
    Workload,
    describe_batch_size,
    describe_world_size,
)


@dataclass(frozen=True)
class LayoutRule:
    """A rule: `is_satisfied` is true for the rows that satisfy it; `numbers` explains why one row does not."""

    code: str
    rule: str
    fix: str
    is_satisfied: Callable[[LayoutTable, Workload], np.ndarray]
    numbers: Callable[[Fields, Workload], str]

    def problem(self, fields: Fields, workload: Workload) -> Problem:
        return Problem(self.code, self.numbers(fields, workload), self.rule, self.fix)


def with_derived(table: LayoutTable, workload: Workload) -> LayoutTable:
    """The table with data_parallel, and grad_accum_steps unless it is an axis; 0 where the quotient is not whole."""
    ranks_per_replica = layout_mesh(table.columns).without("dp").world_size
    data_parallel = _exact_quotient(workload.world_size(table["num_nodes"]), ranks_per_replica)
    table = table.with_columns(data_parallel=data_parallel)
    if workload.batch_is_free:
        return table
    batch = np.full(len(table), workload.global_batch_size)
    return table.with_columns(grad_accum_steps=_exact_quotient(batch, table["micro_batch_size"] * data_parallel))


def first_violation(table: LayoutTable, workload: Workload, rules: tuple[LayoutRule, ...]) -> np.ndarray:
    """For each row the index of the first rule it violates, or len(rules)."""
    first = np.full(len(table), len(rules))
    for index, rule in reversed(list(enumerate(rules))):
        first[~rule.is_satisfied(table, workload)] = index
    return first


def layout_violations(layout: Layout, workload: Workload) -> list[Problem]:
    """Every rule that one layout violates."""
    table = LayoutTable.of([layout])
    return [
        rule.problem(layout.to_json(), workload) for rule in LAYOUT_RULES if not rule.is_satisfied(table, workload)[0]
    ]


def _exact_quotient(whole: np.ndarray, part: np.ndarray) -> np.ndarray:
    """whole / part where that is a whole number, else 0."""
    divisor = np.maximum(part, 1)
    return np.where((part > 0) & (whole % divisor == 0), whole // divisor, 0)


def _divides(name: str) -> Callable[[LayoutTable, Workload], np.ndarray]:
    """Predicate: tensor_parallel divides the model's field of this name."""
    return lambda table, workload: getattr(workload.model, name) % table["tensor_parallel"] == 0


def _split_rule(code: str, name: str, what: str, fix: str) -> LayoutRule:
    return LayoutRule(
        code,
        f"tensor_parallel divides the {what}",
        fix,
        _divides(name),
        lambda f, w: f"tensor_parallel {f['tensor_parallel']} does not divide {name} {getattr(w.model, name)}",
    )


def _matches_world_size(table: LayoutTable, workload: Workload) -> np.ndarray:
    ranks = layout_mesh(table.columns).world_size
    return (ranks == workload.world_size(table["num_nodes"])) & (table["num_nodes"] <= workload.cluster.num_nodes)


def _keeps_tensor_groups_in_nodes(table: LayoutTable, workload: Workload) -> np.ndarray:
    leaves = leaves_domain(table, "tensor", workload.cluster)
    return ~leaves | (table["num_nodes"] == 1) | workload.allow_tensor_parallel_across_nodes


def _describe_tensor_group(f: Fields, w: Workload) -> str:
    nodes = w.cluster.nodes_per_domain(f["num_nodes"])
    if nodes == 1:
        return (
            f"tensor_parallel {f['tensor_parallel']} does not divide gpus_per_node {w.cluster.gpus_per_node}, so a"
            f" tensor-parallel group would span some of the {f['num_nodes']} nodes"
        )
    return (
        f"tensor_parallel {f['tensor_parallel']} does not divide the {nodes * w.cluster.gpus_per_node} ranks of a link"
        f" domain ({nodes} of the {f['num_nodes']} nodes x gpus_per_node {w.cluster.gpus_per_node})"
    )


def _matches_batch(table: LayoutTable, workload: Workload) -> np.ndarray:
    if workload.batch_is_free:
        return table["grad_accum_steps"] > 0
    return table.global_batch_size == workload.global_batch_size


def _supports_precision(table: LayoutTable, workload: Workload) -> np.ndarray:
    accelerator = workload.cluster.accelerator
    lacks_bf16 = table.equals("precision", "bf16") & accelerator.lacks_bf16
    is_deepspeed_fp16 = table.equals("precision", "fp16") & table.equals("engine", "deepspeed")
    return ~(lacks_bf16 | (is_deepspeed_fp16 & (accelerator.name == "cpu")))


_ON_GPUS_ALONE: tuple[tuple[str, str, Any], ...] = (
    (MEGATRON_CORE, "attention_kernel", "flash"),
    (TORCHTITAN, "attention_kernel", "flash"),
    (TORCHTITAN, "torch_compile", True),
    # accelerate 1.15 has no FSDP on a CPU, where it trains every rank alone, and fp32 in place of fp16.
    *((ACCELERATE_LAUNCH, "zero_stage", stage) for stage in (2, 3)),
    (ACCELERATE_LAUNCH, "precision", "fp16"),
    # Products that Transformer Engine groups.
    *((MEGATRON_CORE, "recompute_modules", word) for word in CHOICES["recompute_modules"] if "moe_act" in word),
)
"""Values of axes that an engine has on GPUs only."""


def _supports_device(table: LayoutTable, workload: Workload) -> np.ndarray:
    if workload.cluster.accelerator.name != "cpu":
        return np.full(len(table), True)
    return ~np.logical_or.reduce(
        [table.equals("engine", e) & table.equals(name, value) for e, name, value in _ON_GPUS_ALONE]
    )


def _describe_device(f: Fields, w: Workload) -> str:
    of_engine = ((name, value) for engine, name, value in _ON_GPUS_ALONE if engine == f["engine"])
    found = next(f"{name} is {format_value(value)}" for name, value in of_engine if f[name] == value)
    return f"{found} with engine {f['engine']} on {w.cluster.accelerator.name}"


def _supports_sequence_parallel(table: LayoutTable, workload: Workload) -> np.ndarray:
    """In fp32 on a GPU megatron-core's layers are its local ones (trials/ranks/engine_packages.py): torch's norm."""
    is_sequence = (table["sequence_parallel"] > 0) & table.equals("engine", MEGATRON_CORE)
    return ~(is_sequence & table.equals("precision", "fp32")) | (workload.cluster.accelerator.name == "cpu")


def _keeps_overlapped_groups_in_nodes(table: LayoutTable, workload: Workload) -> np.ndarray:
    crosses = table.per_mesh(RankMesh.crosses_nodes, "tp", workload.cluster.gpus_per_node)
    return ~(crosses & (table["num_nodes"] > 1) & (table["tensor_parallel_overlap"] > 0))


def _supports_grouped_flash(table: LayoutTable, workload: Workload) -> np.ndarray:
    """transformers leaves groups to the kernel, and torch's memory-efficient one, the only one in fp32, takes none."""
    is_grouped = workload.model.num_key_value_heads < workload.model.num_attention_heads
    if not is_grouped or workload.cluster.accelerator.name == "cpu":
        return np.full(len(table), True)
    in_fp32 = table.equals("precision", "fp32") & table.equals("attention_kernel", "flash")
    return ~(in_fp32 & table.equals("engine", ACCELERATE))


LEAST_FLEX_HEAD = 16
"""Elements of a head; torch 2.13, torch/_inductor/kernel/flex/flex_attention.py, flex_attention: tl.dot takes no
fewer."""


def _supports_flex_heads(table: LayoutTable, workload: Workload) -> np.ndarray:
    has_kernel = workload.cluster.accelerator.name == "cpu" or workload.model.head_size >= LEAST_FLEX_HEAD
    return ~table.equals("attention_kernel", "flex") | has_kernel


def _multiplies_quantized(table: LayoutTable, workload: Workload) -> np.ndarray:
    accelerator = workload.cluster.accelerator
    lacking = [word for word in MATMUL_RECIPES if not has_recipe(accelerator, word)]
    # torchtitan/components/quantization/mx.py asks for NVIDIA's compute capability 10.
    is_torchaos = table.equals("engine", TORCHTITAN) & table.equals("matmul_precision", "mxfp8")
    refused = is_torchaos & (chip_of(accelerator.name) not in BLACKWELL)
    return ~np.logical_or.reduce([refused, *(table.equals("matmul_precision", word) for word in lacking)])


def _distributes_experts(table: LayoutTable, workload: Workload) -> np.ndarray:
    if workload.model.num_experts is None:
        return table.ranks_of_expert_layer == 1
    return workload.model.num_experts % table["expert_parallel"] == 0


def _has_ranks_for_experts(table: LayoutTable, workload: Workload) -> np.ndarray:
    of_stage = layout_mesh(table.columns).without("pp").world_size // table["data_parallel_replicas"]
    return of_stage % table.ranks_of_expert_layer == 0


_WITHOUT_DEEPEP = ("gb200", "gb300")


def _has_dispatcher(table: LayoutTable, workload: Workload) -> np.ndarray:
    """Megatron-Bridge 0.6.0, src/megatron/bridge/training/flex_dispatcher_backend.py: what the libraries run on."""
    chip = chip_of(workload.cluster.accelerator.name)
    has_any = chip in ("a40", "a100", *HOPPER, *BLACKWELL)
    lacking = [] if has_any and chip not in _WITHOUT_DEEPEP else ["deepep"] if has_any else FUSED_DISPATCHERS
    return ~np.logical_or.reduce(
        [np.full(len(table), False), *(table.equals("expert_dispatcher", word) for word in lacking)]
    )


def _chunks(f: Fields) -> int:
    return f["pipeline_parallel"] * f["virtual_pipeline_stages"]


WORLD = LayoutRule(
    "world",
    WORLD_RULE,
    WORLD_FIX,
    _matches_world_size,
    describe_world_size,
)
MAX_NODES = LayoutRule(
    "max_nodes",
    "num_nodes is at most constraints.max_nodes",
    "raise constraints.max_nodes or use fewer nodes",
    lambda table, w: np.full(len(table), True) if w.max_nodes is None else table["num_nodes"] <= w.max_nodes,
    lambda f, w: f"num_nodes is {f['num_nodes']}, but constraints.max_nodes is {w.max_nodes}",
)
TP_ACROSS_NODES = LayoutRule(
    "tp_across_nodes",
    "a tensor-parallel group does not span nodes, but for those of one link domain",
    "use a tensor_parallel that divides gpus_per_node, or set space.allow_tensor_parallel_across_nodes",
    _keeps_tensor_groups_in_nodes,
    _describe_tensor_group,
)
TP_OVERLAP_ACROSS_NODES = LayoutRule(
    "tp_overlap_across_nodes",
    "tensor-parallel collectives are overlapped within a node: they go through memory that every GPU of the group can"
    " address (torch.distributed._symmetric_memory)",
    "use a tensor_parallel that divides gpus_per_node, or set tensor_parallel_overlap to false",
    _keeps_overlapped_groups_in_nodes,
    lambda f, w: (
        f"tensor_parallel_overlap is true with tensor_parallel {f['tensor_parallel']}, which does not divide"
        f" gpus_per_node {w.cluster.gpus_per_node}"
    ),
)
BATCH = LayoutRule(
    "batch",
    BATCH_RULE,
    BATCH_FIX,
    _matches_batch,
    describe_batch_size,
)
LAYERS = LayoutRule(
    "layers",
    "every pipeline stage has at least one layer",
    "use a smaller pipeline_parallel",
    lambda table, w: table["pipeline_parallel"] <= w.model.num_layers,
    lambda f, w: f"pipeline_parallel {f['pipeline_parallel']} is more than the model's {w.model.num_layers} layers",
)
INTERLEAVE = LayoutRule(
    "interleave",
    "every model chunk of an interleaved pipeline has at least one layer",
    "use fewer virtual_pipeline_stages",
    lambda table, w: table["pipeline_parallel"] * table["virtual_pipeline_stages"] <= w.model.num_layers,
    lambda f, w: (
        f"pipeline_parallel {f['pipeline_parallel']} x virtual_pipeline_stages {f['virtual_pipeline_stages']} ="
        f" {_chunks(f)} chunks, more than the model's {w.model.num_layers} layers"
    ),
)
PRECISION = LayoutRule(
    "precision",
    "the accelerator, and the engine on it, support the precision",
    "use fp32",
    _supports_precision,
    lambda f, w: (
        "DeepSpeed supports fp16 only on CPUs with fp16 instructions"
        if f["precision"] == "fp16"
        else f"{w.cluster.accelerator.name} does not support {f['precision']}"
    ),
)

GPU_ONLY = LayoutRule(
    "gpu_only",
    "what an engine has on GPUs alone, such as megatron-core's flash attention and torchtitan's compiler, needs one",
    "use another value, or another engine",
    _supports_device,
    _describe_device,
)

SEQUENCE_PARALLEL = LayoutRule(
    "sequence_parallel",
    "the engine supports sequence parallelism in this precision on this accelerator",
    "set precision to bf16, or sequence_parallel to false",
    _supports_sequence_parallel,
    lambda f, w: "megatron-core supports sequence_parallel on a GPU in bf16 and fp16 only; precision is fp32",
)

GROUPED_FLASH = LayoutRule(
    "grouped_flash",
    "on a GPU transformers' sdpa needs a flash kernel where heads share key-value heads, which has 16 bits only",
    "set precision to bf16, or attention_kernel to math",
    _supports_grouped_flash,
    lambda f, w: (
        f"attention_kernel is flash in fp32 with {w.model.num_key_value_heads} key-value heads for"
        f" {w.model.num_attention_heads} heads, engine {ACCELERATE}"
    ),
)
FLEX_HEAD_SIZE = LayoutRule(
    "flex_head_size",
    f"FlexAttention on a GPU takes heads of {LEAST_FLEX_HEAD} elements or more",
    "set attention_kernel to flash in bf16, or use fewer heads",
    _supports_flex_heads,
    lambda f, w: f"attention_kernel is flex with a head size of {w.model.head_size} on {w.cluster.accelerator.name}",
)

MATMUL_PRECISION = LayoutRule(
    "matmul_precision",
    "the accelerator multiplies these floats: 8 bits on H100 and later and on MI300X and later, mxfp8 on B200 and later"
    " and on MI350X and later (torchtitan's on B200 and later), nvfp4 on B200 and later",
    "set matmul_precision to same",
    _multiplies_quantized,
    lambda f, w: f"matmul_precision is {f['matmul_precision']} on {w.cluster.accelerator.name}",
)
LAYERS_IN_16_BITS = LayoutRule(
    "layers_in_16_bits",
    "layers_in_16_bits at both ends are not all of the model's layers",
    "use fewer layers_in_16_bits, or set matmul_precision to same",
    lambda table, w: 2 * table["layers_in_16_bits"] < w.model.num_layers,
    lambda f, w: f"2 x layers_in_16_bits {f['layers_in_16_bits']} is not less than num_layers {w.model.num_layers}",
)

CONTEXT = LayoutRule(
    "context",
    "2 x context_parallel divides the sequence: each rank has a chunk of its first half and one of its second, which"
    " leaves all of them as much work under a causal mask",
    "use a smaller context_parallel, or another seq_length",
    lambda table, w: (table["context_parallel"] == 1) | (w.model.seq_length % (2 * table["context_parallel"]) == 0),
    lambda f, w: f"2 x context_parallel {f['context_parallel']} does not divide seq_length {w.model.seq_length}",
)

EXPERTS = LayoutRule(
    "experts",
    "expert_parallel divides the number of the model's experts; without experts it and expert_tensor_parallel are 1",
    "use an expert_parallel that divides num_experts, or 1 for both without experts",
    _distributes_experts,
    lambda f, w: (
        f"expert_parallel {f['expert_parallel']} does not divide num_experts {w.model.num_experts}"
        if w.model.num_experts
        else f"expert_parallel {f['expert_parallel']} x expert_tensor_parallel {f['expert_tensor_parallel']}, but the"
        " model has no experts"
    ),
)
EXPERT_WIDTH = LayoutRule(
    "expert_width",
    "expert_tensor_parallel divides the width of an expert",
    "use an expert_tensor_parallel that divides expert_ffn_hidden_size",
    lambda table, w: w.model.expert_width % table["expert_tensor_parallel"] == 0,
    lambda f, w: (
        f"expert_tensor_parallel {f['expert_tensor_parallel']} does not divide the expert width {w.model.expert_width}"
    ),
)
EXPERT_RANKS = LayoutRule(
    "expert_ranks",
    "expert_parallel x expert_tensor_parallel divides the ranks of a stage, with replicas those of one replica",
    "use a smaller expert_parallel, or a smaller pipeline_parallel",
    _has_ranks_for_experts,
    lambda f, w: (
        f"expert_parallel {f['expert_parallel']} x expert_tensor_parallel {f['expert_tensor_parallel']} does not divide"
        f" the {layout_mesh(f).without('pp').world_size // f['data_parallel_replicas']} ranks of a stage and replica"
    ),
)

EXPERT_DISPATCHER = LayoutRule(
    "expert_dispatcher",
    "DeepEP runs on NVIDIA's Ampere, Hopper, B200 and B300, HybridEP on these, GB200 and GB300",
    "set expert_dispatcher to alltoall",
    _has_dispatcher,
    lambda f, w: f"expert_dispatcher is {f['expert_dispatcher']} on {w.cluster.accelerator.name}",
)

SPLIT_RULES = {
    rule.code: rule
    for rule in (
        _split_rule(
            "heads", "num_attention_heads", "attention heads", "use a tensor_parallel that divides num_attention_heads"
        ),
        _split_rule(
            "kv_heads",
            "num_key_value_heads",
            "key-value heads",
            "use a tensor_parallel that divides num_key_value_heads",
        ),
        _split_rule("ffn", "ffn_hidden_size", "MLP width", "use a tensor_parallel that divides ffn_hidden_size"),
        _split_rule(
            "vocab", "vocab_size", "padded vocabulary", "pad vocab_size to a multiple of 128 x tensor_parallel"
        ),
    )
}
"""Rules of the dimensions that tensor parallelism splits, by id."""

LAYOUT_RULES = (
    WORLD,
    MAX_NODES,
    TP_ACROSS_NODES,
    TP_OVERLAP_ACROSS_NODES,
    *SPLIT_RULES.values(),
    LAYERS,
    INTERLEAVE,
    BATCH,
    PRECISION,
    GPU_ONLY,
    SEQUENCE_PARALLEL,
    FLEX_HEAD_SIZE,
    GROUPED_FLASH,
    MATMUL_PRECISION,
    LAYERS_IN_16_BITS,
    CONTEXT,
    EXPERTS,
    EXPERT_WIDTH,
    EXPERT_RANKS,
    EXPERT_DISPATCHER,
)
"""All rules, in order; a layout is rejected by the first that it violates."""
