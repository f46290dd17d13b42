"""Ready-made models, clusters and searches that come with Parlay, and aliases of accelerators."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from search_spaces.errors import InputError, choice_fix, did_you_mean
from search_spaces.hardware.cluster import ACCELERATORS, Accelerator
from search_spaces.schema.yaml_document import Document, parse_document

MODELS = "models"
CLUSTERS = "clusters"
SEARCHES = "searches"
TWINS = "searches/twins"
"""Ready-made searches scaled down to a few CPU ranks; benchmarks/gallery.py runs them all."""


def preset_names(kind: str) -> list[str]:
    """The names of all presets of a kind (`models`, `clusters`, `searches`), sorted."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _folder(kind).iterdir() if entry.name.endswith(".yaml"))


def preset_text(kind: str, name: str) -> str:
    """A preset's YAML as written, with comments; InputError for an unknown name."""
    known = preset_names(kind)
    if name not in known:
        raise InputError.of(
            "unknown_preset",
            f"no preset is called {name!r}",
            rule=f"the {kind} that come with Parlay: " + ", ".join(known),
            fix=did_you_mean(name, known) or "choose one of these, or write the fields out",
            value=name,
        )
    return (_folder(kind) / f"{name}.yaml").read_text(encoding="utf-8")


def preset(kind: str, name: str) -> Document:
    """A preset as data; InputError for an unknown name."""
    return parse_document(preset_text(kind, name).encode(), f"{kind}/{name}.yaml", Path())


def preset_search_path(name: str) -> Path | None:
    """The file of the ready-made search of this name, `twins/NAME` for one scaled down; None for an unknown name."""
    known = [*preset_names(SEARCHES), *(f"twins/{twin}" for twin in preset_names(TWINS))]
    return Path(str(_folder(SEARCHES) / f"{name}.yaml")) if name in known else None


def accelerator_named(name: str) -> Accelerator:
    """The accelerator of this name or alias; InputError where it is unknown or ambiguous."""
    word = re.sub(r"[ _]+", "-", name.strip().lower())
    word = re.sub(r"^(nvidia-|amd-)?(tesla-|instinct-)?|-(sxm\d*|hbm3|dgxs?|ac)(?=-|$)", "", word)
    word = _ALIASES.get(word, word)
    if word not in ACCELERATORS:
        raise InputError.of(
            "accelerator",
            f"no accelerator is called {name!r}",
            rule="one of " + ", ".join(ACCELERATORS),
            fix=choice_fix(word, ACCELERATORS),
            value=name,
        )
    return ACCELERATORS[word]


# Data sheets, tables and nvidia-smi name the same device differently. Names that do not say the memory are left out
# where it differs (V100, A100, GH200): half the memory is a different search. nvidia-smi counts the host's memory of a
# GH200.
_ONE_SIZE = ("t4", "a40", "h100", "h200", "b200", "b300", "gb200", "gb300", "mi300x", "mi325x", "mi350x", "mi355x")
_ALIASES = {
    **{name.partition("-")[0]: name for name in ACCELERATORS if name.partition("-")[0] in _ONE_SIZE},
    **dict.fromkeys(("mi250x", "mi250x-gcd"), "mi250x-gcd-64gb"),
    **dict.fromkeys(("gh200-480gb", "gh200-120gb"), "gh200-96gb"),
}


def _folder(kind: str):
    return files("search_spaces") / kind
