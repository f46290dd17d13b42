"""Launch scripts and configurations as users have them: files of the corpus that other tests start from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus"


def _text(name: str) -> str:
    return (CORPUS / name).read_text(encoding="utf-8")


MEGATRON_LM, MEGATRON_DEEPSPEED = _text("gpt3_857m.sh"), _text("ds_1.3b.sh")
DEEPSPEED, NANOTRON = _text("ds_zero1.json"), _text("nanotron_llama_1b.yaml")
GPT_NEOX, BRIDGE = _text("neox_llama_7b.yml"), _text("bridge_llama_1b.yaml")
HF_LLAMA = _text("hf_llama_of_8192.json")


def with_key(base: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """The configuration with this value at the dotted key."""
    section, _, inner = name.partition(".")
    return {**base, section: with_key(base.get(section) or {}, inner, value) if inner else value}


def with_keys(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with these values at the dotted keys."""
    config = dict(base)
    for name, value in values.items():
        config = with_key(config, name, value)
    return config
