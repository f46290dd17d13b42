"""Axis: declaration of a layout's field. Standard library only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import combinations
from typing import Any, TypeVar

from search_spaces.engines import ENGINES

Values = Mapping[str, Any]
"""Values of some fields; as a condition it holds for the layouts that have all of them."""


class Kind(Enum):
    """Kind of an axis. The degrees multiply to the world size."""

    DEGREE = "degree"
    COUNT = "count"
    SWITCH = "switch"
    WORD = "word"
    SETTINGS = "settings"
    """Text of the settings that a search varies beside the layout (settings.py)."""


@dataclass(frozen=True)
class Axis:
    """Declaration of a field of Layout. Where `kind` is not given, it follows from the default and the words.

    `key` precedes the value in the layout's key, `label` is short enough for a figure, `unit` is that of a number with
    one. `words` are the values of a WORD; with `parts` it has a word for each set of these, too: its parts joined by +
    in their order. `least` and `most` bound a number; a number whose default is None may be null. `default_text`
    describes a default that depends on the search. Where one of `no_effect` holds, the field's canonical value is the
    default; of `implied`, pairs of a value and its condition, the first that holds gives it. Engines other than
    `engines` run the default only, and a word of `engines_of_word` by its engines only.
    """

    default: Any
    key: str
    label: str
    description: str
    unit: str = ""
    words: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    least: int = 1
    most: int = 10**9
    default_text: str | None = None
    is_derived: bool = False
    no_effect: tuple[Values, ...] = ()
    implied: tuple[tuple[Any, Values], ...] = ()
    engines: tuple[str, ...] = ENGINES
    engines_of_word: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kind: Kind = Kind.COUNT

    def __post_init__(self) -> None:
        if self.words or self.parts or isinstance(self.default, bool):
            object.__setattr__(self, "kind", Kind.SWITCH if isinstance(self.default, bool) else Kind.WORD)
        sets = (chosen for size in range(1, len(self.parts) + 1) for chosen in combinations(self.parts, size))
        object.__setattr__(self, "words", (*map("+".join, sets), *self.words))

    @property
    def single_words(self) -> tuple[str, ...]:
        """Words of one part, and those that have none."""
        return tuple(word for word in self.words if not self.parts or "+" not in word)

    def joined(self, parts: Collection[str]) -> str | None:
        """Word of these parts; None where one is unknown, or there are none."""
        known = [part for part in self.parts if part in parts]
        return "+".join(known) if known and {*known} == {*parts} else None

    def choice_of(self, words: Collection[str], last: str = " or ") -> str:
        """Text that lists words, the parts of joined ones as such."""
        single = [word for word in words if word in self.single_words]
        if len(single) == len(words):
            return _listed(single, last)
        parts, alone = ([word for word in single if (word in self.parts) is has] for has in (True, False))
        joined = f"{_listed(parts, last)}, also several joined by + in this order"
        return f"{joined}; {_listed(alone, last)}" if alone else joined

    def values_of(self, engine: str) -> tuple[Any, ...] | None:
        """Values that an engine may have, None where that is any."""
        if engine not in self.engines:
            return (self.default,)
        words = tuple(word for word in self.words if engine in self.engines_of_word.get(word, ENGINES))
        return None if words == self.words else words

    @property
    def is_number(self) -> bool:
        return self.kind in (Kind.DEGREE, Kind.COUNT)

    @property
    def heading(self) -> str:
        """The label, with the unit in brackets."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def canonical_values(self) -> tuple[tuple[Any, Values], ...]:
        """Pairs of a canonical value and its condition; the first that holds counts."""
        return (*((self.default, when) for when in self.no_effect), *self.implied)

    def key_part(self, value: Any) -> str:
        """The value in the layout's key."""
        return f"{self.key}{int(value) if self.kind is Kind.SWITCH else value}"


def _listed(words: list[str], last: str) -> str:
    return last.join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


T = TypeVar("T")


def axis_field(default: T, **declared: Any) -> T:
    """Dataclass field that declares this axis."""
    return field(default=default, metadata={"axis": Axis(default, **declared)})
