"""Layout: one parallel layout of a training, its canonical form and its key. Standard library only.

Each field is declared once, with its axis: checks, key, canonical form, keys of the search file, columns of tables and
labels follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from math import prod
from operator import attrgetter
from typing import Any

from search_spaces.engines import ACCELERATE, ACCELERATE_LAUNCH, ENGINES, MEGATRON_CORE, OWN_ENGINES, TORCHTITAN
from search_spaces.errors import InputError, did_you_mean, format_value
from search_spaces.layouts.axis import Axis, Kind, Values, axis_field
from search_spaces.layouts.matmul_recipes import MATMUL_RECIPES, TORCHAO_RECIPES, TRANSFORMER_ENGINE_RECIPES
from search_spaces.layouts.mesh import RankMesh
from search_spaces.layouts.settings import Settings, settings_of

# DeepSpeed offloads with ZeRO only; the torch engine with one data-parallel rank does the same at every stage.
_ONE_COPY = {"data_parallel": 1, "context_parallel": 1}
_NOTHING_TO_SHARD = (_ONE_COPY | {"offload": "none"}, _ONE_COPY | {"engine": "torch"})
_NO_FULL_RECOMPUTATION = ({"activation_checkpointing": "none"}, {"activation_checkpointing": "selective"})
V_SCHEDULES = ("zbv", "dualpipev")
"""Schedules whose ranks have two model chunks each: the first ones in the order of the ranks, then back."""
RECOMPUTED_MODULES = ("layernorm", "mla_up_proj", "core_attn", "mlp", "moe", "moe_act", "shared_experts")
"""Megatron's names of what selective recomputation recomputes, in the order of a layer's forward pass."""
FUSED_DISPATCHERS = ("deepep", "hybridep")
"""Dispatchers whose kernels send a token once to each rank with experts of it."""
INNER_CONTEXT = 2
"""Context-parallel ranks of an inner group with context_transport a2a_p2p, unless an option says otherwise."""
CAPTURED_MODULES = ("attn", "mlp", "moe_router", "moe_preprocess")
"""Megatron's names of the parts of a layer that a CUDA graph captures, in the order of a layer's forward pass."""
_NO_SELECTIVE_RECOMPUTATION = ({"activation_checkpointing": "none"}, {"activation_checkpointing": "full"})
_OF_TORCHTITAN = (TORCHTITAN,)
_NO_PIPELINE = ({"pipeline_parallel": 1},)
_SPLIT_BY_LAYOUT = (MEGATRON_CORE, TORCHTITAN, "megatron-lm", "command")
_TRANSFORMER_ENGINE = ("megatron-lm", "command")
_OF_BOTH = [word for word in TORCHAO_RECIPES if word in TRANSFORMER_ENGINE_RECIPES]
_PARTIAL_RECOMPUTATION = (MEGATRON_CORE, "megatron-lm", "command")
_SCHEDULES: tuple[tuple[str, Values], ...] = (
    *((schedule, {"pipeline_schedule": schedule}) for schedule in V_SCHEDULES),
    ("gpipe", {"virtual_pipeline_stages": 1, "pipeline_schedule": "gpipe"}),
    ("1f1b", {"virtual_pipeline_stages": 1}),
    ("interleaved_1f1b", {}),
)


class DerivedNumbers:
    """Numbers that follow from a layout's fields. Those of a table of layouts are columns."""

    @property
    def num_gpus(self: Any) -> Any:
        """World size in ranks."""
        return prod(getattr(self, name) for name in DIMENSIONS.values())

    def mesh_in(self, order: str) -> RankMesh:
        """Numbering of the ranks in this order of the dimensions."""
        return layout_mesh({name: getattr(self, name) for name in DIMENSIONS.values()}, order)

    @property
    def global_batch_size(self: Any) -> Any:
        """Sequences per optimizer step over all data-parallel ranks."""
        return self.micro_batch_size * self.grad_accum_steps * self.data_parallel

    @property
    def shards(self: Any) -> Any:
        """Ranks over which ZeRO shards: the data- and context-parallel ranks of one replica."""
        return self.data_parallel * self.context_parallel // self.data_parallel_replicas

    @property
    def ranks_of_expert_layer(self: Any) -> Any:
        """Ranks that together hold the experts of a layer."""
        return self.expert_parallel * self.expert_tensor_parallel

    @property
    def ranks_of_stage(self: Any) -> Any:
        """Ranks of a pipeline stage in one replica."""
        return self.num_gpus // self.pipeline_parallel // self.data_parallel_replicas

    @property
    def expert_shards(self: Any) -> Any:
        """Ranks over which ZeRO shards an expert: those of one replica that hold the same experts."""
        return self.ranks_of_stage // self.ranks_of_expert_layer


