"""Layout: one parallel layout of a training, its canonical form and its key. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any

from search_spaces.engines import ENGINES
from search_spaces.errors import InputError, did_you_mean, format_value
from search_spaces.layouts.mesh import DEGREES, RankMesh

OFFLOADS = ("none", "optimizer")
ACTIVATION_CHECKPOINTINGS = ("none", "selective", "full")
PIPELINE_SCHEDULES = ("none", "gpipe", "1f1b", "interleaved_1f1b")
PRECISIONS = ("fp32", "bf16", "fp16")
ATTENTION_KERNELS = ("math", "flash")
RANK_ORDERS = ("tp-dp-pp", "tp-pp-dp")

WORLD_RULE = (
    "num_nodes x gpus_per_node = tensor_parallel x pipeline_parallel x data_parallel, all whole numbers;"
    " num_nodes is at most that of the cluster"
)
BATCH_RULE = "global_batch_size = micro_batch_size x grad_accum_steps x data_parallel, all whole numbers"


@dataclass(frozen=True)
class Layout:
    """The layout fields of docs/contract.md, in its order.

    `data_parallel` is derived from the world size, never searched. `micro_batch_size` counts sequences;
    `grad_accum_steps` counts micro-batches per step and data-parallel rank; `virtual_pipeline_stages` counts model
    chunks per pipeline rank. `rank_order` reads innermost first. `bucket_mib` None is the engine's default.
    """

    num_nodes: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    """Derived from the world size, never an axis."""
    micro_batch_size: int = 1
    """Sequences."""
    grad_accum_steps: int = 1
    """Micro-batches a step and data-parallel rank. Derived unless it is an axis."""
    zero_stage: int = 0
    """0 to 3."""
    offload: str = "none"
    """none or optimizer."""
    activation_checkpointing: str = "none"
    """none, selective or full."""
    sequence_parallel: bool = False
    virtual_pipeline_stages: int = 1
    """Model chunks of a pipeline rank, at least 1."""
    pipeline_schedule: str = "none"
    """none, gpipe, 1f1b or interleaved_1f1b."""
    precision: str = "fp32"
    """fp32, bf16 or fp16. An axis only where the search lists it."""
    attention_kernel: str = "math"
    """math or flash. `fused-softmax` of tables is read as math."""
    engine: str = "torch"
    """deepspeed or torch; of another trainer its `trainer.kind`."""
    torch_compile: bool = False
    rank_order: str = "tp-dp-pp"
    """Innermost first: tp-dp-pp or tp-pp-dp."""
    overlap_comm: bool = False
    bucket_mib: int | None = None
    """Null: the engine's default."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            _require_count(name, getattr(self, name))
        for name in SWITCHES:
            _require_bool(name, getattr(self, name))
        for name, known in CHOICES.items():
            _require_choice(name, getattr(self, name), known)
        if type(self.zero_stage) is not int or not 0 <= self.zero_stage <= 3:
            raise _bad("zero_stage", self.zero_stage, "a ZeRO stage is 0, 1, 2 or 3")
        if self.bucket_mib is not None:
            _require_count("bucket_mib", self.bucket_mib)

    @property
    def mesh(self) -> RankMesh:
        """Numbering of the ranks."""
        return _mesh(self.rank_order, _degrees(self))

    @property
    def num_gpus(self) -> int:
        """World size in ranks."""
        return self.mesh.world_size

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step over all data-parallel ranks."""
        return self.micro_batch_size * self.grad_accum_steps * self.data_parallel

    @cached_property
    def key(self) -> str:
        """`layout_key` of the canonical form: layouts with equal keys are one candidate."""
        c = self.canonical()
        parts = [
            f"n{c.num_nodes}",
            f"tp{c.tensor_parallel}",
            f"pp{c.pipeline_parallel}",
            f"dp{c.data_parallel}",
            f"mb{c.micro_batch_size}",
            f"ga{c.grad_accum_steps}",
            f"z{c.zero_stage}",
            f"off-{c.offload}",
            f"ck-{c.activation_checkpointing}",
            f"sp{int(c.sequence_parallel)}",
            f"vp{c.virtual_pipeline_stages}",
            c.pipeline_schedule,
            c.precision,
            c.attention_kernel,
            c.engine,
            f"c{int(c.torch_compile)}",
        ]
        return ".".join(parts + _non_default_parts(c))

    def canonical(self) -> Layout:
        """The same training with every field that has no effect set to its neutral value.

        One stage has no schedule and no chunks; several chunks imply the interleaved schedule and vice versa; one
        tensor-parallel rank has no sequence parallelism; one data-parallel rank (without offload, or with the torch
        engine) has nothing for ZeRO to shard, no gradients to reduce during the backward pass, and no buckets; rank
        order matters only with both data-parallel ranks and stages.
        """
        schedule, chunks = _canonical_schedule(self)
        # DeepSpeed offloads with ZeRO only; the torch engine with one data-parallel rank does the same at every stage.
        is_alone = self.data_parallel == 1 and (self.offload == "none" or self.engine == "torch")
        has_order = self.data_parallel > 1 and self.pipeline_parallel > 1
        neutral: dict[str, Any] = {
            "pipeline_schedule": schedule,
            "virtual_pipeline_stages": chunks,
            "sequence_parallel": self.sequence_parallel and self.tensor_parallel > 1,
            "zero_stage": 0 if is_alone else self.zero_stage,
            "rank_order": self.rank_order if has_order else RANK_ORDERS[0],
            "overlap_comm": self.overlap_comm and not is_alone,
            "bucket_mib": None if is_alone else self.bucket_mib,
        }
        # Nearly all of a hundred thousand candidates are canonical already, so replace() is avoided.
        is_canonical = all(getattr(self, name) == value for name, value in neutral.items())
        return self if is_canonical else replace(self, **neutral)

    def to_json(self) -> dict[str, Any]:
        """All fields in the contract's order; the engine's default bucket is null."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Layout:
        """The inverse of `to_json`; absent fields take their defaults, unknown ones raise InputError."""
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


