"""Forward passes of pretrain_gpt.py's first step, by the modules' classes, as a file in the attempt's folder."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from torch.nn.modules.module import register_module_forward_hook


def count() -> None:
    """Count in every rank, those in the backward pass included."""
    from megatron.training import training

    passes: Counter[str] = Counter()
    register_module_forward_hook(lambda module, *_: passes.update([type(module).__name__]))
    train_step, path = training.train_step, file_of(Path(), int(os.environ["RANK"]))

    def counted_step(*arguments: Any, **options: Any) -> Any:
        passes.clear()
        result = train_step(*arguments, **options)
        if not path.exists():
            path.write_text(json.dumps(passes))
        return result

    training.train_step = counted_step


def file_of(folder: Path, rank: int) -> Path:
    return folder / f"passes-{rank}.json"