@dataclass(frozen=True)
class Layout(DerivedNumbers):
    """One parallel layout, with the settings that a search varies beside it.

    A new field comes last but for `settings`: the key of a layout in which it has its default stays as it was.
    """

    num_nodes: int = axis_field(
        1,
        key="n",
        label="nodes",
        description="Number of nodes.",
        default_text="the whole cluster",
    )
    tensor_parallel: int = axis_field(
        1, kind=Kind.DEGREE, key="tp", label="tensor", description="Tensor-parallel ranks, which split every layer."
    )
    pipeline_parallel: int = axis_field(1, kind=Kind.DEGREE, key="pp", label="pipeline", description="Pipeline stages.")
    data_parallel: int = axis_field(
        1,
        kind=Kind.DEGREE,
        key="dp",
        label="data",
        description="Data-parallel ranks. Derived from the world size, never searched.",
        is_derived=True,
    )
    micro_batch_size: int = axis_field(1, key="mb", label="micro-batch", description="Sequences in a micro-batch.")
    grad_accum_steps: int = axis_field(
        1,
        key="ga",
        label="accumulation",
        description="Micro-batches per step and data-parallel rank.",
        default_text="derived from global_batch_size. As an axis it varies the global batch, and only layouts of"
        " global_batch_size compete to be the best",
        is_derived=True,
    )
    zero_stage: int = axis_field(
        0,
        key="z",
        label="ZeRO",
        description="ZeRO stage: what data-parallel ranks shard.",
        least=0,
        most=3,
        no_effect=_NOTHING_TO_SHARD,
    )
    offload: str = axis_field(
        "none",
        key="off-",
        label="offload",
        description="State kept in host memory.",
        words=("none", "optimizer"),
    )
    activation_checkpointing: str = axis_field(
        "none",
        key="ck-",
        label="recomputation",
        description="Recomputation in the backward pass to save memory.",
        words=("none", "selective", "full"),
    )
    sequence_parallel: bool = axis_field(
        False,
        key="sp",
        label="sequence parallel",
        description="Split norms and dropout over the tensor-parallel ranks.",
        no_effect=({"tensor_parallel": 1},),
    )
    virtual_pipeline_stages: int = axis_field(
        1,
        key="vp",
        label="chunks a stage",
        description="Model chunks per pipeline rank; more than 1 is interleaved.",
        no_effect=({"pipeline_parallel": 1},),
    )
    pipeline_schedule: str = axis_field(
        "none",
        key="",
        label="schedule",
        description="Order of forward and backward passes.",
        words=("none", "gpipe", "1f1b", "interleaved_1f1b", *V_SCHEDULES),
        engines_of_word=dict.fromkeys(V_SCHEDULES, _OF_TORCHTITAN),
        default_text="1f1b, none with one stage",
        no_effect=({"pipeline_parallel": 1},),
        implied=_SCHEDULES,
    )
    precision: str = axis_field(
        "fp32",
        key="",
        label="precision",
        description="Arithmetic.",
        words=("fp32", "bf16", "fp16"),
    )
    attention_kernel: str = axis_field(
        "math",
        key="",
        label="attention",
        description="Attention implementation.",
        words=("math", "flash", "flex"),
        engines_of_word={"flex": _OF_TORCHTITAN},
    )
    engine: str = axis_field(
        "torch",
        key="",
        label="engine",
        description=f"Engine: {', '.join(reversed(OWN_ENGINES))} with Parlay's trainer, else that of trainer.kind.",
        words=ENGINES,
        default_text="torch, or that of trainer.kind",
    )
    torch_compile: bool = axis_field(
        False,
        key="c",
        label="compiled",
        description="Compile the layers with torch.compile.",
        engines=(*OWN_ENGINES, ACCELERATE_LAUNCH, "command"),
    )
    rank_order: str = axis_field(
        "tp-dp-pp",
        key="ro-",
        label="rank order",
        description="Order of the parallel dimensions over the ranks, innermost first.",
        words=("tp-dp-pp", "tp-pp-dp"),
        no_effect=({"data_parallel": 1}, {"pipeline_parallel": 1}),
        engines=(*OWN_ENGINES, "megatron-lm", "command"),
    )
    overlap_comm: bool = axis_field(
        False,
        key="ov",
        label="overlap",
        description="Overlap gradient reductions with the backward pass.",
        no_effect=_NOTHING_TO_SHARD,
    )
    bucket_mib: int | None = axis_field(
        None,
        key="bk",
        label="bucket",
        unit="MiB",
        description="Size of a gradient bucket in MiB; null is the engine's default.",
        no_effect=_NOTHING_TO_SHARD,
    )
    recompute_layers: int | None = axis_field(
        None,
        key="rl",
        label="recomputed layers",
        description="Layers of each model chunk that full recomputation recomputes; null is all of them.",
        no_effect=_NO_FULL_RECOMPUTATION,
        engines=(*_PARTIAL_RECOMPUTATION, TORCHTITAN),
    )
    recompute_modules: str = axis_field(
        "core_attn",
        key="rm-",
        label="recomputed modules",
        description="Modules of every layer that selective recomputation recomputes, several joined by +.",
        words=("ops",),
        parts=RECOMPUTED_MODULES,
        engines_of_word={"ops": _OF_TORCHTITAN},
        default_text="core_attn, ops with engine torchtitan",
        no_effect=_NO_SELECTIVE_RECOMPUTATION,
        implied=(("ops", {"engine": TORCHTITAN, "recompute_modules": "core_attn"}),),
        engines=(*_PARTIAL_RECOMPUTATION, TORCHTITAN),
    )
    data_parallel_replicas: int = axis_field(
        1,
        key="dr",
        label="replicas",
        description="Groups of data-parallel ranks that each hold the whole model; ZeRO shards within a group.",
        no_effect=({"zero_stage": 0}, {"data_parallel": 1}),
        engines=(ACCELERATE, ACCELERATE_LAUNCH, TORCHTITAN, "megatron-lm"),
    )
    tensor_parallel_overlap: bool = axis_field(
        False,
        key="to",
        label="tensor overlap",
        description="Overlap tensor-parallel collectives with the matrix multiplications that need them.",
        no_effect=({"tensor_parallel": 1},),
        engines=(TORCHTITAN, "megatron-lm"),
    )
    matmul_precision: str = axis_field(
        "same",
        key="mm-",
        label="matmul precision",
        description="Arithmetic of the linear layers: that of precision, or 8 or 4 bits by a recipe of torchao or of"
        " Transformer Engine.",
        words=("same", *MATMUL_RECIPES),
        engines=(TORCHTITAN, ACCELERATE_LAUNCH, "megatron-lm", "command"),
        engines_of_word={
            **dict.fromkeys(TORCHAO_RECIPES, (TORCHTITAN, "command")),
            **dict.fromkeys(TRANSFORMER_ENGINE_RECIPES, ("megatron-lm", "command")),
            **dict.fromkeys(_OF_BOTH, (TORCHTITAN, "megatron-lm", "command")),
            "fp8_delayed": (ACCELERATE_LAUNCH, "megatron-lm", "command"),
        },
    )
    expert_parallel: int = axis_field(
        1,
        key="ep",
        label="expert",
        description="Ranks that share the experts of a layer; they are tensor- and data-parallel ranks elsewhere.",
        engines=(MEGATRON_CORE, TORCHTITAN, "megatron-lm", "command"),
    )
    expert_tensor_parallel: int = axis_field(
        1,
        key="etp",
        label="expert tensor",
        description="Ranks that split every expert, as tensor_parallel does other layers.",
        engines=(*OWN_ENGINES, "megatron-lm", "command"),
    )
    quantized_weights: bool = axis_field(
        False,
        key="qw",
        label="quantized weights",
        description="Keep weights in the arithmetic of matmul_precision, and gather them so.",
        no_effect=({"matmul_precision": "same"},),
        engines=_TRANSFORMER_ENGINE,
    )
    gradients_in_bf16: bool = axis_field(
        False,
        key="g16-",
        label="bf16 gradients",
        description="Add up and reduce gradients in bf16 instead of fp32.",
        engines=_TRANSFORMER_ENGINE,
    )
    moment_dtype: str = axis_field(
        "fp32",
        key="mo-",
        label="moments",
        description="Type of Adam's two moments.",
        words=("fp32", "bf16", "fp8"),
        engines=_TRANSFORMER_ENGINE,
    )
    pipeline_split: str = axis_field(
        "own",
        key="ps-",
        label="pipeline split",
        description="Split of layers over model chunks: the engine's, even, or even with these counted as layers.",
        words=("own", "even"),
        parts=("embedding", "loss"),
        no_effect=_NO_PIPELINE,
        implied=tuple(("own", {"engine": name, "pipeline_split": "even"}) for name in (MEGATRON_CORE, "megatron-lm")),
        engines=_SPLIT_BY_LAYOUT,
    )
    first_stage_layers: int | None = axis_field(
        None,
        key="fl",
        label="first stage's layers",
        description="Layers of the first pipeline stage; null is as many as the others.",
        no_effect=_NO_PIPELINE,
        engines=_SPLIT_BY_LAYOUT,
    )
    last_stage_layers: int | None = axis_field(
        None,
        key="ll",
        label="last stage's layers",
        description="Layers of the last pipeline stage; null is as many as the others.",
        no_effect=_NO_PIPELINE,
        engines=_SPLIT_BY_LAYOUT,
    )
    context_parallel: int = axis_field(
        1,
        key="cp",
        label="context",
        description="Ranks that split every sequence; parameters are sharded over them and the data-parallel ranks.",
        engines=(TORCHTITAN, *_TRANSFORMER_ENGINE),
    )
    context_transport: str = axis_field(
        "p2p",
        key="ct-",
        label="context transport",
        description="Exchange of keys and values, or heads, between context-parallel ranks: in a ring, gathered, by"
        " all-to-alls, or by all-to-alls of inner groups in a ring.",
        words=("p2p", "all_gather", "a2a", "a2a_p2p"),
        engines_of_word=dict.fromkeys(("a2a", "a2a_p2p"), _TRANSFORMER_ENGINE),
        default_text="p2p, all_gather with engine torchtitan",
        no_effect=({"context_parallel": 1},),
        implied=(("all_gather", {"engine": TORCHTITAN, "context_transport": "p2p"}),),
        engines=(TORCHTITAN, *_TRANSFORMER_ENGINE),
    )
    expert_dispatcher: str = axis_field(
        "alltoall",
        key="ed-",
        label="expert dispatcher",
        description="How tokens reach their experts' ranks: a copy for each expert by all-to-alls, all tokens gathered,"
        " or a copy for each rank by DeepEP or HybridEP.",
        words=("alltoall", "allgather", *FUSED_DISPATCHERS),
        no_effect=({"expert_parallel": 1},),
        engines=(MEGATRON_CORE, *_TRANSFORMER_ENGINE),
        engines_of_word=dict.fromkeys(FUSED_DISPATCHERS, _TRANSFORMER_ENGINE),
    )
    cuda_graphs: str = axis_field(
        "none",
        key="cg-",
        label="CUDA graphs",
        description="What CUDA graphs capture: parts of every layer, several joined by +, or all forward and backward"
        " passes of a step.",
        words=("none", "full_iteration"),
        parts=CAPTURED_MODULES,
        engines=_TRANSFORMER_ENGINE,
    )
    settings: str = axis_field(
        "",
        kind=Kind.SETTINGS,
        key="",
        label="settings",
        description="Environment variables, launch options and trainer's options that the search varies, as text"
        " (settings.py).",
    )

    def __post_init__(self) -> None:
        for name, least, most in _BOUNDS:
            value = getattr(self, name)
            if (type(value) is not int or not least <= value <= most) and not (value is None and name in NULLABLE):
                raise _bad(name, value, f"a whole number from {least} to {most}")
        for name in SWITCHES:
            if type(getattr(self, name)) is not bool:
                raise _bad(name, getattr(self, name), "true or false")
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise _bad(name, getattr(self, name), "one of " + AXES[name].choice_of(known, last=", "))
        _require_settings(self.settings)

    @property
    def of_trial(self) -> Settings:
        """Environment variables, launch options and trainer's options of a trial of it."""
        return settings_of(self.settings)

    @property
    def without_settings(self) -> Layout:
        """The layout alone."""
        return replace(self, settings="") if self.settings else self

    def with_software(self, software: Mapping[str, str]) -> Layout:
        """The layout with this software; with none, that of the search."""
        settings = self.of_trial
        return replace(self, settings=replace(settings, software=software).text)

    @property
    def axis_values(self) -> dict[str, Any]:
        """Values by axis, those of the settings each by its own name."""
        return {name: value for name, value in self.to_json().items() if name != SETTINGS} | self.of_trial.by_axis

    def has_effect(self, name: str) -> bool:
        """False for a field that has its default whatever is asked for, as ZeRO with nothing to shard."""
        return not any(all(getattr(self, n) == v for n, v in when.items()) for when in AXES[name].no_effect)

    @property
    def mesh(self) -> RankMesh:
        """Numbering of the ranks."""
        return self.mesh_in(self.rank_order)

    @property
    def shape(self) -> str:
        """The degrees as text: `tensor 2 x pipeline 1 x data 4`."""
        names = (*DEGREES.values(), *(name for name in OTHER_DEGREES.values() if getattr(self, name) > 1))
        return " x ".join(f"{AXES[name].label} {getattr(self, name)}" for name in names)

    def layers_recomputed(self, num_layers: int) -> int:
        """Layers of a model of `num_layers` that the backward pass computes again as a whole."""
        if self.activation_checkpointing != "full":
            return 0
        chunks = self.pipeline_parallel * self.virtual_pipeline_stages
        return num_layers if self.recompute_layers is None else min(num_layers, self.recompute_layers * chunks)

    def copies(self, is_sharded: bool) -> tuple[int, int]:
        """Copies that all ranks together hold of parameters outside experts, and of experts; `is_sharded` where ZeRO
        shards them."""
        whole, of_experts = self.data_parallel * self.context_parallel, self.expert_shards * self.data_parallel_replicas
        return (self.data_parallel_replicas,) * 2 if is_sharded else (whole, of_experts)

    @property
    def splits_experts_as_layers(self) -> bool:
        """True if tensor-parallel ranks hold slices of every expert, so that each data-parallel rank has the model."""
        return self.expert_parallel == 1 and self.expert_tensor_parallel == self.tensor_parallel

    @property
    def head_stage(self) -> int:
        """Pipeline rank of the model's last chunk, which computes the loss."""
        return 0 if self.pipeline_schedule in V_SCHEDULES else self.pipeline_parallel - 1

    @property
    def modules_recomputed(self) -> tuple[str, ...]:
        """Modules of every layer that the backward pass computes again, by Megatron's names."""
        return modules_of(self.recompute_modules) if self.activation_checkpointing == "selective" else ()

    @property
    def modules_captured(self) -> tuple[str, ...]:
        """Parts of every layer that CUDA graphs capture one by one, by Megatron's names."""
        return () if self.cuda_graphs in ("none", "full_iteration") else modules_of(self.cuda_graphs)

    @property
    def captures_experts(self) -> bool:
        """True if CUDA graphs capture experts, too."""
        return self.cuda_graphs == "full_iteration" and self.expert_dispatcher == "hybridep"

    @cached_property
    def key(self) -> str:
        """`layout_key` of the canonical form: layouts with equal keys are one candidate."""
        return ".".join(self.key_parts.values())

    @property
    def key_parts(self) -> dict[str, str]:
        """Parts of the key by field; a later field with its default has none."""
        parts = zip(LAYOUT_FIELDS, map(key_part, LAYOUT_FIELDS, _all_values(self.canonical())), strict=True)
        return {name: part for name, part in parts if part}

    def canonical(self) -> Layout:
        """The same training with every field that has no effect set to its default, and every implied one to the
        implied value."""
        canonical = _canonical_values(_deciding_values(self))
        changed = {name: value for name, value in canonical if getattr(self, name) != value}
        return replace(self, **changed) if changed else self

    def to_json(self) -> dict[str, Any]:
        """All fields in the contract's order."""
        return dict(zip(LAYOUT_FIELDS, _all_values(self), strict=True))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Layout:
        """The inverse of `to_json`; absent fields take their defaults, unknown ones raise InputError."""
        if not isinstance(data, Mapping):
            raise ValueError(f"a layout is {data!r:.80}, not an object")
        unknown = sorted(set(data) - set(LAYOUT_FIELDS))
        if unknown:
            raise InputError.of(
                "unknown_key",
                f"unknown layout field {unknown[0]!r}",
                key=unknown[0],
                rule="a layout has the fields " + ", ".join(LAYOUT_FIELDS),
                fix=did_you_mean(unknown[0], LAYOUT_FIELDS) or "take it out",
            )
        return cls(**data)


