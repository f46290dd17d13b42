"""Rule: a row that says which values no layout may have together, and why. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from search_spaces.engines import ENGINE_PROFILES, FEATURES, OWN_ENGINES
from search_spaces.errors import Problem
from search_spaces.layouts.layout import AXES, Layout
from search_spaces.model_shape import MODEL_DEFAULTS, RESOLVED_FIELDS, ModelShape, field_of_feature

Clash = Callable[[Any], Any] | tuple[Any, ...]
"""Values of a field that a rule is about: these, or those for which a function is true."""
Clashes = Mapping[str, Clash]


class OfModel(NamedTuple):
    """All that an engine's rules read beside the layout. Rules of every engine read the whole Workload."""

    model: ModelShape


@dataclass(frozen=True)
class Rule:
    """Refusal of layouts whose values of `fields` meet `where`, beside these values of others.

    Fields are the layout's, `model.NAME`, `cluster.NAME` or `constraints.NAME` of the workload; of the model it is the
    value that counts. The finding has the fields and the values beside them, or is what `told` says of these values,
    None where the rule is kept; it leaves out `only`, which are conditions, too. `{engine}` in the sentence and a
    field's name in the fix stand for the layout's value. The name, by default the first field's, is a problem's code,
    behind the owner's where the rule has one.
    """

    fields: tuple[str, ...]
    where: Callable[..., Any]
    sentence: str
    fix: str
    beside: Clashes = field(default_factory=dict)
    name: str = ""
    only: Clashes = field(default_factory=dict)
    told: Callable[[Mapping[str, Any], Any], str | None] = lambda found, task: finding(found)

    @cached_property
    def code(self) -> str:
        return self.name or next(iter((*self.fields, *self.beside))).removeprefix("model.")

    @cached_property
    def _clashes(self) -> Clashes:
        return {**self.only, **self.beside}

    @property
    def axes(self) -> list[str]:
        """Axes that decide whether a layout keeps the rule."""
        return [name for name in (*self.fields, *self._clashes) if name in AXES]

    def concerns(self, values_of: Callable[[str], Collection[Any]]) -> bool:
        """False where none of these values of an axis clashes, so that no layout with them breaks the rule."""
        of_axes = ((name, clash) for name, clash in self._clashes.items() if name in AXES)
        return all(any(_is_in(value, clash) for value in values_of(name)) for name, clash in of_axes)

    def problem(self, layout: Layout, task: Any, owner: str = "") -> Problem | None:
        """The problem of a layout in canonical form; None where it keeps the rule."""
        others = {}
        for name, clash in self._clashes.items():
            others[name] = _reader(name)(layout, task)
            if not _is_in(others[name], clash):
                return None
        found = {name: _reader(name)(layout, task) for name in self.fields}
        if not self.where(*found.values()):
            return None
        found |= {name: others[name] for name in self.beside}
        if (message := self.told(found, task)) is None:
            return None
        named = {name.removeprefix("model."): value for name, value in found.items()}
        code = f"{owner}.{self.code}" if owner else self.code
        return Problem(code, message, self.sentence.replace("{engine}", layout.engine), self.fix.format(**named))


def violations(rules: Iterable[Rule], layout: Layout, task: Any, owner: str = "") -> Iterator[Problem]:
    """The problem with every one of these rules that a layout in canonical form violates."""
    return (problem for rule in rules if (problem := rule.problem(layout, task, owner)) is not None)


EngineRules = Mapping[str, tuple[Rule, ...]]
"""Rules of each engine of a trainer."""


def clashes(
    field: str,
    others: Clashes,
    sentence: str,
    *,
    values: Clash | None = None,
    fix: str = "",
    name: str = "",
    only: Clashes = MappingProxyType({}),
) -> Rule:
    """Rule that a field does not have `values`, by default all but its default, beside these values of all `others`.

    The fix is to change an axis of `others` to a value that does not clash, where it has few, or else the field itself.
    """
    wrong = is_not(_DEFAULTS[field.removeprefix("model.")]) if values is None else values
    return Rule((), always, sentence, fix or _way_out(field, others), {field: wrong, **others}, name, only)


@cache
def _reader(name: str) -> Callable[[Layout, Any], Any]:
    section, _, own = name.partition(".")
    if name in _COUNTED:
        return _COUNTED[name]
    if section == "model":
        read = attrgetter(RESOLVED_FIELDS.get(own, own))
        return lambda layout, task: read(task.model)
    of_task = attrgetter(own if section == "constraints" else name)
    return (lambda layout, task: of_task(task)) if own else (lambda layout, task: of_task(layout))


RANKS_OF_DOMAIN, RANKS_OF_STAGE = "ranks of a link domain", "ranks of a stage and replica"
MLP_LAYERS = "layers with an MLP"
_COUNTED: Mapping[str, Callable[[Layout, Any], Any]] = {
    RANKS_OF_DOMAIN: lambda layout, task: task.cluster.nodes_per_domain(layout.num_nodes) * task.cluster.gpus_per_node,
    RANKS_OF_STAGE: lambda layout, task: layout.ranks_of_stage,
    MLP_LAYERS: lambda layout, task: task.model.num_layers - task.model.num_expert_layers,
}
"""Numbers that are no field of the layout, the model or the cluster."""


def finding(values: Mapping[str, Any]) -> str:
    """The values of fields as a sentence's part: the first, with the others."""
    (name, value), *others = ((_shown(name), value) for name, value in values.items())
    beside = " and ".join(f"{other} {_format(each)}" for other, each in others)
    return f"{name} is {_format(value)}" + (f" with {beside}" if beside else "")


