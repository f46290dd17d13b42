"""Requests of the service and the words of its paths. FastAPI validates them and derives openapi.json."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

SearchIdText = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,60}$")]
TrialText = Annotated[str, Field(pattern=r"^t[0-9]{4,9}(\.a[0-9]{1,9})?$")]
_PathText = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^/[^\x00]*$")]


class Request(BaseModel):
    """A request body; unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SubmitRequest(Request):
    yaml: str = Field(min_length=1, max_length=1_000_000, description="The text of a search file.")
    directory: _PathText = Field(description="Absolute path; base of relative paths in the file and of its work_dir.")
    set: list[Annotated[str, Field(max_length=10_000)]] = Field(
        default=[], max_length=1_000, description="Changes to the file, each key.key=value."
    )


class ResumeRequest(Request):
    folder: _PathText | None = Field(default=None, description="The search's folder, if it is not in the ledger.")
    ledger_url: str | None = Field(
        default=None, max_length=4096, description="The search's ledger, if it is not the service's."
    )
