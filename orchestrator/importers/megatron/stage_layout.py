"""Pipeline layout of Megatron's core: the modules of every model chunk, such as `Ettt|tttt|tttL`.

megatron/core/transformer/pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.importers.settings import Settings
from search_spaces.errors import InputError
from search_spaces.layouts.pipeline_split import GivenSplit

LAYOUT = "pipeline_model_parallel_layout"
_LETTERS: Mapping[str, str] = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
_LONGEST = 10_000
"""Letters of a text whose groups are repeated; layers are repeated up to 999 times."""


def split_fields(keys: Settings, stages: int | None) -> dict[str, Any]:
    """The fields of the core that say the same as the pipeline layout; None for each without a number of stages.

    InputError for a layout that is none of a search file's.
    """
    names = ("virtual_pipeline_model_parallel_size", *_COUNTED, *_ENDS)
    texts = texts_of(keys.value(LAYOUT))
    if rule := _broken_rule(texts, stages, keys.count("num_layers")):
        raise InputError(keys.problem(LAYOUT, rule))
    if texts is None or stages is None:
        return dict.fromkeys(names)
    split = GivenSplit.found(_layers(texts), stages)
    assert split is not None
    counted = (part in split.split for part in ("embedding", "loss"))
    return dict(zip(names, (len(texts) // stages, *counted, split.first, split.last), strict=True))


_COUNTED = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
_ENDS = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")


def _broken_rule(texts: list[str] | None, stages: int | None, num_layers: int | None) -> str | None:
    """The first rule that a layout breaks."""
    if texts is None or not re.fullmatch("E[^EL]*L", "".join(texts)):
        return "the text has E, then a t for each layer and an m for each further token's, then L, and | between chunks"
    layers = _layers(texts)
    if stages and len(layers) % stages:
        return "every pipeline stage has as many chunks of the layout"
    if num_layers not in (None, sum(layers)):
        return "the layout has as many t as the model has layers"
    if 0 in layers:
        return "every model chunk has a layer: none has the embedding, the loss or further tokens alone"
    if "m" in "".join(texts[:-1]):
        return "layers of further tokens are in the chunk of the loss"
    if stages and GivenSplit.found(layers, stages) is None:
        return (
            "all chunks have the same number of layers, but for pipeline_split, which counts the embedding or the loss"
            " as one, or for the first and the last stage, whose layers are first_stage_layers and last_stage_layers"
        )
    return None


def texts_of(value: Any) -> list[str] | None:
    """Letters of the modules of each chunk, of text or of lists of names; None for another value."""
    if isinstance(value, list):
        chunks = (chunk if isinstance(chunk, list) else [chunk] for chunk in value)
        value = "|".join("".join(_LETTERS.get(str(name), "?") for name in chunk) for chunk in chunks)
    text = _repeated(r"\(([^)]+)\)\*(\d{1,3})", str(value).replace(",", ""))
    text = _repeated(r"([^*|])\*(\d{1,3})", text) if len(text) <= _LONGEST else ""
    return text.split("|") if re.fullmatch("[EtmL|]+", text) else None


def _repeated(pattern: str, text: str) -> str:
    return re.sub(pattern, lambda found: found[1] * int(found[2]), text)


def _layers(texts: Sequence[str]) -> tuple[int, ...]:
    return tuple(text.count("t") for text in texts)
