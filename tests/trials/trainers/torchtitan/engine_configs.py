"""Exported modules as torchtitan loads and saves them, beside the configuration of the engine that measures the layout.

    python -m tests.trials.trainers.torchtitan.engine_configs FOLDER FOUND.json

Each folder inside FOLDER has spec.json and, in recipe/, the export. A process of its own: it patches torch for a CPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.oracles.configs import fields_of, prepare_torchtitan, products_of
from trials.trial import TrialSpec


def main() -> None:
    prepare_torchtitan()
    folders = sorted(path for path in Path(sys.argv[1]).iterdir() if path.is_dir())
    Path(sys.argv[2]).write_text(json.dumps({folder.name: found(folder) for folder in folders}))


def found(folder: Path) -> dict[str, Any]:
    """The saved configuration, the recipe of each product, and dotted names of the fields in which the two differ."""
    from torchtitan.config import ConfigManager
    from torchtitan.distributed import ParallelDims

    spec = TrialSpec.from_json(json.loads((folder / "spec.json").read_text()))
    words = ["--module", f"{folder.name}.recipe.torchtitan_config", "--config", "parlay"]
    sys.path.insert(0, str(folder.parent))
    config = ConfigManager().parse_args(words)
    ParallelDims.from_config(config.parallelism, spec.num_gpus)
    return {
        "saved": json.dumps(config.to_dict()),
        "products": products_of(config.model_spec.model),
        "differing": sorted(differing_fields(fields_of(config), fields_of(of_the_engine(spec)))),
    }


def of_the_engine(spec: TrialSpec) -> Any:
    from trials.train.engines.engine import TrainingConfig
    from trials.train.engines.optimizer import OptimizerConfig
    from trials.train.engines.torchtitan_engine import trainer_config
    from trials.train.model.initial_weights import WeightSource

    weights = WeightSource(spec.seed, torch.device("cpu"))
    return trainer_config(TrainingConfig(spec.model, spec.layout, weights, OptimizerConfig()))


def differing_fields(one: Any, other: Any, prefix: str = "") -> set[str]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        names = {*one, *other}
        inner = (differing_fields(one.get(name), other.get(name), f"{prefix}.{name}") for name in names)
        return set().union(*inner)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other) and prefix.endswith("layers"):
        return set().union(*(differing_fields(a, b, prefix) for a, b in zip(one, other, strict=True)))
    return set() if one == other else {prefix.removeprefix(".")}


if __name__ == "__main__":
    main()
