"""Long options of command lines, as in training scripts. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable


def option_name(word: str) -> str:
    """`--global_batch_size=8` is global-batch-size; "" for a word that is not a long option."""
    return word[2:].split("=")[0].replace("_", "-") if word.startswith("--") else ""


def option_names(words: Iterable[str]) -> frozenset[str]:
    return frozenset(filter(None, map(option_name, words)))
