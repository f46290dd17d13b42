"""Sections of launcher.slurm about starting the ranks: srun's command line and the container."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, ValidationInfo, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue

from search_spaces.schema.sections import resolved_path
from search_spaces.schema.validation import Section, folder_from_context
from slurm.option_checks import VISIBLE_DEVICES
from slurm.request import Container, Launch, Runtime

NonEmptyText = Annotated[str, Field(min_length=1, max_length=4096)]

_IMAGE_FILES = (".sif", ".sqsh", ".img")


class LaunchSection(Section):
    """Options of srun, which starts the ranks as one task per GPU."""

    srun: list[NonEmptyText] = Field(default=[], description="Options of srun that bind tasks: [--cpu-bind=cores].")
    visible_devices: NonEmptyText | None = Field(
        default=None,
        description=f"Variable that restricts each rank to its own GPU: {', '.join(VISIBLE_DEVICES)}.",
    )
    node_folders: dict[str, str] = Field(
        default={},
        description="Variables to set to a private folder on each node, with its parent: {TMPDIR: /tmp}.",
    )
    address: NonEmptyText | None = Field(
        default=None,
        description="Address of rank 0's node for the others, with {host}, {fqdn} or {ip}. Default: {fqdn}.",
    )

    def launch(self) -> Launch:
        """Return the options as slurm/ defines them."""
        return Launch(tuple(self.srun), self.visible_devices, self.node_folders, self.address)


class ContainerSection(Section):
    """The image that the ranks run in, or a command before their own as a list: [apptainer, exec, --nv, x.sif]."""

    runtime: Runtime | None = Field(default=None, strict=False, description="Container runtime.")
    image: NonEmptyText | None = Field(default=None, description="Image: a path, or a name as the runtime takes it.")
    mounts: list[NonEmptyText] = Field(
        default=[], description="SRC:DST or SRC:DST:ro; the search's own folder is always mounted."
    )
    writable: bool = Field(
        default=False, description="Let the ranks write into the image; changes are lost at their end."
    )
    gpus: Literal["nv", "rocm"] | None = Field(
        default=None, description="apptainer: driver to bind, nv or rocm. Default: the accelerator's."
    )
    command: list[NonEmptyText] = Field(
        default=[], description="Command before the ranks' own, in place of all other keys."
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        fields = handler(core_schema)
        about = {"title": fields.pop("title"), "description": fields.pop("description")}
        return about | {"anyOf": [{"type": "array", "items": {"type": "string", "minLength": 1}}, fields]}

    @model_validator(mode="before")
    @classmethod
    def _from_command(cls, data: Any) -> Any:
        return {"command": data} if isinstance(data, list) else data

    @field_validator("image")
    @classmethod
    def _resolve(cls, image: str | None, info: ValidationInfo) -> str | None:
        return None if image is None else resolved_image(folder_from_context(info), image)

    def container(self) -> Container:
        """Return the container as slurm/ defines it."""
        parts = (self.runtime, self.image, tuple(self.mounts), self.writable, self.gpus, tuple(self.command))
        return Container(*parts)


def resolved_image(folder: Path, image: str) -> str:
    """Resolve an image's path relative to the file's folder; anything else is a name that the runtime knows."""
    is_path = image.startswith((".", "~")) or image.endswith(_IMAGE_FILES)
    return str(resolved_path(folder, image)) if is_path else image
