"""Long options of command lines, as in training scripts. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest


def option_name(word: str) -> str:
    """`--global_batch_size=8` is global-batch-size; "" for a word that is not a long option."""
    return word[2:].split("=")[0].replace("_", "-") if word.startswith("--") else ""


def option_names(words: Iterable[str]) -> frozenset[str]:
    return frozenset(filter(None, map(option_name, words)))


def option_value(words: Sequence[str], name: str) -> str | None:
    """The last value of an option, of the same word or the next; None without one."""
    found = None
    for word, following in zip_longest(words, words[1:]):
        if option_name(word) == name:
            _, is_joined, value = word.partition("=")
            found = value if is_joined else following
    return found
