"""Sections of a file made from dataclasses whose fields are declared (search_spaces/declared.py)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, is_dataclass
from enum import Enum
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import Field, create_model, model_validator

from search_spaces.declared import declared_fields, field_types
from search_spaces.schema.validation import Section

_RANGE = ("ge", "gt", "le")
_LENGTHS = ("min_length", "max_length")


class DeclaredSection(Section):
    """A section with the declared fields of a dataclass, `declared_by`."""

    declared_by: ClassVar[type]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A declared field."""

    @model_validator(mode="after")
    def _is_valid(self) -> Self:
        self.value()
        return self

    def value(self) -> Any:
        """The dataclass's object; InputError where its values contradict each other."""
        return self.declared_by(**self.given())

    def given(self) -> dict[str, Any]:
        """The declared fields' values as the dataclass has them."""
        return {name: _plain(getattr(self, name)) for name in declared_fields(self.declared_by)}


def section_of(kind: type, base: type[DeclaredSection] = DeclaredSection, **types: Any) -> Any:
    """The section of a dataclass, named after it and described by its docstring's first paragraph; `types` are those of
    fields that a file writes in a form of their own."""
    fields: Any = {name: _section_field(kind, name, types.get(name)) for name in declared_fields(kind)}
    about = (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")
    made = create_model(f"{kind.__name__}Section", __base__=base, __doc__=about, **fields)
    made.declared_by = kind
    return made


def _section_field(kind: type, name: str, own_type: Any) -> tuple[Any, Any]:
    declared = declared_fields(kind)[name]
    about, value = declared.metadata, own_type
    if value is None:
        value = _file_type(name, field_types(kind)[name], about)
    default = about.get("in_file", declared.default)
    if declared.default_factory is not MISSING:
        default = value() if "keys" in about else declared.default_factory()
    elif is_dataclass(default):
        default = value()
    elif isinstance(default, tuple):
        default = [*default]
    if default is None:
        value |= None
    given = Field(description=about["description"] or None, alias=about.get("alias"))
    return value, given if default is MISSING else Field(default, description=given.description, alias=given.alias)


def _file_type(name: str, kind: Any, about: Mapping[str, Any]) -> Any:
    """A field's type in a file, with its bounds."""
    origin, inner = get_origin(kind), get_args(kind)
    if words := about.get("words"):
        return Literal[words]
    if isinstance(kind, type) and is_dataclass(kind):
        return section_of(kind)
    if origin is tuple:
        return GenericAlias(list, _file_type(name, inner[0], about))
    bounds = Field(**{bound: about[bound] for bound in (_LENGTHS if kind is str else _RANGE) if bound in about})
    if keys := about.get("keys"):
        each: Any = Annotated[float, bounds] | None
        of_keys: Any = {key: (each, Field(None, description=text)) for key, text in keys.items()}
        title = f"{name.title().replace('_', '')}Section"
        return create_model(title, __base__=Section, __doc__=about["of_keys"], **of_keys)
    if origin is not None:
        return GenericAlias(dict, inner)
    return Annotated[kind, Field(strict=False)] if issubclass(kind, Enum) else Annotated[kind, bounds]


def _plain(value: Any) -> Any:
    if isinstance(value, DeclaredSection):
        return value.value()
    if isinstance(value, list):
        return tuple(map(_plain, value))
    return value.model_dump(exclude_none=True) if isinstance(value, Section) else value