AXES: Mapping[str, Axis] = {f.name: f.metadata["axis"] for f in fields(Layout)}
"""Every field's axis, in the contract's order."""
LAYOUT_FIELDS = tuple(AXES)
IN_EVERY_KEY = LAYOUT_FIELDS[: LAYOUT_FIELDS.index("torch_compile") + 1]
"""Fields that every key names; later ones where they differ from their default."""
DEGREES = {axis.key: name for name, axis in AXES.items() if axis.kind is Kind.DEGREE}
"""Dimensions of every layout's mesh, each with the layout field that is its size."""
OTHER_DEGREES = {"cp": "context_parallel"}
"""Dimensions that some layouts have."""
DIMENSIONS = {**DEGREES, **OTHER_DEGREES}
DERIVED = tuple(name for name, axis in AXES.items() if axis.is_derived)
"""Fields that follow from the world size or the global batch, unless accumulation is an axis."""
EXPERT_GROUPS = ("expert_parallel", "expert_tensor_parallel")
"""Sizes of the groups that hold the experts of a layer together."""
MODEL_DEGREES = tuple(name for name in DEGREES.values() if name not in DERIVED)
"""Degrees that a search gives; data parallelism takes the other ranks."""
SETTINGS = "settings"
"""Field of the settings; the last one, since its text may have the points that separate the parts of a key."""
SEARCHED = tuple(name for name in LAYOUT_FIELDS if name not in (DEGREES["dp"], SETTINGS))
"""Fields that a search file may give."""
NULLABLE = tuple(name for name, axis in AXES.items() if axis.default is None)
"""Numbers that may be null."""
SWITCHES = tuple(name for name, axis in AXES.items() if axis.kind is Kind.SWITCH)
CHOICES: Mapping[str, tuple[str, ...]] = {name: axis.words for name, axis in AXES.items() if axis.kind is Kind.WORD}
"""Words of the enumerated fields."""
CANONICAL = {name: axis.canonical_values for name, axis in AXES.items() if axis.canonical_values}
"""Canonical values of the fields that have some, each with its condition; the first that holds counts."""

