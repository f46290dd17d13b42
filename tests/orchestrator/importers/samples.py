"""Launch scripts and configurations as users have them: files of the corpus that other tests start from."""

from __future__ import annotations

from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def _text(name: str) -> str:
    return (CORPUS / name).read_text(encoding="utf-8")


MEGATRON_LM, MEGATRON_DEEPSPEED = _text("gpt3_857m.sh"), _text("ds_1.3b.sh")
DEEPSPEED, NANOTRON = _text("ds_zero1.json"), _text("nanotron_llama_1b.yaml")
GPT_NEOX, BRIDGE = _text("neox_llama_7b.yml"), _text("bridge_llama_1b.yaml")
HF_GPT2, HF_LLAMA, HF_GPT_NEOX = map(_text, ("hf_gpt2_small.json", "hf_llama_of_8192.json", "hf_gpt_neox_3b.json"))
