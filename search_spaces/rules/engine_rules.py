"""Rules of the engines: what DeepSpeed, torch and megatron-core support whichever trainer drives them; form of a rule.

Standard library only. DeepSpeed 0.19 deepspeed/runtime/engine.py, runtime/pipe/engine.py and runtime/zero;
torch.distributed.pipelining.schedules and torch.distributed.fsdp; megatron-core 0.16 megatron/core/pipeline_parallel
and megatron/core/distributed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from search_spaces.engines import ENGINE_PROFILES, OWN_ENGINES
from search_spaces.layouts.layout import AXES, Layout
from search_spaces.layouts.matmul_recipes import MatmulRecipe, recipe_of
from search_spaces.layouts.pipeline_split import SPLIT_FIELDS, GivenSplit
from search_spaces.model_shape import MODEL_DEFAULTS, RESOLVED_FIELDS, ModelShape, field_of_feature


class RuleViolation(NamedTuple):
    """A rule that a layout violates: the rule's short name, the finding with its numbers, the rule and the fix."""

    name: str
    message: str
    rule: str
    fix: str


Rule = Callable[[Layout, ModelShape], Iterable[RuleViolation]]
EngineRules = Mapping[str, tuple[Rule, ...]]
"""Rules of each engine of a trainer."""


Clash = Callable[[Any], bool] | tuple[Any, ...]
"""Values of a field that a rule is about: these, or those for which a function is true."""
Clashes = Mapping[str, Clash]


def refused(
    fields: tuple[str, ...],
    where: Callable[..., Any],
    rule: str,
    fix: str,
    *,
    beside: Clashes = MappingProxyType({}),
    name: str = "",
) -> Rule:
    """Rule that refuses layouts whose values of these fields meet a condition, beside these values of others.

    A field of the model is called `model.NAME`; the message has all of them. The rule's short name is by default the
    first field's; `{engine}` in the rule and a field's name in the fix stand for the layout's value.
    """
    tests = [(field, *_reader(field), clash) for field, clash in beside.items()]
    readers = [(field, *_reader(field)) for field in fields]

    def check(layout: Layout, model: ModelShape) -> Iterable[RuleViolation]:
        others = {}
        for field, of_model, read, clash in tests:
            others[field] = value = read(model if of_model else layout)
            if not (clash(value) if callable(clash) else value in clash):
                return ()
        found = {field: read(model if of_model else layout) for field, of_model, read in readers}
        return [_violation(layout, found | others, rule, fix, name)] if where(*found.values()) else ()

    return check


def clashes(name: str, others: Clashes, rule: str, *, values: Clash | None = None, fix: str = "") -> Rule:
    """Rule that a field does not have `values`, by default all but its default, beside these values of all `others`.

    The fix is to change an axis of `others` to a value that does not clash, where it has few, or else the field itself.
    """
    field, default = name.removeprefix("model."), _DEFAULTS[name.removeprefix("model.")]
    wrong = (lambda value: value != default) if values is None else values
    return refused((), lambda: True, rule, fix or _way_out(name, others), beside={name: wrong, **others}, name=field)


def _reader(field: str) -> tuple[bool, Callable[[Any], Any]]:
    """Whether a field is the model's, and its reader; of the model it reads the value that counts."""
    name = field.removeprefix("model.")
    return name != field, attrgetter(RESOLVED_FIELDS.get(name, name) if name != field else name)


def _violation(layout: Layout, found: Mapping[str, Any], rule: str, fix: str, name: str = "") -> RuleViolation:
    named = {field.removeprefix("model."): value for field, value in found.items()}
    rule = rule.replace("{engine}", layout.engine)
    return RuleViolation(name or next(iter(named)), finding(found), rule, fix.format(**named))


def finding(values: Mapping[str, Any]) -> str:
    """The values of fields as a sentence's part: the first, with the others."""
    (name, value), *others = values.items()
    beside = " and ".join(f"{other} {_format(each)}" for other, each in others)
    return f"{name} is {_format(value)}" + (f" with {beside}" if beside else "")


