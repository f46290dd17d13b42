"""Rules of every layout, independent of the engine: checked on a whole table, explained for one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from search_spaces.engines import ACCELERATE, ACCELERATE_LAUNCH, MEGATRON_CORE, TORCHTITAN
from search_spaces.errors import Problem
from search_spaces.hardware.arithmetic import has_recipe
from search_spaces.hardware.cluster import BLACKWELL, HOPPER, chip_of
from search_spaces.layouts.layout import BATCH_RULE, CHOICES, WORLD_RULE, Layout, layout_mesh
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
from search_spaces.rules.engine_rules import finding


@dataclass(frozen=True)
class LayoutRule:
    """A rule: `is_satisfied` is true for the rows that satisfy it. The finding on a row that does not has the values of
    `fields`, of the layout or by their path from the workload, or the words of `numbers`."""

    code: str
    fields: tuple[str, ...]
    is_satisfied: Callable[[LayoutTable, Workload], np.ndarray]
    rule: str
    fix: str
    numbers: Callable[[Fields, Workload], str] | None = None

    def problem(self, fields: Fields, workload: Workload) -> Problem:
        if self.numbers is not None:
            return Problem(self.code, self.numbers(fields, workload), self.rule, self.fix)
        found = {name.removesuffix(".name"): _value(name, fields, workload) for name in self.fields}
        return Problem(self.code, finding(found), self.rule, self.fix)


def _value(name: str, fields: Fields, workload: Workload) -> Any:
    if name in _COUNTED:
        return _COUNTED[name](fields, workload)
    return attrgetter(name)(workload) if "." in name else fields[name]


_RANKS_OF_DOMAIN, _RANKS_OF_STAGE = "ranks of a link domain", "ranks of a stage and replica"
_MAX_NODES = "constraints.max_nodes"
_COUNTED: Mapping[str, Callable[[Fields, Workload], Any]] = {
    _MAX_NODES: lambda f, w: w.max_nodes,
    _RANKS_OF_DOMAIN: lambda f, w: w.cluster.nodes_per_domain(f["num_nodes"]) * w.cluster.gpus_per_node,
    _RANKS_OF_STAGE: lambda f, w: layout_mesh(f).without("pp").world_size // f["data_parallel_replicas"],
}
"""Numbers that are no field of the layout, the model or the cluster."""


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


def _has(table: LayoutTable, **values: Any) -> np.ndarray:
    """Mask of the rows that have all these values."""
    return np.logical_and.reduce([table.equals(*item) for item in values.items()])


def _is_on_cpu(workload: Workload) -> bool:
    return workload.cluster.accelerator.name == "cpu"


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
    lacking = [_has(table, **{"engine": engine, name: value}) for engine, name, value in _ON_GPUS_ALONE]
    return ~(np.logical_or.reduce(lacking) & _is_on_cpu(workload))


def _describe_device(f: Fields, w: Workload) -> str:
    found = next((e, name, value) for e, name, value in _ON_GPUS_ALONE if e == f["engine"] and f[name] == value)
    return finding({found[1]: found[2], "engine": found[0], "cluster.accelerator": w.cluster.accelerator.name})


LEAST_FLEX_HEAD = 16
"""Elements of a head; torch 2.13, torch/_inductor/kernel/flex/flex_attention.py, flex_attention: tl.dot takes no
fewer."""


def _multiplies_quantized(table: LayoutTable, workload: Workload) -> np.ndarray:
    accelerator = workload.cluster.accelerator
    lacking = [word for word in MATMUL_RECIPES if not has_recipe(accelerator, word)]
    # torchtitan/components/quantization/mx.py asks for NVIDIA's compute capability 10.
    is_torchaos = table.equals("engine", TORCHTITAN) & table.equals("matmul_precision", "mxfp8")
    refused = is_torchaos & (chip_of(accelerator.name) not in BLACKWELL)
    return ~np.logical_or.reduce([refused, *(table.equals("matmul_precision", word) for word in lacking)])


def _has_dispatcher(table: LayoutTable, workload: Workload) -> np.ndarray:
    """Megatron-Bridge 0.6.0, src/megatron/bridge/training/flex_dispatcher_backend.py: what the libraries run on."""
    chip = chip_of(workload.cluster.accelerator.name)
    runs = {"hybridep": ("a40", "a100", *HOPPER, *BLACKWELL), "deepep": ("a40", "a100", *HOPPER, "b200", "b300")}
    lacking = [_has(table, expert_dispatcher=word) & (chip not in chips) for word, chips in runs.items()]
    return ~np.logical_or.reduce(lacking)


def _shares_key_value_heads(table: LayoutTable, workload: Workload) -> np.ndarray:
    """Megatron-LM gives ranks in excess of the heads copies (megatron/core/transformer/attention.py)."""
    heads, tensor = workload.model.num_key_value_heads, table["tensor_parallel"]
    has_copies = table.equals("engine", "megatron-lm") | table.equals("engine", "command")
    return (heads % tensor == 0) | (has_copies & (tensor % heads == 0))


def _divides(code: str, name: str, fix: str) -> LayoutRule:
    """Rule that tensor_parallel divides a size of the model."""
    return LayoutRule(
        code,
        ("tensor_parallel", f"model.{name}"),
        lambda table, w: getattr(w.model, name) % table["tensor_parallel"] == 0,
        f"tensor_parallel divides {name}",
        fix,
    )


LAYOUT_RULES: tuple[LayoutRule, ...] = (
    LayoutRule(
        "world",
        (),
        lambda table, w: (
            (layout_mesh(table.columns).world_size == w.world_size(table["num_nodes"]))
            & (table["num_nodes"] <= w.cluster.num_nodes)
        ),
        WORLD_RULE,
        WORLD_FIX,
        describe_world_size,
    ),
    LayoutRule(
        "max_nodes",
        ("num_nodes", _MAX_NODES),
        lambda table, w: table["num_nodes"] <= (w.max_nodes or np.inf),
        "num_nodes is at most constraints.max_nodes",
        "raise constraints.max_nodes or use fewer nodes",
    ),
    LayoutRule(
        "tp_across_nodes",
        ("tensor_parallel", "num_nodes", _RANKS_OF_DOMAIN),
        lambda table, w: (
            ~leaves_domain(table, "tensor", w.cluster)
            | (table["num_nodes"] == 1)
            | w.allow_tensor_parallel_across_nodes
        ),
        "a tensor-parallel group does not span nodes, but for those of one link domain",
        "use a tensor_parallel that divides gpus_per_node, or set space.allow_tensor_parallel_across_nodes",
    ),
    LayoutRule(
        "tp_overlap_across_nodes",
        ("tensor_parallel_overlap", "tensor_parallel", "cluster.gpus_per_node"),
        lambda table, w: (
            ~table.per_mesh(RankMesh.crosses_nodes, "tp", w.cluster.gpus_per_node)
            | (table["num_nodes"] == 1)
            | _has(table, tensor_parallel_overlap=False)
        ),
        "tensor-parallel collectives are overlapped within a node: they go through memory that every GPU of the group"
        " can address (torch.distributed._symmetric_memory)",
        "use a tensor_parallel that divides gpus_per_node, or set tensor_parallel_overlap to false",
    ),
    _divides("heads", "num_attention_heads", "use a tensor_parallel that divides num_attention_heads"),
    LayoutRule(
        "kv_heads",
        ("tensor_parallel", "model.num_key_value_heads", "engine"),
        _shares_key_value_heads,
        "tensor_parallel divides num_key_value_heads; with Megatron-LM it may be a multiple, too",
        "use a tensor_parallel that divides num_key_value_heads",
    ),
    _divides("ffn", "ffn_hidden_size", "use a tensor_parallel that divides ffn_hidden_size"),
    _divides("vocab", "vocab_size", "pad vocab_size to a multiple of 128 x tensor_parallel"),
    LayoutRule(
        "layers",
        ("pipeline_parallel", "model.num_layers"),
        lambda table, w: table["pipeline_parallel"] <= w.model.num_layers,
        "every pipeline stage has at least one layer",
        "use a smaller pipeline_parallel",
    ),
    LayoutRule(
        "interleave",
        ("virtual_pipeline_stages", "pipeline_parallel", "model.num_layers"),
        lambda table, w: table["pipeline_parallel"] * table["virtual_pipeline_stages"] <= w.model.num_layers,
        "every model chunk of an interleaved pipeline has at least one layer",
        "use fewer virtual_pipeline_stages",
    ),
    LayoutRule(
        "batch",
        (),
        lambda table, w: (
            table["grad_accum_steps"] > 0 if w.batch_is_free else table.global_batch_size == w.global_batch_size
        ),
        BATCH_RULE,
        BATCH_FIX,
        describe_batch_size,
    ),
    LayoutRule(
        "precision",
        ("precision", "engine", "cluster.accelerator.name"),
        lambda table, w: (
            ~(
                (_has(table, precision="bf16") & w.cluster.accelerator.lacks_bf16)
                | (_has(table, precision="fp16", engine="deepspeed") & _is_on_cpu(w))
            )
        ),
        "the accelerator, and the engine on it, support the precision: DeepSpeed has fp16 only on CPUs with fp16"
        " instructions",
        "use fp32",
    ),
    LayoutRule(
        "gpu_only",
        (),
        _supports_device,
        "what an engine has on GPUs alone, such as megatron-core's flash attention and torchtitan's compiler, needs"
        " one",
        "use another value, or another engine",
        _describe_device,
    ),
    LayoutRule(
        "sequence_parallel",
        ("sequence_parallel", "precision", "engine"),
        # In fp32 its layers are its local ones (trials/ranks/engine_packages.py): torch's norm.
        lambda table, w: ~_has(table, sequence_parallel=True, engine=MEGATRON_CORE, precision="fp32") | _is_on_cpu(w),
        "megatron-core supports sequence_parallel on a GPU in bf16 and fp16 only",
        "set precision to bf16, or sequence_parallel to false",
    ),
    LayoutRule(
        "flex_head_size",
        ("attention_kernel", "model.head_size", "cluster.accelerator.name"),
        lambda table, w: ~_has(table, attention_kernel="flex") | (w.model.head_size >= LEAST_FLEX_HEAD) | _is_on_cpu(w),
        f"FlexAttention on a GPU takes heads of {LEAST_FLEX_HEAD} elements or more",
        "set attention_kernel to flash in bf16, or use fewer heads",
    ),
    LayoutRule(
        "grouped_flash",
        ("attention_kernel", "precision", "model.num_key_value_heads", "model.num_attention_heads", "engine"),
        # transformers leaves groups to the kernel, and torch's memory-efficient one, the only one in fp32, takes none.
        lambda table, w: (
            ~_has(table, attention_kernel="flash", precision="fp32", engine=ACCELERATE)
            | (w.model.num_key_value_heads == w.model.num_attention_heads)
            | _is_on_cpu(w)
        ),
        "on a GPU transformers' sdpa needs a flash kernel where heads share key-value heads, which has 16 bits only",
        "set precision to bf16, or attention_kernel to math",
    ),
    LayoutRule(
        "matmul_precision",
        ("matmul_precision", "cluster.accelerator.name"),
        _multiplies_quantized,
        "the accelerator multiplies these floats: 8 bits on H100 and later and on MI300X and later, mxfp8 on B200 and"
        " later and on MI350X and later (torchtitan's on B200 and later), nvfp4 on B200 and later",
        "set matmul_precision to same",
    ),
    LayoutRule(
        "context",
        ("context_parallel", "model.seq_length"),
        lambda table, w: (table["context_parallel"] == 1) | (w.model.seq_length % (2 * table["context_parallel"]) == 0),
        "2 x context_parallel divides the sequence: each rank has a chunk of its first half and one of its second,"
        " which leaves all of them as much work under a causal mask",
        "use a smaller context_parallel, or another seq_length",
    ),
    LayoutRule(
        "experts",
        ("expert_parallel", "expert_tensor_parallel", "model.num_experts"),
        lambda table, w: (
            table.ranks_of_expert_layer == 1
            if w.model.num_experts is None
            else w.model.num_experts % table["expert_parallel"] == 0
        ),
        "expert_parallel divides the number of the model's experts; without experts it and expert_tensor_parallel are"
        " 1",
        "use an expert_parallel that divides num_experts, or 1 for both without experts",
    ),
    LayoutRule(
        "expert_width",
        ("expert_tensor_parallel", "model.expert_width"),
        lambda table, w: w.model.expert_width % table["expert_tensor_parallel"] == 0,
        "expert_tensor_parallel divides the width of an expert",
        "use an expert_tensor_parallel that divides expert_ffn_hidden_size",
    ),
    LayoutRule(
        "expert_ranks",
        ("expert_parallel", "expert_tensor_parallel", _RANKS_OF_STAGE),
        lambda table, w: (
            layout_mesh(table.columns).without("pp").world_size
            // table["data_parallel_replicas"]
            % table.ranks_of_expert_layer
            == 0
        ),
        "expert_parallel x expert_tensor_parallel divides the ranks of a stage, with replicas those of one replica",
        "use a smaller expert_parallel, or a smaller pipeline_parallel",
    ),
    LayoutRule(
        "expert_dispatcher",
        ("expert_dispatcher", "cluster.accelerator.name"),
        _has_dispatcher,
        "DeepEP runs on NVIDIA's Ampere, Hopper, B200 and B300, HybridEP on these, GB200 and GB300",
        "set expert_dispatcher to alltoall",
    ),
)
"""All rules, in order; a layout is rejected by the first that it violates."""


def rules_named(*codes: str) -> tuple[LayoutRule, ...]:
    """The rules of these ids, in order."""
    return tuple(rule for rule in LAYOUT_RULES if rule.code in codes)


SPLIT_RULES = rules_named("heads", "kv_heads", "ffn", "vocab")
"""Rules of the dimensions that tensor parallelism splits."""
