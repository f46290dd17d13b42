"""Data for torchtitan's own program: a tokenizer of words, and texts of them."""

from __future__ import annotations

import json
from pathlib import Path


def write_data(folder: Path, vocab_size: int) -> Path:
    """A tokenizer of words and a few texts of them."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    names = [f"w{number}" for number in range(vocab_size - len(special))]
    vocabulary = {name: index for index, name in enumerate([*names, *special.values()])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    for name in ("tokenizer", "texts"):
        (folder / name).mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(special))
    texts = (" ".join(names[(7 * text + word) % len(names)] for word in range(200)) for text in range(50))
    (folder / "texts" / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder
