"""Section of the search file about the trainer: Parlay's own or a third-party one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, ValidationInfo, WithJsonSchema, field_validator, model_validator

from search_spaces.engines import PARLAY, TRAINER_KINDS
from search_spaces.errors import InputError, Problem, did_you_mean, format_value
from search_spaces.schema.sections import resolved_path
from search_spaces.schema.validation import Section, folder_from_context
from search_spaces.schema.yaml_document import read_document
from trials.schema.checkpoint_section import CheckpointSection
from trials.schema.sections import DataSection
from trials.trainers.command.trainer import argument_problems, require_template
from trials.trainers.common.log_lines import pattern_problems
from trials.trainers.common.options import option_name
from trials.trainers.registry import LOG_FORMATS, TRAINERS, is_observed, is_timed_by_observer

if TYPE_CHECKING:
    Kind = str
else:
    Kind = Literal[TRAINER_KINDS]
_LONGEST_TEXT, _MOST_RANKS = 4096, 10**6


def _text_or_keys(value: Any) -> Any:
    """InputError for anything but text or keys; a union of types would show its own parts in the message."""
    if value is None or (isinstance(value, str) and 0 < len(value) <= _LONGEST_TEXT) or isinstance(value, dict):
        return value
    rule = f"text of at most {_LONGEST_TEXT} characters, or keys"
    raise InputError.of("type", f"is {format_value(value):.80}", rule=rule, fix="put text in quotes", value=value)


def _rank(value: Any) -> Any:
    """InputError for anything but a rank."""
    if value in (None, "first", "last") or (type(value) is int and 0 <= value <= _MOST_RANKS):
        return value
    rule = f"first, last, or a whole number from 0 to {_MOST_RANKS}"
    fix = did_you_mean(value, ("first", "last")) or "write the rank's number, or remove the key"
    raise InputError.of("bounds", f"is {format_value(value):.80}", rule=rule, fix=fix, value=value)


_TextOrKeys = Annotated[
    str | dict[str, Any] | None,
    PlainValidator(_text_or_keys),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]}),
]
_Rank = Annotated[
    int | str | None,
    PlainValidator(_rank),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["first", "last"]},
                {"type": "integer", "minimum": 0, "maximum": _MOST_RANKS},
                {"type": "null"},
            ]
        }
    ),
]


def _requiring(key: str) -> list[str]:
    return [kind for kind in TRAINER_KINDS if key in TRAINERS[kind].required_keys]


def _configured() -> list[str]:
    """Kinds whose template is a configuration."""
    return [kind for kind in TRAINER_KINDS if "template" in TRAINERS[kind].keys and not TRAINERS[kind].has_command_line]


def _listed(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def resolved_python(folder: Path, python: str) -> str:
    """An interpreter as ranks are to start it: a path starts from the file's folder, and is made absolute, since ranks
    start in the attempt's folder; a name is looked up on the node's PATH."""
    return str(resolved_path(folder, python).absolute()) if "/" in python else python


class TrainerSection(Section):
    """Section `trainer`: the program that runs in a trial; docs/trainers.md describes third-party trainers."""

    kind: Kind = Field(
        default=PARLAY,
        description="parlay: the GPT trainer that comes with Parlay. Others: that trainer, with each layout in its own"
        " options. accelerate: a script of yours, as `accelerate launch` starts it. command: any trainer, started by a"
        " command line with placeholders.",
    )
    python: str | None = Field(
        default=None,
        min_length=1,
        max_length=_LONGEST_TEXT,
        description="Python interpreter on the compute nodes, the one that has torch, and 3.10 or later; a path starts"
        " from the search file's folder. Default: the one Parlay runs in.",
    )
    script: str | None = Field(
        default=None,
        min_length=1,
        max_length=_LONGEST_TEXT,
        description=f"Required by {_listed(_requiring('script'))}: their training script, for example pretrain_gpt.py,"
        " where compute nodes can read it.",
    )
    template: _TextOrKeys = Field(
        default=None,
        description=f"{', '.join(_configured())}: a configuration to start from, as a file's path or with its keys."
        " command: the command line, in which {tensor_parallel} and the like stand for each layout's values.",
    )
    arguments: tuple[Annotated[str, Field(min_length=1, max_length=_LONGEST_TEXT)], ...] = Field(
        default=(),
        strict=False,
        description="Arguments added to the script's: data, tokenizer, optimizer."
        " accelerate: all of them, in which {micro_batch_size} and the like stand for each layout's values.",
    )
    patterns: _TextOrKeys = Field(
        default=None,
        description="How the log is read: regular expressions with one group each, by metric (step_time_s,"
        " iteration, loss ...), or the name of a format: " + ", ".join(LOG_FORMATS) + ". observer: the observer times"
        " the optimizer steps. Default: the kind's own; observer with kinds accelerate"
        " and torchtitan.",
    )
    log_rank: _Rank = Field(
        default=None,
        description="The rank whose log reports the steps. Default: the one on which the trainer logs them.",
    )
    observe: bool = Field(
        default=True,
        description="See the second step of every rank through a sitecustomize on its PYTHONPATH: world, parameters,"
        " samples. Without it a trial is unproven unless its log shows them.",
    )
    data: DataSection = DataSection()
    checkpoint: CheckpointSection | None = Field(
        default=None,
        description="Checkpoints of the training that the search is for, which the tokens a day of its recipe count.",
    )

    @field_validator("script")
    @classmethod
    def _resolve_script(cls, path: str | None, info: ValidationInfo) -> str | None:
        return None if path is None else str(resolved_path(folder_from_context(info), path).absolute())

    @field_validator("python")
    @classmethod
    def _resolve_python(cls, python: str | None, info: ValidationInfo) -> str | None:
        return None if python is None else resolved_python(folder_from_context(info), python)

    @model_validator(mode="before")
    @classmethod
    def _read_template(cls, data: Any, info: ValidationInfo) -> Any:
        """A configuration file is read once, so that later changes to it do not change a search."""
        is_file = (
            isinstance(data, Mapping) and data.get("kind") in _configured() and isinstance(data.get("template"), str)
        )
        return {**data, "template": _configuration(folder_from_context(info), data["template"])} if is_file else data

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Self:
        problems = [*self._missing(), *self._without_effect()] or [
            *self._bad_arguments(),
            *self._bad_placeholders(),
            *self._bad_patterns(),
        ]
        if problems:
            raise InputError(*problems)
        if self.is_command_line:
            require_template(self.command_template)
        return self

    @property
    def is_command_line(self) -> bool:
        """True if the template is a command line."""
        return TRAINERS[self.kind].has_command_line

    @property
    def command_template(self) -> str:
        """The template as a command line; InputError for one that is not text."""
        if not isinstance(self.template, str):
            fix = "put it in quotes: unquoted braces begin a mapping in YAML"
            raise InputError.of(
                "type", "is not a command line", rule="text", fix=fix, key="template", value=self.template
            )
        return self.template

    @property
    def texts_with_placeholders(self) -> dict[str, str]:
        """The texts in which placeholders stand for a layout's values, by their key in the search file."""
        if self.is_command_line:
            return {"trainer.template": self.command_template}
        if not TRAINERS[self.kind].placeholder_axes:
            return {}
        return {f"trainer.arguments[{index}]": word for index, word in enumerate(self.arguments)}

    def for_trials(self) -> dict[str, Any]:
        """The section as spec.json has it."""
        if self.kind == PARLAY:
            return {"kind": self.kind, "data": self.data.for_trials()}
        usual = {"observe"} if self.observe else set()
        return self.model_dump(mode="json", exclude_none=True, exclude={"python", "data", "checkpoint", *usual})

    def _missing(self) -> Iterator[Problem]:
        for key in TRAINERS[self.kind].required_keys:
            if getattr(self, key) in (None, {}):
                message, rule = "required, but missing", f"required by kind {self.kind}"
                yield Problem("missing_key", message, rule=rule, fix="add it", key=key)

    def _without_effect(self) -> Iterator[Problem]:
        known = {"kind", "checkpoint", *TRAINERS[self.kind].keys}
        for key, field in type(self).model_fields.items():
            if key not in known and getattr(self, key) != field.default:
                kinds = " and ".join(kind for kind in TRAINER_KINDS if key in TRAINERS[kind].keys)
                yield Problem(
                    "contradiction",
                    f"has no effect with kind {self.kind}",
                    rule=f"{key} belongs to {kinds}",
                    fix="remove it, or change trainer.kind",
                    key=key,
                )

    def _bad_arguments(self) -> Iterator[Problem]:
        error_of = TRAINERS[self.kind].argument_error
        for index, word in enumerate(self.arguments):
            why = None if error_of is None else error_of(option_name(word))
            if why is not None:
                yield Problem(
                    "contradiction",
                    f"gives {word.split('=')[0]}",
                    rule=f"arguments must not set what Parlay sets: {why}",
                    fix="remove it; set it in space, model or measure",
                    key=f"arguments[{index}]",
                    value=word,
                )

    def _bad_placeholders(self) -> Iterator[Problem]:
        arguments = {} if self.is_command_line else self.texts_with_placeholders
        for key, word in arguments.items():
            yield from argument_problems(word, key.removeprefix("trainer."))

    def _bad_patterns(self) -> Iterator[Problem]:
        if isinstance(self.patterns, str) and self.patterns not in LOG_FORMATS:
            rule = "a known format is one of " + ", ".join(LOG_FORMATS)
            fix = did_you_mean(self.patterns, LOG_FORMATS) or "use one of these, or write patterns of your own"
            yield Problem("choice", f"is {self.patterns!r}", rule=rule, fix=fix, key="patterns", value=self.patterns)
        section = self.for_trials()
        if self.kind != PARLAY and is_timed_by_observer(section) and not is_observed(section):
            rule, fix = "the observer times the steps where no pattern does", "give patterns, or set observe to true"
            yield Problem("contradiction", "no observer sees the steps", rule=rule, fix=fix, key="patterns")
        if isinstance(self.patterns, dict):
            yield from pattern_problems({name: str(text) for name, text in self.patterns.items()})


def _configuration(folder: Path, path: str) -> dict[str, Any]:
    """The keys of a trainer's configuration file; InputError where it cannot be read or has none."""
    return dict(read_document(resolved_path(folder, path)).data)