WORLD_RULE = (
    f"num_nodes x gpus_per_node = {' x '.join((*DEGREES.values(), *OTHER_DEGREES.values()))}, all whole numbers;"
    " num_nodes is at most that of the cluster"
)
BATCH_RULE = "global_batch_size = micro_batch_size x grad_accum_steps x data_parallel, all whole numbers"

_BOUNDS = tuple((name, axis.least, axis.most) for name, axis in AXES.items() if axis.is_number)
_DECIDING = tuple(dict.fromkeys(name for cases in CANONICAL.values() for _, when in cases for name in when))
"""Fields on which canonical values depend."""
_deciding_values = attrgetter(*_DECIDING)
_all_values = attrgetter(*LAYOUT_FIELDS)


@cache
def _canonical_values(deciding: tuple[Any, ...]) -> tuple[tuple[str, Any], ...]:
    """Fields and canonical values of the layouts with these values of `_DECIDING`."""
    given = dict(zip(_DECIDING, deciding, strict=True)).items()
    holding = {name: [value for value, when in cases if when.items() <= given] for name, cases in CANONICAL.items()}
    return tuple((name, values[0]) for name, values in holding.items() if values)


@cache
def key_part(name: str, value: Any) -> str:
    """Part of a canonical layout's key that a field's value is; empty for a later field with its default."""
    axis = AXES[name]
    return "" if name not in IN_EVERY_KEY and value == axis.default else axis.key_part(value)


