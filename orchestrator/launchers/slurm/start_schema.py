"""What launcher.slurm says of how the ranks are started: srun's line, and the container that they run in."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, ValidationInfo, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue

from search_spaces.schema.sections import resolved_path
from search_spaces.schema.validation import Section, folder_from_context
from slurm.option_checks import VISIBLE_DEVICES
from slurm.request import Container, Launch, Runtime

Word = Annotated[str, Field(min_length=1, max_length=4096)]

_IMAGE_FILES = (".sif", ".sqsh", ".img")


class LaunchSection(Section):
    """How srun starts the ranks, one task for each GPU."""

    srun: list[Word] = Field(default=[], description="Options of srun that bind tasks: [--cpu-bind=cores].")
    visible_devices: Word | None = Field(
        default=None,
        description=f"Variable that shows each rank its own GPU alone: {', '.join(VISIBLE_DEVICES)}.",
    )
    node_folders: dict[str, str] = Field(
        default={},
        description="Variables that name a folder of the job's own on each node, and below what: {TMPDIR: /tmp}.",
    )
    address: Word | None = Field(
        default=None,
        description="What rank 0's node calls itself to the others, with {host}, {fqdn} or {ip}. Default: {fqdn}.",
    )

    def launch(self) -> Launch:
        """The same as the room `slurm` knows it."""
        return Launch(tuple(self.srun), self.visible_devices, self.node_folders, self.address)


class ContainerSection(Section):
    """The image that the ranks run in, or a command before their own as a list: [apptainer, exec, --nv, x.sif]."""

    runtime: Runtime | None = Field(default=None, strict=False, description="What starts the container.")
    image: Word | None = Field(default=None, description="Its image: a path, or a name as the runtime takes it.")
    mounts: list[Word] = Field(
        default=[], description="SRC:DST or SRC:DST:ro; the search's own folder is there anyhow."
    )
    writable: bool = Field(default=False, description="Whether the ranks may write into the image, until they end.")
    gpus: Literal["nv", "rocm"] | None = Field(
        default=None, description="apptainer: the driver to bring in, nv or rocm. Default: the accelerator's."
    )
    command: list[Word] = Field(default=[], description="Command before the ranks' own, in place of all other keys.")

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
        """A path starts from the file's folder; whatever is none is a name that the runtime knows."""
        is_path = image is not None and (image.startswith((".", "~")) or image.endswith(_IMAGE_FILES))
        return str(resolved_path(folder_from_context(info), image)) if image is not None and is_path else image

    def container(self) -> Container:
        """The same as the room `slurm` knows it."""
        parts = (self.runtime, self.image, tuple(self.mounts), self.writable, self.gpus, tuple(self.command))
        return Container(*parts)
