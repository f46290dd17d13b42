"""Pipeline layout of Megatron's core: the modules of every model chunk, such as `Ettt|tttt|tttL`.

megatron/core/transformer/pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from orchestrator.importers.settings import Settings, ValueRule, ValueRules
from search_spaces.layouts.layout import AXES
from search_spaces.layouts.pipeline_split import GivenSplit

_LETTERS: Mapping[str, str] = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
_LONGEST = 10_000
"""Letters of a text whose groups are repeated; layers are repeated up to 999 times."""

_IS_TEXT = "the text has E, then a t for each layer and an m for each further token's, then L, and | between chunks"
_DIVIDES = "every pipeline stage has as many chunks of the layout"
_HAS_LAYERS = "the layout has as many t as the model has layers"
_NO_EMPTY_CHUNK = "every model chunk has a layer: none has the embedding, the loss or further tokens alone"
_FURTHER_TOKENS = "layers of further tokens are in the chunk of the loss"
_IS_A_SPLIT = (
    "all chunks have the same number of layers, but for pipeline_split, which counts the embedding or the loss as one,"
    " or for the first and the last stage, whose layers are first_stage_layers and last_stage_layers"
)

Count = Callable[[Settings], "int | None"]


class StageLayout:
    """Readers and rules of the setting of this name, beside those of the number of stages and of layers."""

    def __init__(self, name: str, stages: Count, num_layers: Count):
        self._name, self._stages, self._num_layers = name, stages, num_layers

    def is_given(self, settings: Settings) -> bool:
        return settings.has(self._name)

    def chunks(self, settings: Settings) -> int | None:
        """Model chunks a stage."""
        texts, stages = texts_of(settings.value(self._name)), self._stages(settings)
        return len(texts) // stages if texts and stages else None

    def said(self, settings: Settings, name: str) -> Any:
        """A value of the split, by its name; None for what an even one gives, which is Megatron's own."""
        split, stages = None, self._stages(settings)
        if stages and (texts := texts_of(settings.value(self._name))):
            split = GivenSplit.found(_layers(texts), stages)
        value = None if split is None else getattr(split, name)
        return None if value in ("even", AXES["pipeline_split"].default) else value

    @property
    def rules(self) -> ValueRules:
        """Rules of a layout that a search file expresses; of one that breaks several, the first is told."""
        rules = (_IS_TEXT, _DIVIDES, _HAS_LAYERS, _NO_EMPTY_CHUNK, _FURTHER_TOKENS, _IS_A_SPLIT)
        return tuple(ValueRule(self._name, partial(self._keeps, rule=rule), rule) for rule in rules)

    def _keeps(self, settings: Settings, rule: str) -> bool:
        return self._broken(settings) != rule

    def _broken(self, settings: Settings) -> str | None:
        texts = texts_of(settings.value(self._name))
        if texts is None or not re.fullmatch("E[^EL]*L", "".join(texts)):
            return _IS_TEXT
        layers, stages, num_layers = _layers(texts), self._stages(settings), self._num_layers(settings)
        if stages and len(layers) % stages:
            return _DIVIDES
        if num_layers not in (None, sum(layers)):
            return _HAS_LAYERS
        if 0 in layers:
            return _NO_EMPTY_CHUNK
        if "m" in "".join(texts[:-1]):
            return _FURTHER_TOKENS
        return _IS_A_SPLIT if stages and GivenSplit.found(layers, stages) is None else None


def texts_of(value: Any) -> list[str] | None:
    """Letters of the modules of each chunk, of text or of lists of names; None for another value."""
    if isinstance(value, list):
        value = "|".join("".join(_LETTERS.get(str(name), "?") for name in [*chunk]) for chunk in value)
    text = _repeated(r"\(([^)]+)\)\*(\d{1,3})", str(value).replace(",", ""))
    text = _repeated(r"([^*|])\*(\d{1,3})", text) if len(text) <= _LONGEST else ""
    return text.split("|") if re.fullmatch("[EtmL|]+", text) else None


def _repeated(pattern: str, text: str) -> str:
    return re.sub(pattern, lambda found: found[1] * int(found[2]), text)


def _layers(texts: list[str]) -> tuple[int, ...]:
    return tuple(text.count("t") for text in texts)