def is_not(*values: Any) -> Callable[[Any], bool]:
    """True for all but these values."""
    return lambda value: value not in values


def at_least(least: int) -> Callable[[Any], bool]:
    """True for a number from `least` on; a field without a value has none."""
    return lambda value: value is not None and value >= least


def has_part(*parts: str) -> Callable[[str], bool]:
    """True for a joined word with one of these parts."""
    return lambda word: not {*parts}.isdisjoint(word.split("+"))


def is_given(value: Any) -> bool:
    return value is not None


def always(*values: Any) -> bool:
    return True


def _is_in(value: Any, clash: Clash) -> Any:
    return clash(value) if callable(clash) else value in clash


def _way_out(name: str, others: Clashes) -> str:
    instead = [f"set {n} to {_choice(n, few)}" for n, clash in others.items() if (few := _without(n, clash))]
    default = _DEFAULTS[name.removeprefix("model.")]
    is_left_out = default is None or name.startswith("model.")
    own = f"leave {_shown(name)} out" if is_left_out else f"set {name} to {_format(default)}"
    return ", or ".join([*instead, own])


def _shown(name: str) -> str:
    """A field's key in a search file, where what trains stands beside the model."""
    own = name.removeprefix("model.")
    return own if own in OF_TASK else name


def _without(name: str, clash: Clash) -> tuple[Any, ...]:
    """Values of an axis that do not clash; none where there are many."""
    axis = AXES.get(name)
    if axis is None or axis.parts or (axis.is_number and axis.most > _FEW):
        return ()
    every = range(axis.least, axis.most + 1) if axis.is_number else axis.words or (False, True)
    found = tuple(value for value in every if not _is_in(value, clash))
    return found if len(found) <= _FEW else ()


_FEW = 4
_DEFAULTS: Mapping[str, Any] = {**{name: axis.default for name, axis in AXES.items()}, **MODEL_DEFAULTS}


def _choice(name: str, values: tuple[Any, ...]) -> str:
    is_joined = name in AXES and AXES[name].parts
    return AXES[name].choice_of(values) if is_joined else " or ".join(map(_format, values))


def _format(value: Any) -> str:
    return "null" if value is None else str(getattr(value, "name", value)).lower()


# -- rows of what an engine has


def allows_only(values: Mapping[str, tuple[Any, ...]], *, owner: str = "{engine}") -> tuple[Rule, ...]:
    """Rules that allow only these values of fields; `owner` is the name in the message."""
    choices = [(name, allowed, _choice(name, allowed)) for name, allowed in values.items()]
    return tuple(
        clashes(name, {}, f"{owner} supports {name} {choice}", values=is_not(*allowed), fix=f"set {name} to {choice}")
        for name, allowed, choice in choices
    )


def engine_limits(engine: str, given: Mapping[str, tuple[Any, ...]] = MappingProxyType({})) -> tuple[Rule, ...]:
    """Rules that allow only these values, and of each other axis those that it declares for the engine."""
    every = {name: axis.values_of(engine) for name, axis in AXES.items()} | {**given}
    return allows_only({name: values for name, values in every.items() if values is not None})


def builds_only(features: tuple[str, ...], owner: str) -> tuple[Rule, ...]:
    """Rules that allow only these of the model's features; `owner` is the name in the message."""
    return tuple(_rows_of_features(features, owner))


def _rows_of_features(known: tuple[str, ...], owner: str) -> Iterator[Rule]:
    for name in FEATURES:
        if name == "document_length" and name not in known:
            engines = [engine for engine in OWN_ENGINES if name in ENGINE_PROFILES[engine].model_features]
            yield Rule(
                ("model.document_length",),
                is_given,
                f"with {owner} tokens attend to their whole sequence",
                f"set trainer.data.attention_mask to causal, or use engine {' or '.join(engines)}",
                told=lambda found, task: "tokens attend to their own document",
            )
        elif name in OF_TASK and name not in known:
            engines = [engine for engine in OWN_ENGINES if name in ENGINE_PROFILES[engine].model_features]
            yield Rule(
                (f"model.{field_of_feature(name)}",),
                always,
                f"{owner} trains no {OF_TASK[name]}",
                f"remove {field_of_feature(name)}, or use engine {' or '.join(engines)}",
                name=name,
                only={"model.features": has_feature(name)},
            )
        elif name not in known:
            yield Rule(
                (f"model.{field_of_feature(name)}",),
                always,
                f"{owner} builds models without it" + (f"; it builds {', '.join(known)}" if known else ""),
                f"leave model.{field_of_feature(name)} out, or use another engine",
                name=name,
                only={"model.features": has_feature(name)},
            )


OF_TASK: Mapping[str, str] = {
    "adapters": "adapters",
    "qlora": "adapters beside weights in 4 bits",
    "trainable": "single modules of a model",
}
"""Features that a search file's task gives a model, by what an engine without them does not train."""


def has_feature(feature: str) -> Callable[[tuple[str, ...]], bool]:
    return lambda features: feature in features


def activations(gated: tuple[str, ...], plain: tuple[str, ...], *, owner: str = "{engine}") -> Rule:
    """Rule that allows only these activations of an MLP with a gate, and of one without; `owner` is the name in the
    message."""
    return Rule(
        ("model.activation", "model.gated_mlp"),
        lambda activation, is_gated: activation not in (gated if is_gated else plain),
        f"{owner} has {' or '.join(gated)} in an MLP with a gate, {' or '.join(plain)} in one without",
        "use another model.activation, or another engine",
    )
