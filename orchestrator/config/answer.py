"""Answers: the JSON objects that commands print with `--json` and the service returns.

Each is one pydantic model, declared beside the code that builds it; `parlay schema NAME` prints its JSON schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, GetPydanticSchema
from pydantic_core import core_schema

from search_spaces.errors import Problem


class AnswerPart(BaseModel):
    """Object inside an answer. The string below a field describes it in the schema."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        defer_build=True,
        use_attribute_docstrings=True,
        alias_generator=lambda name: name.removesuffix("_"),
        serialize_by_alias=True,
    )

    def plain(self) -> dict[str, Any]:
        """The object as plain JSON values."""
        return self.model_dump(mode="json")


class Answer(AnswerPart):
    """Answer with its schema id, `parlay.NAME/1`, under the key `schema`; a subclass has it as default."""

    schema_: str

    @classmethod
    def name(cls) -> str:
        """NAME of its schema id."""
        return str(cls.model_fields["schema_"].default).removeprefix("parlay.").partition("/")[0]


def plain_rows_of(part: type[AnswerPart]) -> GetPydanticSchema:
    """Annotation of a list with plain values of this part, which are printed as they are: an object for each of 100,000
    rows takes longer than all else."""
    rows: Any = list[part]  # type: ignore[valid-type]
    as_they_are = core_schema.plain_serializer_function_ser_schema(list)
    return GetPydanticSchema(
        lambda _, schema_of: core_schema.json_or_python_schema(
            schema_of(rows), core_schema.list_schema(), serialization=as_they_are
        )
    )


@dataclass(frozen=True)
class FirstProblem(Problem):
    """One mistake in the input, or one refusal. `code` is its kind, such as `unknown_key`; of a refusal `refused`,
    `held`, `lease_lost`, `interrupted` or `bug`. `others` are further mistakes."""

    others: tuple[Problem, ...] = ()


class ErrorAnswer(AnswerPart):
    """Printed by every command that fails, and answered by the service."""

    error: FirstProblem

    @classmethod
    def of(cls, first: Problem, *others: Problem) -> ErrorAnswer:
        """The answer with these problems, their values as finite JSON."""
        rest = tuple(Problem(**problem.to_json()) for problem in others)
        return cls(error=FirstProblem(**first.to_json(), others=rest))
