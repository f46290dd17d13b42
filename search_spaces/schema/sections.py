"""Sections of the search file that define the space: model, space, baseline, constraints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, GetJsonSchemaHandler, create_model, model_validator
from pydantic.json_schema import JsonSchemaValue

from search_spaces.errors import InputError, format_value
from search_spaces.layouts.axes import axis_type, value_type
from search_spaces.layouts.axis import Axis, Kind
from search_spaces.layouts.layout import (
    AXES,
    BATCH_RULE,
    MODEL_DEGREES,
    OTHER_DEGREES,
    SEARCHED,
    SETTINGS,
    V_SCHEDULES,
    WORLD_RULE,
    Layout,
    layout_mesh,
)
from search_spaces.layouts.workload import BATCH_FIX, WORLD_FIX, Workload, wrong_batch, wrong_world
from search_spaces.model_shape import ModelShape
from search_spaces.schema import presets
from search_spaces.schema.declared_section import DeclaredSection, section_of
from search_spaces.schema.setting_axes import (
    ENV_FIELD,
    LAUNCH_FIELD,
    OPTIONS_FIELD,
    SETTING_KEYS,
    EnvAxes,
    EnvValues,
    LaunchAxes,
    LaunchValues,
    OptionAxes,
    OptionValues,
    baseline_settings,
    setting_texts,
)
from search_spaces.schema.validation import Section

_DERIVED_DATA_PARALLEL = {
    "data_parallel": "data_parallel is derived: num_nodes x GPUs a node /"
    f" ({' x '.join((*MODEL_DEGREES, *OTHER_DEGREES.values()))})"
}
_OPTIONS_INSTEAD = {
    "expert_overlap": "--overlap-moe-expert-parallel-comm",
    "offloaded_layers": "--cpu-offloading-num-layers",
    "layers_in_16_bits": "--first-last-layers-bf16, --num-layers-at-start-in-bf16 and --num-layers-at-end-in-bf16",
    "context_inner": "--hierarchical-context-parallel-sizes",
}
"""Options of Megatron-LM in place of former axes."""


def _no_axes(section: str) -> dict[str, str]:
    """Keys that this section does not have, each with the reason."""
    instead = {name: f"give {options} in {section}.options" for name, options in _OPTIONS_INSTEAD.items()}
    return _DERIVED_DATA_PARALLEL | instead


def with_other_form(fields: JsonSchemaValue, form: JsonSchemaValue) -> JsonSchemaValue:
    """JSON schema of a section that has another form beside its fields."""
    about = {"title": fields.pop("title"), "description": fields.pop("description")}
    return about | {"anyOf": [form, fields]}


class PresetSection(Section):
    """A section that may be given as a preset's name, in the file and in the JSON schema."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return with_other_form(handler(core_schema), {"type": "string", "description": cls.name_schema()})

    @classmethod
    def name_schema(cls) -> str:
        """Description of the accepted names, for editors."""
        raise NotImplementedError


def _space_field(axis: Axis) -> tuple[Any, Any]:
    default = axis.default_text or (axis.default if axis.kind is Kind.WORD else format_value(axis.default))
    return axis_type(axis), Field(default=None, description=f"{axis.description} Default: {default}.")


def _baseline_field(axis: Axis) -> tuple[Any, Any]:
    return value_type(axis) | None, Field(default=None, description=axis.description)


class _ModelFile(PresetSection, DeclaredSection):
    """A model as a preset's name or by its fields."""


if TYPE_CHECKING:
    ModelFields = _ModelFile
    SpaceAxes = Section
    BaselineFields = Section
else:
    ModelFields = section_of(ModelShape, _ModelFile)
    SpaceAxes = create_model("SpaceAxes", __base__=Section, **{name: _space_field(AXES[name]) for name in SEARCHED})
    BaselineFields = create_model(
        "BaselineFields", __base__=Section, **{name: _baseline_field(AXES[name]) for name in SEARCHED}
    )


class ModelSection(ModelFields):
    """The model to train: the name of a ready-made one, or these fields."""

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, data: Any) -> Any:
        return presets.preset(presets.MODELS, data).data if isinstance(data, str) else data

    def given(self) -> dict[str, Any]:
        given = super().given()
        if given["gated_mlp"] and given["ffn_hidden_size"] is None:
            raise InputError.of(
                "missing_key",
                "required with gated_mlp, but missing",
                rule="a gated MLP has no default width",
                fix="copy it from the model's configuration",
                key="ffn_hidden_size",
            )
        usual = {"num_key_value_heads": given["num_attention_heads"], "ffn_hidden_size": 4 * given["hidden_size"]}
        return given | {name: size for name, size in usual.items() if given[name] is None}

    def shape(self) -> ModelShape:
        """The model with all derived sizes."""
        found: ModelShape = self.value()
        return found

    @classmethod
    def name_schema(cls) -> str:
        return "A ready-made model: " + ", ".join(presets.preset_names(presets.MODELS))