def allows_only(
    fields: Mapping[str, tuple], of_model: Mapping[str, tuple] | None = None, *, owner: str = "{engine}"
) -> Rule:
    """Rule that allows only these values of the layout's and the model's fields; `owner` is the name in the message."""
    every = {**fields, **{f"model.{name}": values for name, values in (of_model or {}).items()}}
    rows = [(field, *_reader(field), values) for field, values in every.items()]

    def check(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
        for field, of_model, read, values in rows:
            value = read(model if of_model else layout)
            if value not in values:
                choice = _choice(field, values)
                sentence = f"{owner} supports {field} {choice}"
                yield _violation(layout, {field: value}, sentence, f"set {field} to {choice}")

    return check


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
    return AXES[name].choice_of(values) if is_joined else " or ".join(map(_format, values))


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


def activations(gated: tuple[str, ...], plain: tuple[str, ...], *, owner: str = "{engine}") -> Rule:
    """Rule that allows only these activations of an MLP with a gate, and of one without; `owner` is the name in the
    message."""
    return refused(
        ("model.activation", "model.gated_mlp"),
        lambda activation, is_gated: activation not in (gated if is_gated else plain),
        f"{owner} has {' or '.join(gated)} in an MLP with a gate, {' or '.join(plain)} in one without",
        "use another model.activation, or another engine",
    )


def zero_in_pipeline(rule: str) -> Rule:
    """Rule against ZeRO 2 and 3 in a pipeline, for engines that do not support it."""
    return clashes("zero_stage", {"pipeline_parallel": at_least(2)}, rule, values=(2, 3), fix=_ZERO_IN_PIPELINE)


_ZERO_IN_PIPELINE = "set zero_stage to 0 or 1, or pipeline_parallel to 1"


def too_few_micro_batches(fewer: int, rule: str) -> Rule:
    """Rule that a step in 1F1B has as many micro-batches as stages, or `fewer`."""
    return refused(
        ("grad_accum_steps", "pipeline_parallel"),
        lambda steps, stages: steps < stages - fewer,
        rule,
        "use a smaller micro_batch_size, fewer stages, or the gpipe schedule",
        beside={"pipeline_schedule": ("1f1b",)},
        name="micro_batches",
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
    yield from _QUANTIZED_FP32(layout, model)
    dimensions = _product_dimensions(layout, model, recipe)
    others = {name: size for name, size in dimensions if size % recipe.multiple}
    if others:
        yield RuleViolation(
            "matmul_dimensions",
            finding({"matmul_precision": layout.matmul_precision, **others}),
            f"each dimension of a rank's products in {layout.matmul_precision} is a multiple of {recipe.multiple}",
            "use a smaller tensor_parallel or another shape, or set matmul_precision to same",
        )


_QUANTIZED_FP32 = clashes(
    "matmul_precision",
    {"precision": ("fp32",)},
    "products in 8 and 4 bits have inputs and outputs of 16 bits",
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


_SPLIT = ("model.num_layers", "pipeline_parallel", "virtual_pipeline_stages", *SPLIT_FIELDS)
even_stages = refused(
    _SPLIT,
    lambda layers, stages, chunks, *split: GivenSplit(stages, chunks, *split).is_own and layers % (stages * chunks),
    "{engine} splits the layers evenly over all model chunks",
    "use a pipeline_parallel x virtual_pipeline_stages that divides num_layers, or give another split",
    name="layers",
)
"""Layers that do not divide over the model chunks, for engines that split them evenly."""


def _undivided(layers: int, stages: int, chunks: int, *split: Any) -> bool:
    given = GivenSplit(stages, chunks, *split)
    is_one = given.split == "own" or given.gives_no_stage
    return is_one and not given.is_own and given.chunk_layers(layers) is None


given_stages: tuple[Rule, ...] = (
    refused(
        SPLIT_FIELDS,
        lambda split, first, last: split != "own" and (first is not None or last is not None),
        "either the embedding and the loss count as layers, or the layers of the first and last stage are given"
        " (megatron/core/transformer/transformer_config.py)",
        "leave pipeline_split out, or first_stage_layers and last_stage_layers",
    ),
    refused(
        _SPLIT,
        _undivided,
        "with the embedding and the loss that count as layers, or without the first and last stage that are given, all"
        " chunks have the same number of layers, at least one",
        "use another pipeline_split, or other numbers of layers",
        name="pipeline_split",
    ),
)
"""Splits that a layout gives, and which do not divide."""
some_layers_recomputed = refused(
    ("model.num_layers", "pipeline_parallel", "virtual_pipeline_stages", "recompute_layers"),
    lambda layers, stages, chunks, recomputed: recomputed * stages * chunks >= layers,
    "recompute_layers is less than num_layers / (pipeline_parallel x virtual_pipeline_stages)",
    "leave recompute_layers out to recompute all layers, or use a smaller number",
    beside={"recompute_layers": is_given},
    name="recompute_layers",
)
"""Recomputing every layer of a chunk is full recomputation."""
sharded_replicas = refused(
    ("data_parallel_replicas", "data_parallel", "context_parallel"),
    lambda replicas, data, context: replicas > 1 and (data % replicas or data * context == replicas),
    "each replica shards the model over data_parallel / data_parallel_replicas x context_parallel ranks, whole numbers,"
    " more than 1 rank",
    "use a smaller divisor of data_parallel, or set zero_stage to 0",
)
"""Replicas that do not divide the data-parallel ranks, or that shard nothing."""
half_precision_flash = clashes(
    "attention_kernel",
    {"precision": ("fp32",)},
    "{engine}'s flash attention supports only bf16 and fp16",
    values=("flash",),
)
"""Rule of engines whose flash attention has only 16 bits."""

LARGEST_FLASH_HEAD = 256
"""Elements of a head; transformer_engine/pytorch/attention/dot_product_attention/utils.py, get_attention_backend, and
torch's aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_varlen_fwd and mha_varlen_bwd."""


flash_heads = refused(
    ("model.head_size",),
    lambda size: size % 8 or size > LARGEST_FLASH_HEAD,
    f"{{engine}}'s flash attention supports head sizes that are multiples of 8, at most {LARGEST_FLASH_HEAD}",
    "set attention_kernel to math, or use another number of heads",
    beside={"attention_kernel": ("flash",)},
    name="flash_head_size",
)
"""Heads for which flash attention has no kernel, for engines that do not pad them."""


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


_FSDP = "torch's FSDP2 (ZeRO 2 and 3) always overlaps block by block, and has no buckets"

TORCH_SCHEDULE_RULES: tuple[Rule, ...] = (
    too_few_micro_batches(0, "torch's 1F1B needs at least pipeline_parallel micro-batches a step"),
    refused(
        ("grad_accum_steps", "pipeline_parallel"),
        lambda steps, stages: steps % max(1, steps // stages),
        "torch's interleaved 1F1B splits a step's micro-batches into max(1, micro-batches // stages) equal rounds",
        "use a micro_batch_size that makes grad_accum_steps a multiple of {pipeline_parallel}",
        beside={"pipeline_schedule": ("interleaved_1f1b",)},
        name="rounds",
    ),
)
"""Rules of torch's pipelining."""
TORCH_RULES: tuple[Rule, ...] = (
    *TORCH_SCHEDULE_RULES,
    clashes("overlap_comm", {"zero_stage": (2, 3)}, _FSDP),
    clashes("bucket_mib", {"zero_stage": (2, 3)}, _FSDP),
)
"""Rules of torch's pipelining and FSDP2 as Parlay's own engine uses them."""


# -- megatron-core


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


def _megatron_modules(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """Recomputed modules that a model does not have."""
    for module in layout.modules_recomputed:
        needed, lacks = _MODULE_NEEDS.get(module, ("", lambda model: False))
        if lacks(model):
            yield RuleViolation(
                "recomputed_part",
                f"recompute_modules is {layout.recompute_modules}; {module} recomputes nothing without {needed}",
                f"megatron-core recomputes {module} in models with {needed} (megatron/core/transformer)",
                f"take {module} out of recompute_modules",
            )


MEGATRON_RULES: tuple[Rule, ...] = (
    even_stages,
    *given_stages,
    refused(
        ("grad_accum_steps", "pipeline_parallel"),
        lambda steps, stages: steps % stages,
        "{engine}'s interleaved 1F1B needs grad_accum_steps to be a multiple of pipeline_parallel",
        "use another micro_batch_size, or virtual_pipeline_stages 1",
        beside={"virtual_pipeline_stages": at_least(2)},
        name="micro_batches",
    ),
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
        "megatron-core's backward pass of a recomputed MLP with biases, which becomes its output, calls itself without"
        " end (megatron/core/tensor_parallel/random.py, CheckpointFunction)",
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
    refused(
        ("engine", "model.aux_loss_coefficient"),
        lambda engine, loss: engine != "megatron-lm" or loss is not None,
        "the softmax over one chosen expert has no gradient, so megatron-core refuses it"
        " (transformer/transformer_config.py); Megatron-LM chooses one by sinkhorn, without aux_loss_coefficient",
        "use an experts_per_token of 2 or more, or another engine",
        beside={"model.experts_per_token": (1,)},
        name="experts_per_token",
    ),
    refused(
        ("expert_tensor_parallel", "tensor_parallel"),
        lambda split, tensor: split != tensor,
        "with expert_parallel 1 megatron-core 0.16 reduces experts' gradients over the data-parallel ranks of other"
        " layers, which have other slices of them (tensor_parallel/layers.py, allreduce)",
        "set expert_tensor_parallel to {tensor_parallel}, or expert_parallel to 2 or more",
        beside={"model.num_experts": is_given, "expert_parallel": (1,)},
        name="expert_groups",
    ),
    refused(
        ("expert_parallel", "expert_tensor_parallel", "tensor_parallel", "context_parallel"),
        lambda ranks, split, tensor, context: ranks * split != tensor * context,
        "in an order that does not end in pp, experts have as many data-parallel ranks as other layers:"
        " expert_parallel x expert_tensor_parallel is tensor_parallel x context_parallel (parallel_state.py,"
        " initialize_model_parallel)",
        "set rank_order to tp-dp-pp, or the two products to the same number",
        beside={"model.num_experts": is_given, "rank_order": lambda order: order != "tp-dp-pp"},
        name="expert_rank_order",
    ),
)
"""Rules of every trainer on megatron-core."""
MEGATRON_SCHEDULES = ("none", "1f1b", "interleaved_1f1b")
