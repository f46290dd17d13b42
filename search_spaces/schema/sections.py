"""Sections of the search file that define the space: model, space, baseline, constraints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue

from search_spaces.errors import InputError
from search_spaces.layouts import axes
from search_spaces.layouts.layout import BATCH_RULE, LAYOUT_FIELDS, WORLD_RULE, Layout
from search_spaces.layouts.mesh import layout_mesh
from search_spaces.layouts.workload import BATCH_FIX, WORLD_FIX, Workload, describe_batch_size, describe_world_size
from search_spaces.model_shape import ModelShape
from search_spaces.schema import presets
from search_spaces.schema.validation import Section

_DERIVED_DATA_PARALLEL = {
    "data_parallel": "data_parallel is derived: num_nodes x GPUs a node / (tensor_parallel x pipeline_parallel)"
}
_MAX_SIZE = 10**9
_MAX_LAYERS = 10_000


class PresetSection(Section):
    """A section that may be given as a preset's name, in the file and in the JSON schema."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        fields = handler(core_schema)
        about = {"title": fields.pop("title"), "description": fields.pop("description")}
        return about | {"anyOf": [{"type": "string", "description": cls.name_schema()}, fields]}

    @classmethod
    def name_schema(cls) -> str:
        """Description of the accepted names, for editors."""
        raise NotImplementedError


class ModelSection(PresetSection):
    """The model to train: the name of a ready-made one, or these fields."""

    num_layers: int = Field(ge=1, le=_MAX_LAYERS, description="Transformer layers.")
    hidden_size: int = Field(ge=1, le=_MAX_SIZE, description="Width of the residual stream.")
    num_attention_heads: int = Field(ge=1, le=_MAX_SIZE, description="Attention heads; divides hidden_size.")
    num_key_value_heads: int | None = Field(
        default=None, ge=1, le=_MAX_SIZE, description="Key-value heads; as many as attention heads when not given."
    )
    ffn_hidden_size: int | None = Field(
        default=None,
        ge=1,
        le=_MAX_SIZE,
        description="Width of the MLP; 4 x hidden_size when not given. Required with gated_mlp.",
    )
    gated_mlp: bool = Field(default=False, description="A gated MLP (SwiGLU, three matrices) instead of GPT-2's two.")
    vocab_size: int = Field(
        ge=1, le=_MAX_SIZE, description="Vocabulary, already padded: a multiple of every tensor_parallel tried."
    )
    seq_length: int = Field(ge=1, le=_MAX_SIZE, description="Tokens per sequence.")
    tied_embeddings: bool = Field(default=True, description="Use the token table as the output matrix, as in GPT-2.")
    position_embedding: Literal["learned", "rotary"] = Field(default="learned", description="Position embedding.")
    norm: Literal["layernorm", "rmsnorm"] = Field(
        default="layernorm", description="layernorm with biases (GPT-2), or rmsnorm without (Llama)."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, data: Any) -> Any:
        return presets.preset(presets.MODELS, data).data if isinstance(data, str) else data

    @model_validator(mode="after")
    def _validate_shape(self) -> Self:
        if self.gated_mlp and self.ffn_hidden_size is None:
            raise InputError.of(
                "missing_key",
                "required with gated_mlp, but missing",
                rule="a gated MLP has no default width",
                fix="copy it from the model's configuration",
                key="ffn_hidden_size",
            )
        self.shape()
        return self

    def shape(self) -> ModelShape:
        """The model with all derived sizes; InputError where its sizes contradict each other."""
        given = self.model_dump(exclude_none=True)
        derived = {"num_key_value_heads": self.num_attention_heads, "ffn_hidden_size": 4 * self.hidden_size}
        return ModelShape(**(derived | given))

    @classmethod
    def name_schema(cls) -> str:
        return "A ready-made model: " + ", ".join(presets.preset_names(presets.MODELS))


