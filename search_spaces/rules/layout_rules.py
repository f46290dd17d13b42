"""Rules of every layout, independent of the engine, and the rules of both kinds on a whole table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import numpy as np

from search_spaces.engines import ACCELERATE, ACCELERATE_LAUNCH, MEGATRON_CORE, TORCHTITAN
from search_spaces.errors import Problem
from search_spaces.hardware.arithmetic import has_recipe
from search_spaces.hardware.cluster import BLACKWELL, HOPPER, chip_of
from search_spaces.layouts.layout import BATCH_RULE, CHOICES, DIMENSIONS, WORLD_RULE, layout_mesh
from search_spaces.layouts.table import LayoutTable
from search_spaces.layouts.workload import BATCH_FIX, WORLD_FIX, Workload, wrong_batch, wrong_world
from search_spaces.rules.rule import RANKS_OF_DOMAIN, RANKS_OF_STAGE, Clashes, Rule, always, at_least, clashes, is_not


def with_derived(table: LayoutTable, workload: Workload) -> LayoutTable:
    """The table with data_parallel, and grad_accum_steps unless it is an axis; 0 where the quotient is not whole."""
    ranks_per_replica = layout_mesh(table.columns).without("dp").world_size
    data_parallel = _exact_quotient(workload.world_size(table["num_nodes"]), ranks_per_replica)
    table = table.with_columns(data_parallel=data_parallel)
    if workload.batch_is_free:
        return table
    batch = np.full(len(table), workload.global_batch_size)
    return table.with_columns(grad_accum_steps=_exact_quotient(batch, table["micro_batch_size"] * data_parallel))


def _exact_quotient(whole: np.ndarray, part: np.ndarray) -> np.ndarray:
    """whole / part where that is a whole number, else 0."""
    divisor = np.maximum(part, 1)
    return np.where((part > 0) & (whole % divisor == 0), whole // divisor, 0)


def first_problems(
    table: LayoutTable, workload: Workload, rules: Iterable[tuple[str, Rule]]
) -> tuple[list[Problem], np.ndarray]:
    """Problems with rules, each given with the engine whose layouts it is about, "" for all; and for each row the index
    of the first problem that it has, -1 for none."""
    found: list[Problem] = []
    first = np.full(len(table), -1)
    values_of = cache(table.values)
    for engine, rule in rules:
        if not rule.concerns(values_of):
            continue
        left = np.flatnonzero((first < 0) & table.equals("engine", engine) if engine else first < 0)
        ask = partial(rule.problem, task=workload, owner=engine)
        problems, of_row = table.answers(ask, left, rule.axes)
        numbers = []
        for problem in problems:
            numbers.append(-1 if problem is None else len(found))
            found += [] if problem is None else [problem]
        first[left] = np.array(numbers, dtype=int)[of_row]
    return found, first


def is_valid(table: LayoutTable, workload: Workload, rules: Iterable[Rule]) -> np.ndarray:
    """Mask of the rows that keep these rules of all engines."""
    return first_problems(table, workload, [("", rule) for rule in rules])[1] < 0


ACCELERATOR = "cluster.accelerator"


def _is_gpu(accelerator: Any) -> bool:
    return accelerator.name != "cpu"


_ON_GPUS: Clashes = {ACCELERATOR: _is_gpu}
_ON_GPUS_ALONE: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    (MEGATRON_CORE, "attention_kernel", ("flash",)),
    (TORCHTITAN, "attention_kernel", ("flash",)),
    (TORCHTITAN, "torch_compile", (True,)),
    # accelerate 1.15 has no FSDP on a CPU, where it trains every rank alone, and fp32 in place of fp16.
    (ACCELERATE_LAUNCH, "zero_stage", (2, 3)),
    (ACCELERATE_LAUNCH, "precision", ("fp16",)),
    # Products that Transformer Engine groups.
    (MEGATRON_CORE, "recompute_modules", tuple(word for word in CHOICES["recompute_modules"] if "moe_act" in word)),
)
"""Values of axes that an engine has on GPUs only."""

LEAST_FLEX_HEAD = 16
"""Elements of a head; torch 2.13, torch/_inductor/kernel/flex/flex_attention.py, flex_attention: tl.dot takes no
fewer."""
_CHIPS_OF_DISPATCHER = {
    "hybridep": ("a40", "a100", *HOPPER, *BLACKWELL),
    "deepep": ("a40", "a100", *HOPPER, "b200", "b300"),
}
"""Megatron-Bridge 0.6.0, src/megatron/bridge/training/flex_dispatcher_backend.py: what the libraries run on."""


def _lacks_precision(precision: str, engine: str, accelerator: Any) -> bool:
    is_fp16_of_deepspeed = precision == "fp16" and engine == "deepspeed" and not _is_gpu(accelerator)
    return is_fp16_of_deepspeed or (precision == "bf16" and accelerator.lacks_bf16)


_MULTIPLIES = (
    "the accelerator multiplies these floats: 8 bits on H100 and later and on MI300X and later, mxfp8 on B200 and"
    " later and on MI350X and later (torchtitan's on B200 and later), nvfp4 on B200 and later"
)


_LACKING_RECIPES: tuple[tuple[Callable[[str, Any], bool], Clashes], ...] = (
    (lambda word, accelerator: not has_recipe(accelerator, word), {"matmul_precision": is_not("same")}),
    # torchtitan/components/quantization/mx.py asks for NVIDIA's compute capability 10.
    (
        lambda word, accelerator: has_recipe(accelerator, word) and chip_of(accelerator.name) not in BLACKWELL,
        {"matmul_precision": ("mxfp8",), "engine": (TORCHTITAN,)},
    ),
)


def _lacks_key_value_heads(tensor: int, heads: int, engine: str) -> bool:
    """Megatron-LM gives ranks in excess of the heads copies (megatron/core/transformer/attention.py)."""
    has_copies = engine in ("megatron-lm", "command")
    return heads % tensor != 0 and not (has_copies and tensor % heads == 0)


def _divides(name: str, field: str, fix: str) -> Rule:
    """Rule that tensor_parallel divides a size of the model."""
    fields = ("tensor_parallel", f"model.{field}")
    return Rule(fields, lambda tensor, size: size % tensor, f"tensor_parallel divides {field}", fix, name=name)


LAYOUT_RULES: tuple[Rule, ...] = (
    Rule(("num_nodes", *DIMENSIONS.values()), always, WORLD_RULE, WORLD_FIX, name="world", told=wrong_world),
    Rule(
        ("num_nodes", "constraints.max_nodes"),
        lambda nodes, most: most is not None and nodes > most,
        "num_nodes is at most constraints.max_nodes",
        "raise constraints.max_nodes or use fewer nodes",
        name="max_nodes",
    ),
    Rule(
        ("tensor_parallel", "num_nodes", RANKS_OF_DOMAIN),
        lambda tensor, nodes, ranks: ranks % tensor,
        "a tensor-parallel group does not span nodes, but for those of one link domain",
        "use a tensor_parallel that divides gpus_per_node, or set space.allow_tensor_parallel_across_nodes",
        name="tp_across_nodes",
        only={"constraints.allow_tensor_parallel_across_nodes": (False,), "num_nodes": at_least(2)},
    ),
    Rule(
        ("tensor_parallel_overlap", "tensor_parallel", "cluster.gpus_per_node"),
        lambda overlaps, tensor, gpus: gpus % tensor,
        "tensor-parallel collectives are overlapped within a node: they go through memory that every GPU of the group"
        " can address (torch.distributed._symmetric_memory)",
        "use a tensor_parallel that divides gpus_per_node, or set tensor_parallel_overlap to false",
        name="tp_overlap_across_nodes",
        only={"num_nodes": at_least(2), "tensor_parallel_overlap": (True,)},
    ),
    _divides("heads", "num_attention_heads", "use a tensor_parallel that divides num_attention_heads"),
    Rule(
        ("tensor_parallel", "model.num_key_value_heads", "engine"),
        _lacks_key_value_heads,
        "tensor_parallel divides num_key_value_heads; with Megatron-LM it may be a multiple, too",
        "use a tensor_parallel that divides num_key_value_heads",
        name="kv_heads",
    ),
    _divides("ffn", "ffn_hidden_size", "use a tensor_parallel that divides ffn_hidden_size"),
    _divides("vocab", "vocab_size", "pad vocab_size to a multiple of 128 x tensor_parallel"),
    Rule(
        ("pipeline_parallel", "model.num_layers"),
        lambda stages, layers: stages > layers,
        "every pipeline stage has at least one layer",
        "use a smaller pipeline_parallel",
        name="layers",
    ),
    Rule(
        ("virtual_pipeline_stages", "pipeline_parallel", "model.num_layers"),
        lambda chunks, stages, layers: stages * chunks > layers,
        "every model chunk of an interleaved pipeline has at least one layer",
        "use fewer virtual_pipeline_stages",
        name="interleave",
    ),
    Rule(
        ("micro_batch_size", "grad_accum_steps", "data_parallel"),
        always,
        BATCH_RULE,
        BATCH_FIX,
        name="batch",
        told=wrong_batch,
    ),
    Rule(
        ("precision", "engine", ACCELERATOR),
        _lacks_precision,
        "the accelerator, and the engine on it, support the precision: DeepSpeed has fp16 only on CPUs with fp16"
        " instructions",
        "use fp32",
    ),
    *(
        clashes(
            field,
            {"engine": (engine,), ACCELERATOR: lambda accelerator: not _is_gpu(accelerator)},
            "what an engine has on GPUs alone, such as megatron-core's flash attention and torchtitan's compiler,"
            " needs one",
            values=values,
            fix="use another value, or another engine",
            name="gpu_only",
        )
        for engine, field, values in _ON_GPUS_ALONE
    ),
    # In fp32 its layers are its local ones (trials/ranks/engine_packages.py): torch's norm.
    clashes(
        "sequence_parallel",
        {"precision": ("fp32",), "engine": (MEGATRON_CORE,)},
        "megatron-core supports sequence_parallel on a GPU in bf16 and fp16 only",
        fix="set precision to bf16, or sequence_parallel to false",
        only=_ON_GPUS,
    ),
    Rule(
        ("attention_kernel", "model.head_size", ACCELERATOR),
        lambda kernel, size, accelerator: size < LEAST_FLEX_HEAD,
        f"FlexAttention on a GPU takes heads of {LEAST_FLEX_HEAD} elements or more",
        "set attention_kernel to flash in bf16, or use fewer heads",
        name="flex_head_size",
        only={"attention_kernel": ("flex",), **_ON_GPUS},
    ),
    # transformers leaves groups to the kernel, and torch's memory-efficient one, the only one in fp32, takes none.
    Rule(
        ("attention_kernel", "precision", "model.num_key_value_heads", "model.num_attention_heads", "engine"),
        lambda kernel, precision, groups, heads, engine: groups != heads,
        "on a GPU transformers' sdpa needs a flash kernel where heads share key-value heads, which has 16 bits only",
        "set precision to bf16, or attention_kernel to math",
        name="grouped_flash",
        only={"attention_kernel": ("flash",), "precision": ("fp32",), "engine": (ACCELERATE,), **_ON_GPUS},
    ),
    *(
        Rule(("matmul_precision", ACCELERATOR), lacks, _MULTIPLIES, "set matmul_precision to same", only=only)
        for lacks, only in _LACKING_RECIPES
    ),
    Rule(
        ("context_parallel", "model.seq_length"),
        lambda context, length: length % (2 * context),
        "2 x context_parallel divides the sequence: each rank has a chunk of its first half and one of its second,"
        " which leaves all of them as much work under a causal mask",
        "use a smaller context_parallel, or another seq_length",
        name="context",
        only={"context_parallel": at_least(2)},
    ),
    Rule(
        ("expert_parallel", "expert_tensor_parallel", "model.num_experts"),
        lambda ranks, split, experts: ranks * split > 1 if experts is None else experts % ranks,
        "expert_parallel divides the number of the model's experts; without experts it and expert_tensor_parallel are"
        " 1",
        "use an expert_parallel that divides num_experts, or 1 for both without experts",
        name="experts",
    ),
    Rule(
        ("expert_tensor_parallel", "model.expert_width"),
        lambda split, width: width % split,
        "expert_tensor_parallel divides the width of an expert",
        "use an expert_tensor_parallel that divides expert_ffn_hidden_size",
        name="expert_width",
    ),
    Rule(
        ("expert_parallel", "expert_tensor_parallel", RANKS_OF_STAGE),
        lambda ranks, split, of_stage: of_stage % (ranks * split),
        "expert_parallel x expert_tensor_parallel divides the ranks of a stage, with replicas those of one replica",
        "use a smaller expert_parallel, or a smaller pipeline_parallel",
        name="expert_ranks",
    ),
    Rule(
        ("expert_dispatcher", ACCELERATOR),
        lambda word, accelerator: chip_of(accelerator.name) not in _CHIPS_OF_DISPATCHER[word],
        "DeepEP runs on NVIDIA's Ampere, Hopper, B200 and B300, HybridEP on these, GB200 and GB300",
        "set expert_dispatcher to alltoall",
        only={"expert_dispatcher": tuple(_CHIPS_OF_DISPATCHER)},
    ),
)
"""All rules, in order; a layout is rejected by the first that it violates."""


def rules_named(*codes: str) -> tuple[Rule, ...]:
    """The rules of these ids, in order."""
    return tuple(rule for rule in LAYOUT_RULES if rule.code in codes)


SPLIT_RULES = rules_named("heads", "kv_heads", "ffn", "vocab")
"""Rules of the dimensions that tensor parallelism splits."""