LAYOUT_FIELDS = tuple(f.name for f in fields(Layout))
"""The contract's layout fields, in order."""

_COUNTS = (
    "num_nodes",
    "tensor_parallel",
    "pipeline_parallel",
    "data_parallel",
    "micro_batch_size",
    "grad_accum_steps",
    "virtual_pipeline_stages",
)
SWITCHES = ("sequence_parallel", "torch_compile", "overlap_comm")
CHOICES: Mapping[str, tuple[str, ...]] = {
    "offload": OFFLOADS,
    "activation_checkpointing": ACTIVATION_CHECKPOINTINGS,
    "pipeline_schedule": PIPELINE_SCHEDULES,
    "precision": PRECISIONS,
    "attention_kernel": ATTENTION_KERNELS,
    "engine": ENGINES,
    "rank_order": RANK_ORDERS,
}
"""Choices of the enumerated fields."""

_MAX_COUNT = 10**9


_degrees = attrgetter(*DEGREES.values())


@lru_cache
def _mesh(order: str, degrees: tuple[int, ...]) -> RankMesh:
    """Mesh shared by layouts: a hundred thousand candidates have few."""
    return RankMesh.ordered(order, dict(zip(DEGREES, degrees, strict=True)))


def _canonical_schedule(layout: Layout) -> tuple[str, int]:
    """(schedule, chunks per rank) of the canonical form."""
    if layout.pipeline_parallel == 1:
        return "none", 1
    if layout.virtual_pipeline_stages > 1:
        return "interleaved_1f1b", layout.virtual_pipeline_stages
    if layout.pipeline_schedule in ("none", "interleaved_1f1b"):
        return "1f1b", 1
    return layout.pipeline_schedule, 1


def _non_default_parts(layout: Layout) -> list[str]:
    """Fields newer than the key's fixed part, only where they differ from the default, so that older keys stay
    valid."""
    parts = []
    if layout.rank_order != "tp-dp-pp":
        parts.append(f"ro-{layout.rank_order}")
    if layout.overlap_comm:
        parts.append("ov1")
    if layout.bucket_mib is not None:
        parts.append(f"bk{layout.bucket_mib}")
    return parts


def _require_count(name: str, value: Any) -> None:
    if type(value) is not int or not 1 <= value <= _MAX_COUNT:
        raise _bad(name, value, f"a whole number from 1 to {_MAX_COUNT}")


def _require_bool(name: str, value: Any) -> None:
    if type(value) is not bool:
        raise _bad(name, value, "true or false")


def _require_choice(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise _bad(name, value, "one of " + ", ".join(known))


def _bad(name: str, value: Any, rule: str) -> InputError:
    return InputError.of("layout_field", f"{name} is {format_value(value)}", key=name, value=value, rule=rule)