class SpaceSection(Section):
    """Search space: each field is one value, a list, {min, max, step} or {min, max, factor}.

    A field that is not given is not searched and keeps its default. Layouts that cannot run are left out; `plan` names
    the rule that excludes them.
    """

    refused = _DERIVED_DATA_PARALLEL

    num_nodes: axes.CountAxis = Field(default=None, description="Nodes a trial runs on. Default: the whole cluster.")
    tensor_parallel: axes.CountAxis = Field(
        default=None, description="Tensor-parallel ranks, which split every layer. Default: 1."
    )
    pipeline_parallel: axes.CountAxis = Field(default=None, description="Pipeline stages. Default: 1.")
    micro_batch_size: axes.CountAxis = Field(default=None, description="Sequences in a micro-batch. Default: 1.")
    grad_accum_steps: axes.CountAxis = Field(
        default=None,
        description="Micro-batches per step and data-parallel rank. Default: derived from global_batch_size. As an"
        " axis it varies the global batch, and only layouts of global_batch_size compete to be the best.",
    )
    zero_stage: axes.ZeroStageAxis = Field(
        default=None, description="ZeRO stage: what data-parallel ranks shard. Default: 0."
    )
    offload: axes.OffloadAxis = Field(default=None, description="State kept in host memory. Default: none.")
    activation_checkpointing: axes.CheckpointingAxis = Field(
        default=None, description="Recomputation in the backward pass to save memory. Default: none."
    )
    sequence_parallel: axes.SwitchAxis = Field(
        default=None, description="Split norms and dropout over the tensor-parallel ranks. Default: false."
    )
    virtual_pipeline_stages: axes.CountAxis = Field(
        default=None, description="Model chunks per pipeline rank; more than 1 is interleaved. Default: 1."
    )
    pipeline_schedule: axes.ScheduleAxis = Field(
        default=None, description="Order of forward and backward passes. Default: 1f1b, none with one stage."
    )
    precision: axes.PrecisionAxis = Field(default=None, description="Arithmetic. Default: fp32.")
    attention_kernel: axes.KernelAxis = Field(default=None, description="Attention implementation. Default: math.")
    engine: axes.EngineAxis = Field(
        default=None,
        description="Engine that runs the training: torch or deepspeed with Parlay's trainer, else trainer.kind."
        " Default: torch, or trainer.kind.",
    )
    torch_compile: axes.SwitchAxis = Field(
        default=None, description="Compile the layers with torch.compile. Default: false."
    )
    rank_order: axes.RankOrderAxis = Field(
        default=None, description="Order of the parallel dimensions over the ranks, innermost first. Default: tp-dp-pp."
    )
    overlap_comm: axes.SwitchAxis = Field(
        default=None, description="Overlap gradient reductions with the backward pass. Default: false."
    )
    bucket_mib: axes.BucketAxis = Field(
        default=None, description="Size of a gradient bucket in MiB; null is the engine's default. Default: null."
    )
    allow_tensor_parallel_across_nodes: bool = Field(
        default=False, description="Allow tensor-parallel groups to span nodes."
    )
    candidates: str | None = Field(
        default=None,
        min_length=1,
        description="A measured table (CSV): its layouts are the candidates, instead of axes.",
    )

    @model_validator(mode="after")
    def _validate_candidates(self) -> Self:
        conflicting = sorted(self.given_axes())
        if self.candidates is not None and conflicting:
            raise InputError.of(
                "contradiction",
                f"{conflicting[0]} is given together with candidates",
                rule="with candidates the layouts of the table are the whole search space",
                fix=f"remove candidates, or {', '.join(conflicting)}",
                key=conflicting[0],
            )
        _require_chunks(self.pipeline_schedule or (), self.virtual_pipeline_stages or (), "pipeline_schedule")
        return self

    def given_axes(self) -> dict[str, tuple[Any, ...]]:
        """The values of each axis that the file gives, by layout field, in the contract's order."""
        return {name: getattr(self, name) for name in LAYOUT_FIELDS if getattr(self, name, None) is not None}


