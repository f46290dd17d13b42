"""The `cluster` section of a search file and of a cluster file: the machine and its links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainSerializer, ValidationInfo, WithJsonSchema, model_validator

from search_spaces.hardware.cluster import Cluster
from search_spaces.schema import presets
from search_spaces.schema.declared_section import DeclaredSection, section_of
from search_spaces.schema.sections import PresetSection, resolved_path
from search_spaces.schema.validation import folder_from_context, validate
from search_spaces.schema.yaml_document import read_document


class _ClusterFile(PresetSection, DeclaredSection):
    schema_version: Literal["parlay.cluster/1"] = Field(
        default="parlay.cluster/1", alias="schema", description="Version of the file format."
    )


_Accelerator = Annotated[
    str,
    AfterValidator(presets.accelerator_named),
    PlainSerializer(lambda found: found.name),
    WithJsonSchema({"type": "string"}),
]

if TYPE_CHECKING:
    ClusterFields = _ClusterFile
else:
    ClusterFields = section_of(Cluster, _ClusterFile, accelerator=_Accelerator)


class ClusterSection(ClusterFields):
    """The machine: the name of a ready-made one, the path of a YAML file with these fields, or the fields."""

    @model_validator(mode="before")
    @classmethod
    def _from_name_or_file(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, str):
            return data
        if "/" not in data and not data.endswith((".yaml", ".yml")):
            return presets.preset(presets.CLUSTERS, data).data
        document = read_document(resolved_path(folder_from_context(info), data))
        validate(cls, document)
        return document.data

    def cluster(self) -> Cluster:
        """The cluster; InputError for links of another kind of node."""
        found: Cluster = self.value()
        return found

    @classmethod
    def name_schema(cls) -> str:
        return "A ready-made cluster, or a file's path: " + ", ".join(presets.preset_names(presets.CLUSTERS))
