"""Sections of a file made from dataclasses whose fields are declared (search_spaces/declared.py)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, is_dataclass
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import Field, create_model, model_validator

from search_spaces.declared import declared_fields, field_types
from search_spaces.schema.validation import Section

_BOUNDS = ("ge", "gt", "le", "min_length", "max_length")


class DeclaredSection(Section):
    """A section with the declared fields of a dataclass, `declared_by`."""

    declared_by: ClassVar[type]

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
    fields = {name: _section_field(kind, name, types.get(name)) for name in declared_fields(kind)}
    about = (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")
    made = create_model(f"{kind.__name__}Section", __base__=base, __doc__=about, **fields)
    made.declared_by = kind
    return made


def _section_field(kind: type, name: str, own_type: Any) -> tuple[Any, Any]:
    declared = declared_fields(kind)[name]
    about = declared.metadata
    value = own_type or _file_type(name, field_types(kind)[name], about)
    default = about.get("in_file", declared.default)
    if declared.default_factory is not MISSING:
        default = value() if "keys" in about else declared.default_factory()
    if default is None:
        value |= None
    default = ... if default is MISSING else [*default] if isinstance(default, tuple) else default
    return value, Field(default=default, description=about["description"], alias=about.get("alias"))


def _file_type(name: str, kind: Any, about: Mapping[str, Any]) -> Any:
    """A field's type in a file, with its bounds."""
    if words := about.get("words"):
        return Literal[words]
    if is_dataclass(kind):
        return section_of(kind)
    if get_origin(kind) is tuple:
        return list[_file_type(name, get_args(kind)[0], about)]
    bounds = Field(**{bound: about[bound] for bound in _BOUNDS if bound in about})
    if keys := about.get("keys"):
        of_keys = {key: (Annotated[float, bounds] | None, Field(None, description=text)) for key, text in keys.items()}
        return create_model(
            f"{name.title().replace('_', '')}Section", __base__=Section, __doc__=about["of_keys"], **of_keys
        )
    return Annotated[kind, bounds]


def _plain(value: Any) -> Any:
    if isinstance(value, DeclaredSection):
        return value.value()
    if isinstance(value, list):
        return tuple(map(_plain, value))
    return value.model_dump(exclude_none=True) if isinstance(value, Section) else value