class BaselineSection(Section):
    """The layout in use today, measured first and compared with the best.

    A field that is not given takes the space's value where that has only one, else its default. data_parallel is
    derived, and so is grad_accum_steps when it is not given.
    """

    refused = _DERIVED_DATA_PARALLEL

    num_nodes: axes.Count | None = Field(default=None, description="Nodes it runs on.")
    tensor_parallel: axes.Count | None = Field(
        default=None, description="Tensor-parallel ranks, which split every layer."
    )
    pipeline_parallel: axes.Count | None = Field(default=None, description="Pipeline stages.")
    micro_batch_size: axes.Count | None = Field(default=None, description="Sequences in a micro-batch.")
    grad_accum_steps: axes.Count | None = Field(
        default=None, description="Micro-batches per step and data-parallel rank."
    )
    zero_stage: axes.ZeroStage | None = Field(default=None, description="ZeRO stage: what data-parallel ranks shard.")
    offload: axes.Offload | None = Field(default=None, description="State kept in host memory.")
    activation_checkpointing: axes.ActivationCheckpointing | None = Field(
        default=None, description="Recomputation in the backward pass."
    )
    sequence_parallel: bool | None = Field(default=None, description="Split norms over the tensor-parallel ranks.")
    virtual_pipeline_stages: axes.Count | None = Field(default=None, description="Model chunks per pipeline rank.")
    pipeline_schedule: axes.PipelineSchedule | None = Field(
        default=None, description="Order of forward and backward passes."
    )
    precision: axes.Precision | None = Field(default=None, description="Arithmetic.")
    attention_kernel: axes.AttentionKernel | None = Field(default=None, description="Attention implementation.")
    engine: axes.Engine | None = Field(default=None, description="Engine that runs the training.")
    torch_compile: bool | None = Field(default=None, description="Compile the layers with torch.compile.")
    rank_order: axes.RankOrder | None = Field(
        default=None, description="Order of the parallel dimensions over the ranks, innermost first."
    )
    overlap_comm: bool | None = Field(default=None, description="Overlap gradient reductions with the backward pass.")
    bucket_mib: axes.Count | None = Field(default=None, description="Size of a gradient bucket in MiB.")

    def layout(self, searched: Mapping[str, Sequence[Any]], workload: Workload) -> Layout:
        """The whole layout, canonical; InputError where it does not match the world size or the global batch.

        `searched` holds all axes of the search; the search space checks the other rules.
        """
        alone = {name: values[0] for name, values in searched.items() if len(values) == 1}
        fields = Layout(num_nodes=workload.cluster.num_nodes).to_json() | alone | self.model_dump(exclude_none=True)
        chunks = [fields["virtual_pipeline_stages"]]
        _require_chunks([fields["pipeline_schedule"]], chunks, "baseline.pipeline_schedule")
        world, ranks = workload.world_size(fields["num_nodes"]), layout_mesh(fields).without("dp").world_size
        if world % ranks or fields["num_nodes"] > workload.cluster.num_nodes:
            numbers = describe_world_size(fields | {"data_parallel": None}, workload)
            raise InputError.of("world", numbers, rule=WORLD_RULE, fix=WORLD_FIX)
        fields["data_parallel"] = world // ranks
        if self.grad_accum_steps is None:
            sequences = fields["micro_batch_size"] * fields["data_parallel"]
            if workload.global_batch_size % sequences:
                numbers = describe_batch_size(fields | {"grad_accum_steps": None}, workload)
                raise InputError.of("batch", numbers, rule=BATCH_RULE, fix=BATCH_FIX)
            fields["grad_accum_steps"] = workload.global_batch_size // sequences
        return Layout(**fields).canonical()


class ConstraintsSection(Section):
    """Further requirements on a layout."""

    max_nodes: int | None = Field(
        default=None, ge=1, le=100_000, description="Maximum number of nodes of a trial. Default: no limit."
    )
    min_free_memory_gib: float | None = Field(
        default=None,
        gt=0,
        le=2**20,
        description="GiB that the best layout leaves free on every accelerator, of what its own allocations may take"
        " (on a CPU: of measure.memory_limit_gib). A layout that leaves less is measured and is never the best."
        " Default: none.",
    )


def resolved_path(folder: Path, path: str) -> Path:
    """A path from a file as an absolute one: `~` is the home folder, relative paths start from the file's folder."""
    try:
        return folder / Path(path).expanduser()
    except RuntimeError as error:
        fix = "write the path out, from / on"
        raise InputError.of("path", f"is {path!r}", rule=str(error), fix=fix, value=path) from error


def _require_chunks(schedules: Sequence[str], chunks: Sequence[int], key: str) -> None:
    """InputError for an interleaved schedule with one model chunk per rank, which would be plain 1F1B."""
    if "interleaved_1f1b" in schedules and max(chunks, default=1) == 1:
        raise InputError.of(
            "contradiction",
            "is interleaved_1f1b with one model chunk per pipeline rank",
            rule="an interleaved schedule has virtual_pipeline_stages of 2 or more",
            fix="give virtual_pipeline_stages, or use 1f1b",
            key=key,
            value="interleaved_1f1b",
        )