class SpaceSection(SpaceAxes):
    """Search space: each field is one value, a list, {min, max, step} or {min, max, factor}.

    A field that is not given is not searched and keeps its default. Layouts that cannot run are left out; `plan` names
    the rule that excludes them.
    """

    refused = _no_axes("space")

    env: EnvAxes = ENV_FIELD
    launch: LaunchAxes = LAUNCH_FIELD
    options: OptionAxes = OPTIONS_FIELD
    allow_tensor_parallel_across_nodes: bool = Field(
        default=False, description="Allow tensor-parallel groups to span nodes that share no link domain."
    )
    candidates: str | None = Field(
        default=None,
        min_length=1,
        description="A measured table (CSV): its layouts are the candidates, instead of axes.",
    )

    @model_validator(mode="after")
    def _validate_candidates(self) -> Self:
        given = self.given_axes()
        conflicting = sorted({*given, *(name for name in SETTING_KEYS if getattr(self, name))} - {SETTINGS})
        if self.candidates is not None and conflicting:
            raise InputError.of(
                "contradiction",
                f"{conflicting[0]} is given together with candidates",
                rule="with candidates the layouts of the table are the whole search space",
                fix=f"remove candidates, or {', '.join(conflicting)}",
                key=conflicting[0],
            )
        _require_chunks(
            given.get("pipeline_schedule", ()), given.get("virtual_pipeline_stages", ()), "pipeline_schedule"
        )
        return self

    def given_axes(self) -> dict[str, tuple[Any, ...]]:
        """The values of each axis that the file gives, by layout field, in the contract's order."""
        given = {name: getattr(self, name) for name in SEARCHED if getattr(self, name) is not None}
        texts = setting_texts(self)
        return given if texts is None else given | {SETTINGS: texts}


class BaselineSection(BaselineFields):
    """The layout in use today, measured first and compared with the best.

    A field that is not given takes the space's value where that has only one, else its default. data_parallel is
    derived, and so is grad_accum_steps when it is not given.
    """

    refused = _no_axes("baseline")

    env: EnvValues = Field(default=None, description="Environment variables of the ranks.")
    launch: LaunchValues = Field(default=None, description="Options of the launch line.")
    options: OptionValues = Field(default=None, description="Options of the trainer.")

    def layout(self, searched: Mapping[str, Sequence[Any]], workload: Workload) -> Layout:
        """The whole layout, canonical; InputError where it does not match the world size or the global batch.

        `searched` holds all axes of the search; the search space checks the other rules.
        """
        alone = {name: values[0] for name, values in searched.items() if len(values) == 1}
        given = self.model_dump(exclude_none=True, exclude={*SETTING_KEYS})
        given[SETTINGS] = baseline_settings(self, searched.get(SETTINGS, ()))
        fields = Layout(num_nodes=workload.cluster.num_nodes).to_json() | alone | given
        chunks = [fields["virtual_pipeline_stages"]]
        _require_chunks([fields["pipeline_schedule"]], chunks, "baseline.pipeline_schedule")
        world, ranks = workload.world_size(fields["num_nodes"]), layout_mesh(fields).without("dp").world_size
        fields["data_parallel"] = None if world % ranks else world // ranks
        if (numbers := wrong_world(fields, workload)) is not None:
            raise InputError.of("world", numbers, rule=WORLD_RULE, fix=WORLD_FIX)
        if "grad_accum_steps" not in given:
            sequences = fields["micro_batch_size"] * fields["data_parallel"]
            steps, rest = divmod(workload.global_batch_size, sequences)
            fields["grad_accum_steps"] = None if rest else steps
            if (numbers := wrong_batch(fields, workload)) is not None:
                raise InputError.of("batch", numbers, rule=BATCH_RULE, fix=BATCH_FIX)
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
    """InputError for an interleaved or V schedule without a number of model chunks per rank that it has."""
    given = [*chunks] or [1]
    for schedule in schedules:
        is_v = schedule in V_SCHEDULES
        if (is_v and 2 not in given) or (schedule == "interleaved_1f1b" and max(given) == 1):
            raise InputError.of(
                "contradiction",
                f"is {schedule} with virtual_pipeline_stages {' or '.join(map(str, given))}",
                rule=f"{schedule} has virtual_pipeline_stages of {'2' if is_v else '2 or more'}",
                fix="set virtual_pipeline_stages to 2, or use 1f1b",
                key=key,
                value=schedule,
            )
