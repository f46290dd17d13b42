"""Rules of the engines: what DeepSpeed, torch and megatron-core support whichever trainer drives them; form of a rule.

Standard library only. DeepSpeed 0.19 deepspeed/runtime/engine.py, runtime/pipe/engine.py and runtime/zero;
torch.distributed.pipelining.schedules and torch.distributed.fsdp; megatron-core 0.16 megatron/core/pipeline_parallel
and megatron/core/distributed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from search_spaces.engines import ENGINE_PROFILES, OWN_ENGINES
from search_spaces.layouts.layout import AXES, Layout
from search_spaces.layouts.matmul_recipes import MatmulRecipe, recipe_of
from search_spaces.layouts.pipeline_split import GivenSplit
from search_spaces.model_shape import MODEL_DEFAULTS, RESOLVED_FIELDS, ModelShape, field_of_feature


class RuleViolation(NamedTuple):
    """A rule that a layout violates: the rule's short name, the finding with its numbers, the rule and the fix."""

    name: str
    message: str
    rule: str
    fix: str


Rule = Callable[[Layout, ModelShape], Iterator[RuleViolation]]
EngineRules = Mapping[str, tuple[Rule, ...]]
"""Rules of each engine of a trainer."""


def allows_only(
    fields: Mapping[str, tuple], of_model: Mapping[str, tuple] | None = None, *, owner: str | None = None
) -> Rule:
    """Rule that allows only these values of the layout's and the model's fields.

    `owner` is the name in the message, by default the layout's engine.
    """

    def rule(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
        for record, choices in ((layout, fields), (model, of_model or {})):
            for name, values in choices.items():
                value = getattr(record, RESOLVED_FIELDS.get(name, name))
                if value not in values:
                    allowed = _choice(name, values)
                    sentence = f"{owner or layout.engine} supports {name} {allowed}"
                    message = f"{name} is {_format(value)}; {sentence}"
                    yield RuleViolation(name, message, sentence, f"set {name} to {allowed}")

    return rule


Clash = Callable[[Any], bool] | tuple[Any, ...]
"""Values of a field that a rule is about: these, or those for which a function is true."""


def clashes(name: str, others: Mapping[str, Clash], rule: str, *, values: Clash | None = None, fix: str = "") -> Rule:
    """Rule that a field does not have `values`, by default all but its default, beside these values of all `others`.

    A field of the model is called `model.NAME`. The rule's short name is the field's; `{engine}` in it is the layout's.
    The fix is to change an axis of `others` to a value that does not clash, where it has few, or else the field itself.
    """
    field = name.removeprefix("model.")
    own = _reader(name)
    beside = {other: (_reader(other), clash) for other, clash in others.items()}

    def violations(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
        value = own(layout, model)
        if value == _DEFAULTS[field] if values is None else not _is_in(value, values):
            return
        if all(_is_in(read(layout, model), clash) for read, clash in beside.values()):
            found = " and ".join(f"{other} {_format(read(layout, model))}" for other, (read, _) in beside.items())
            message = f"{name} is {_format(value)}" + (f" with {found}" if found else "")
            yield RuleViolation(field, message, rule.replace("{engine}", layout.engine), fix or _way_out(name, others))

    return violations


def _reader(name: str) -> Callable[[Layout, ModelShape], Any]:
    """Reader of a field of the layout, or of the model; of the model the value that counts."""
    field = name.removeprefix("model.")
    read = attrgetter(RESOLVED_FIELDS.get(field, field))
    return (lambda layout, model: read(model)) if field != name else (lambda layout, model: read(layout))


def at_least(least: int) -> Callable[[Any], bool]:
    """True for a number from `least` on; a field without a value has none."""
    return lambda value: value is not None and value >= least


def has_part(*parts: str) -> Callable[[str], bool]:
    """True for a joined word with one of these parts."""
    return lambda word: not {*parts}.isdisjoint(word.split("+"))


def is_given(value: Any) -> bool:
    return value is not None


def _is_in(value: Any, clash: Clash) -> bool:
    return clash(value) if callable(clash) else value in clash


def _way_out(name: str, others: Mapping[str, Clash]) -> str:
    instead = [f"set {n} to {_choice(n, few)}" for n, clash in others.items() if (few := _without(n, clash))]
    default = _DEFAULTS[name.removeprefix("model.")]
    own = f"leave {name} out" if default is None or name.startswith("model.") else f"set {name} to {_format(default)}"
    return ", or ".join([*instead, own])


def _without(name: str, clash: Clash) -> tuple[Any, ...]:
    """Values of an axis that do not clash; none where there are many."""
    axis = AXES.get(name)
    if axis is None or axis.parts or (axis.is_number and axis.most > _FEW):
        return ()
    every = range(axis.least, axis.most + 1) if axis.is_number else axis.words or (False, True)
    found = tuple(value for value in every if not _is_in(value, clash))
    return found if len(found) <= _FEW else ()


_FEW = 4
_DEFAULTS: Mapping[str, Any] = {**{name: axis.default for name, axis in AXES.items()}, **MODEL_DEFAULTS}


def engine_limits(
    engine: str, fields: Mapping[str, tuple] | None = None, of_model: Mapping[str, tuple] | None = None
) -> Rule:
    """Rule that allows only these values, and of each other axis those that it declares for the engine."""
    declared = {name: axis.values_of(engine) for name, axis in AXES.items()}
    limits = {name: values for name, values in declared.items() if values is not None} | {**(fields or {})}
    return allows_only({name: limits[name] for name in AXES if name in limits}, of_model)


def _choice(name: str, values: tuple) -> str:
    is_joined = name in AXES and AXES[name].parts
    return AXES[name].choice_of(values) if is_joined else " or ".join(_format(v) for v in values)


def _format(value: object) -> str:
    return "null" if value is None else str(value).lower()


def lacking_features(engine: str, model: ModelShape) -> Iterator[RuleViolation]:
    """Features of the model that an engine does not build."""
    yield from _other_features(model, ENGINE_PROFILES[engine].model_features, f"engine {engine}")


def builds_only(features: tuple[str, ...], *, owner: str) -> Rule:
    """Rule that allows only these of the model's features; `owner` is the name in the message."""
    return lambda layout, model: _other_features(model, features, owner)


def _other_features(model: ModelShape, known: tuple[str, ...], owner: str) -> Iterator[RuleViolation]:
    for name in model.features:
        if name == "document_length" and name not in known:
            engines = [engine for engine in OWN_ENGINES if name in ENGINE_PROFILES[engine].model_features]
            yield RuleViolation(
                name,
                "trainer.data.attention_mask is block_causal",
                f"with {owner} tokens attend to their whole sequence",
                f"set trainer.data.attention_mask to causal, or use engine {' or '.join(engines)}",
            )
        elif name not in known:
            field = field_of_feature(name)
            yield RuleViolation(
                name,
                f"model.{field} is {_format(getattr(model, field))}",
                f"{owner} builds models without it" + (f"; it builds {', '.join(known)}" if known else ""),
                f"leave model.{field} out, or use another engine",
            )


def activations(gated: tuple[str, ...], plain: tuple[str, ...], *, owner: str | None = None) -> Rule:
    """Rule that allows only these activations of an MLP with a gate, and of one without.

    `owner` is the name in the message, by default the layout's engine.
    """

    def rule(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
        allowed, kind = (gated, "a gate") if model.gated_mlp else (plain, "no gate")
        if model.mlp_activation not in allowed:
            names = " or ".join(allowed)
            yield RuleViolation(
                "activation",
                f"model.activation is {model.mlp_activation}",
                f"{owner or layout.engine} has {names} in an MLP with {kind}",
                f"set model.activation to {names}, or use another engine",
            )

    return rule


def zero_in_pipeline(rule: str) -> Rule:
    """Rule against ZeRO 2 and 3 in a pipeline, for engines that do not support it."""
    return clashes("zero_stage", {"pipeline_parallel": at_least(2)}, rule, values=(2, 3), fix=_ZERO_IN_PIPELINE)


_ZERO_IN_PIPELINE = "set zero_stage to 0 or 1, or pipeline_parallel to 1"


def too_few_micro_batches(layout: Layout, least: int, rule: str) -> Iterator[RuleViolation]:
    """Fewer than `least` micro-batches a step in 1F1B, for engines that need that many."""
    if layout.pipeline_schedule == "1f1b" and layout.grad_accum_steps < least:
        yield RuleViolation(
            "micro_batches",
            f"{layout.grad_accum_steps} micro-batches for {layout.pipeline_parallel} pipeline stages",
            rule,
            "use a smaller micro_batch_size, fewer stages, or the gpipe schedule",
        )


def quantized_products(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """Products of 8 and 4 bits whose inputs are not in 16 bits, or with dimensions that their kernels do not take.

    torch/_meta_registrations.py, _check_scaled_mm_sizes; transformer_engine/pytorch/utils.py, assert_dim_for_fp8_exec.
    torchtitan multiplies linear layers of other dimensions in 16 bits, without an error
    (torchtitan/components/quantization/utils.py, module_filter_fn).
    """
    recipe = recipe_of(layout.matmul_precision, layout.engine)
    if recipe is None:
        return
    if layout.precision == "fp32":
        yield RuleViolation(
            "matmul_precision",
            f"matmul_precision is {layout.matmul_precision} with precision {layout.precision}",
            f"products in {layout.matmul_precision} have inputs and outputs of 16 bits",
            "set precision to bf16, or matmul_precision to same",
        )
    dimensions = _product_dimensions(layout, model, recipe)
    others = [f"{name} {size}" for name, size in dimensions if size % recipe.multiple]
    if others:
        yield RuleViolation(
            "matmul_dimensions",
            f"matmul_precision is {layout.matmul_precision} with {', '.join(others)}",
            f"each dimension of a rank's products in {layout.matmul_precision} is a multiple of {recipe.multiple}",
            "use a smaller tensor_parallel or another shape, or set matmul_precision to same",
        )


def _product_dimensions(layout: Layout, model: ModelShape, recipe: MatmulRecipe) -> Iterator[tuple[str, int]]:
    """Dimensions of a rank's products. Tokens are summed over in those for the weights' gradients."""
    yield "hidden_size", model.hidden_size
    for name, size in (
        ("size of all queries", model.query_size),
        ("size of all queries, keys and values", model.query_size + 2 * model.key_value_size),
        ("ffn_hidden_size", model.ffn_hidden_size),
        ("shared_expert_ffn_hidden_size", model.shared_expert_ffn_hidden_size or 0),
    ):
        yield f"{name} / tensor_parallel", size // layout.tensor_parallel
    if model.num_experts is not None and recipe.has_experts:
        yield "expert width / expert_tensor_parallel", model.expert_width // layout.expert_tensor_parallel
    if not recipe.products_in_16_bits:
        yield "micro_batch_size x seq_length", layout.micro_batch_size * model.seq_length


def even_stages(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """Layers that do not divide over the model chunks, for engines that split them evenly."""
    if not GivenSplit.of(layout).is_own:
        return
    stages, chunks = layout.pipeline_parallel, layout.virtual_pipeline_stages
    if model.num_layers % (stages * chunks):
        yield RuleViolation(
            "layers",
            f"num_layers {model.num_layers} is not a multiple of pipeline_parallel {stages}"
            f" x virtual_pipeline_stages {chunks}",
            f"{layout.engine} splits the layers evenly over all model chunks",
            "use a pipeline_parallel x virtual_pipeline_stages that divides num_layers",
        )


def given_stages(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """Splits that a layout gives, and which do not divide."""
    given = GivenSplit.of(layout)
    if given.is_own:
        return
    stages = {name: getattr(layout, name) for name in ("first_stage_layers", "last_stage_layers")}
    numbers = [f"{name} {value}" for name, value in stages.items() if value is not None]
    if layout.pipeline_split != "own" and numbers:
        yield RuleViolation(
            "pipeline_split",
            f"pipeline_split is {layout.pipeline_split} with {' and '.join(numbers)}",
            "either the embedding and the loss count as layers, or the layers of the first and last stage are given"
            " (megatron/core/transformer/transformer_config.py)",
            "leave pipeline_split out, or first_stage_layers and last_stage_layers",
        )
    elif given.chunk_layers(model.num_layers) is None:
        what = " and ".join(numbers) or f"pipeline_split {layout.pipeline_split}"
        yield RuleViolation(
            "pipeline_split",
            f"num_layers {model.num_layers} with {what} does not divide over pipeline_parallel"
            f" {layout.pipeline_parallel} x virtual_pipeline_stages {layout.virtual_pipeline_stages}",
            "with the embedding and the loss that count as layers, or without the first and last stage that are given,"
            " all chunks have the same number of layers, at least one",
            "use another pipeline_split, or other numbers of layers",
        )


def some_layers_recomputed(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """Recomputed layers as many as a model chunk has, or more: another name of full recomputation."""
    chunks = layout.pipeline_parallel * layout.virtual_pipeline_stages
    if layout.recompute_layers is not None and layout.recompute_layers * chunks >= model.num_layers:
        yield RuleViolation(
            "recompute_layers",
            f"recompute_layers is {layout.recompute_layers} with {model.num_layers / chunks:g} layers a model chunk",
            "recompute_layers is less than num_layers / (pipeline_parallel x virtual_pipeline_stages)",
            "leave recompute_layers out to recompute all layers, or use a smaller number",
        )


def sharded_replicas(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """Replicas that do not divide the data-parallel ranks, or that shard nothing."""
    replicas, data = layout.data_parallel_replicas, layout.data_parallel
    context = layout.context_parallel
    if replicas > 1 and (data % replicas or layout.shards == 1):
        yield RuleViolation(
            "data_parallel_replicas",
            f"data_parallel_replicas is {replicas} with data_parallel {data}"
            + (f" and context_parallel {context}" if context > 1 else ""),
            "each replica shards the model over data_parallel / data_parallel_replicas x context_parallel ranks, whole"
            " numbers, more than 1 rank",
            "use a smaller divisor of data_parallel, or set zero_stage to 0",
        )


half_precision_flash = clashes(
    "attention_kernel",
    {"precision": ("fp32",)},
    "{engine}'s flash attention supports only bf16 and fp16",
    values=("flash",),
    fix="set precision to bf16, or attention_kernel to math",
)
"""Rule of engines whose flash attention has only 16 bits."""

LARGEST_FLASH_HEAD = 256
"""Elements of a head; transformer_engine/pytorch/attention/dot_product_attention/utils.py, get_attention_backend, and
torch's aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_varlen_fwd and mha_varlen_bwd."""


def flash_heads(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """Heads for which flash attention has no kernel, for engines that do not pad them."""
    size = model.head_size
    if layout.attention_kernel == "flash" and (size % 8 or size > LARGEST_FLASH_HEAD):
        yield RuleViolation(
            "flash_head_size",
            f"attention_kernel is flash with a head size of {size}",
            f"{layout.engine}'s flash attention supports head sizes that are multiples of 8, at most"
            f" {LARGEST_FLASH_HEAD}",
            "set attention_kernel to math, or use another number of heads",
        )


# -- DeepSpeed


_OVERLAPS = "DeepSpeed overlaps communication with the backward pass only in ZeRO's reductions, and not in a pipeline"
_HAS_BUCKETS = "DeepSpeed has reduction buckets only with ZeRO stage 1, 2 or 3"
_BF16_OPTIMIZER: Mapping[str, Clash] = {"zero_stage": (1,), "precision": ("bf16",), "offload": ("none",)}
"""Layouts of DeepSpeed's BF16_Optimizer, where gradients are summed in fp32 (runtime/engine.py,
_do_optimizer_sanity_check)."""

bf16_reductions: tuple[Rule, ...] = (
    clashes("overlap_comm", _BF16_OPTIMIZER, f"{_OVERLAPS}; its BF16_Optimizer overlaps nothing"),
    clashes(
        "bucket_mib",
        _BF16_OPTIMIZER,
        "DeepSpeed's BF16_Optimizer reduces gradients after the backward pass in buffers of a fixed size",
        fix="leave bucket_mib out, or set zero_stage to 2",
    ),
)
"""Settings of reductions that DeepSpeed's BF16_Optimizer ignores (runtime/engine.py, _bf16_reduce_grads)."""

overlap_in_pipeline: tuple[Rule, ...] = tuple(
    clashes("overlap_comm", {"pipeline_parallel": at_least(2), "zero_stage": (1,), **other}, _OVERLAPS)
    for other in ({"precision": ("fp32", "fp16")}, {"offload": ("optimizer",)})
)
"""Overlap in a pipeline, where `bf16_reductions` does not refuse it already."""

DEEPSPEED_RULES: tuple[Rule, ...] = (
    allows_only({"pipeline_schedule": ("none", "1f1b")}, owner="DeepSpeed"),
    zero_in_pipeline("DeepSpeed's pipeline engine supports ZeRO stages 0 and 1"),
    clashes("offload", {"zero_stage": (0,)}, "DeepSpeed offloads the optimizer only with ZeRO stage 1, 2 or 3"),
    clashes("overlap_comm", {"zero_stage": (0,)}, _OVERLAPS),
    clashes("bucket_mib", {"zero_stage": (0,)}, _HAS_BUCKETS),
)
"""Rules of every trainer on DeepSpeed."""


# -- torch


def _torch_schedule(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    stages, micro_batches = layout.pipeline_parallel, layout.grad_accum_steps
    yield from too_few_micro_batches(
        layout, stages, "torch's 1F1B needs at least pipeline_parallel micro-batches a step"
    )
    rounds = max(1, micro_batches // stages)
    if layout.pipeline_schedule == "interleaved_1f1b" and micro_batches % rounds:
        yield RuleViolation(
            "rounds",
            f"{micro_batches} micro-batches do not divide into {rounds} rounds over {stages} pipeline stages",
            "torch's interleaved 1F1B splits a step's micro-batches into max(1, micro-batches // stages) equal rounds",
            f"use a micro_batch_size that makes grad_accum_steps a multiple of {stages}",
        )


_FSDP = "torch's FSDP2 (ZeRO 2 and 3) always overlaps block by block, and has no buckets"

TORCH_SCHEDULE_RULES: tuple[Rule, ...] = (_torch_schedule,)
"""Rules of torch's pipelining."""
TORCH_RULES: tuple[Rule, ...] = (
    *TORCH_SCHEDULE_RULES,
    clashes("overlap_comm", {"zero_stage": (2, 3)}, _FSDP),
    clashes("bucket_mib", {"zero_stage": (2, 3)}, _FSDP),
)
"""Rules of torch's pipelining and FSDP2 as Parlay's own engine uses them."""


# -- megatron-core


def _megatron_rounds(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if layout.virtual_pipeline_stages > 1 and layout.grad_accum_steps % layout.pipeline_parallel:
        yield RuleViolation(
            "micro_batches",
            f"{layout.grad_accum_steps} micro-batches for {layout.pipeline_parallel} interleaved pipeline stages",
            f"{layout.engine}'s interleaved 1F1B needs grad_accum_steps to be a multiple of pipeline_parallel",
            "use another micro_batch_size, or virtual_pipeline_stages 1",
        )


def _megatron_modules(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """megatron/core/tensor_parallel/random.py CheckpointFunction: the bias that an MLP returns becomes its output."""
    modules = layout.modules_recomputed
    for module, (needed, lacks) in _MODULE_NEEDS.items():
        if module in modules and lacks(model):
            yield RuleViolation(
                "recomputed_part",
                f"recompute_modules is {layout.recompute_modules}; {module} recomputes nothing without {needed}",
                f"megatron-core recomputes {module} in models with {needed} (megatron/core/transformer)",
                f"take {module} out of recompute_modules",
            )


def _has_no_own_norm(model: ModelShape) -> bool:
    return not model.num_expert_layers and model.key_value_latent_size is None


_MODULE_NEEDS: Mapping[str, tuple[str, Callable[[ModelShape], bool]]] = {
    "layernorm": ("experts or latent attention, whose norms are no part of the product after them", _has_no_own_norm),
    "mla_up_proj": ("latent attention", lambda model: model.key_value_latent_size is None),
    "mlp": ("a layer that has an MLP", lambda model: model.num_expert_layers == model.num_layers),
    "moe": ("experts", lambda model: model.num_experts is None),
    "moe_act": ("experts", lambda model: model.num_experts is None),
    "shared_experts": ("a shared expert", lambda model: model.shared_expert_ffn_hidden_size is None),
}
"""Part of a model that a module recomputes, and a test for models without it."""


def _megatron_experts(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if model.num_experts is None:
        return
    if layout.expert_parallel == 1 and layout.expert_tensor_parallel != layout.tensor_parallel:
        yield RuleViolation(
            "expert_groups",
            f"expert_tensor_parallel is {layout.expert_tensor_parallel} with tensor_parallel {layout.tensor_parallel}"
            " and expert_parallel 1",
            "with expert_parallel 1 megatron-core 0.16 reduces experts' gradients over the data-parallel ranks of other"
            " layers, which have other slices of them (tensor_parallel/layers.py, allreduce)",
            f"set expert_tensor_parallel to {layout.tensor_parallel}, or expert_parallel to 2 or more",
        )
    of_experts = layout.expert_parallel * layout.expert_tensor_parallel
    of_others = layout.tensor_parallel * layout.context_parallel
    if layout.rank_order != "tp-dp-pp" and of_experts != of_others:
        yield RuleViolation(
            "expert_rank_order",
            f"rank_order is {layout.rank_order} with expert_parallel {layout.expert_parallel} x expert_tensor_parallel"
            f" {layout.expert_tensor_parallel} = {of_experts} and tensor_parallel {layout.tensor_parallel} x"
            f" context_parallel {layout.context_parallel} = {of_others}",
            "in an order that does not end in pp, experts have as many data-parallel ranks as other layers"
            " (parallel_state.py, initialize_model_parallel)",
            "set rank_order to tp-dp-pp, or the two products to the same number",
        )


MEGATRON_RULES: tuple[Rule, ...] = (
    even_stages,
    given_stages,
    _megatron_rounds,
    _megatron_modules,
    clashes(
        "bucket_mib",
        {"overlap_comm": (False,)},
        "Megatron reduces gradients in buckets only while it overlaps them (--overlap-grad-reduce)",
    ),
    clashes(
        "recompute_modules",
        {"activation_checkpointing": ("selective",), "precision": ("fp32",)},
        "megatron-core recomputes moe_act where Transformer Engine groups the products of experts, in 16 bits"
        " (transformer/transformer_config.py)",
        values=has_part("moe_act"),
        fix="set precision to bf16, or take moe_act out of recompute_modules",
    ),
    clashes(
        "recompute_modules",
        {"activation_checkpointing": ("selective",), "model.linear_biases": (True,)},
        "megatron-core's backward pass of a recomputed MLP with biases calls itself without end",
        values=has_part("mlp"),
        fix="set recompute_modules to core_attn",
    ),
    some_layers_recomputed,
    half_precision_flash,
    flash_heads,
    clashes(
        "tensor_parallel",
        {"model.num_experts": is_given, "sequence_parallel": (False,)},
        "megatron-core trains experts on several tensor-parallel ranks with sequence parallelism alone"
        " (transformer/moe/moe_layer.py)",
    ),
    clashes(
        "model.experts_per_token",
        {},
        "the softmax over one chosen expert has no gradient, so megatron-core refuses it"
        " (transformer/transformer_config.py)",
        values=(1,),
        fix="use an experts_per_token of 2 or more, or another engine",
    ),
    _megatron_experts,
)
"""Rules of every trainer on megatron-core."""
MEGATRON_SCHEDULES = ("none", "1f1b", "interleaved_1f1b")