def _require_settings(text: Any) -> None:
    """InputError unless it is the canonical text of settings."""
    try:
        settings_of(text if isinstance(text, str) else repr(text))
    except ValueError as error:
        raise _bad(SETTINGS, text, str(error)) from None


def axis_of(name: str) -> Axis:
    """Axis of a field, or of a variable or launch option by its name in `axis_values`."""
    if name in AXES:
        return AXES[name]
    _, _, label = name.partition(".")
    return Axis(None, key="", label=label, description="", kind=Kind.WORD)


def _bad(name: str, value: Any, rule: str) -> InputError:
    return InputError.of("layout_field", f"{name} is {format_value(value)}", key=name, value=value, rule=rule)


def modules_of(word: str) -> tuple[str, ...]:
    """Megatron's names of the modules that a word of `recompute_modules` or `cuda_graphs` joins."""
    return tuple(word.split("+"))


def layout_mesh(fields: Mapping[str, Any], order: str = AXES["rank_order"].default) -> RankMesh:
    """Mesh of a layout's fields, numbers or columns. A degree that is missing has its default; a derived one is None,
    and is not to be used.

    Context-parallel ranks are next to the tensor-parallel ones, as in megatron/core/parallel_state.py and
    torchtitan/distributed/parallel_dims.py.
    """
    defaults = {name: None if name in DERIVED else AXES[name].default for name in DIMENSIONS.values()}
    sizes = {dim: fields.get(name, defaults[name]) for dim, name in DIMENSIONS.items()}
    return RankMesh.ordered(order.replace("tp-", "tp-cp-"), sizes)
