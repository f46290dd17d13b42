"""Parlay's own trainer (trials/train), which needs no supervisor. Standard library only."""

from __future__ import annotations

import json

from search_spaces.rules.trainer_rules import OWN_RULES
from trials.trainers.base import LayoutExport, Trainer
from trials.trainers.common.deepspeed_config import ds_config
from trials.trainers.common.recipe import ranks_per_node, with_variables
from trials.trial import TrialSpec

GRADIENT_CLIPPING = 1.0
"""Maximum gradient norm in ds_config.json, the same as in Parlay's own trainer."""


def _files(spec: TrialSpec) -> dict[str, str]:
    config = ds_config(spec.layout, GRADIENT_CLIPPING, spec.model)
    return {"ds_config.json": json.dumps(config, indent=2, allow_nan=False) + "\n"}


def _start(spec: TrialSpec) -> str:
    return (
        f"{with_variables(spec)}deepspeed --num_nodes {spec.num_nodes} --num_gpus {ranks_per_node(spec)} YOUR_SCRIPT"
        " --deepspeed --deepspeed_config recipe/ds_config.json"
    )


def _preload(spec: TrialSpec) -> str:
    return f"{spec.layout.engine}/{'cpu' if spec.accelerator == 'cpu' else 'gpu'}"


TRAINER = Trainer(
    rules=OWN_RULES,
    optional_keys=("python", "data"),
    export=LayoutExport(
        *("deepspeed", "DeepSpeed", "deepspeed", OWN_RULES["deepspeed"], _files, _start),
        # Settings that DeepSpeed would silently ignore, and compilation, which its configuration does not have.
        left_out={"overlap_comm": False, "bucket_mib": None, "torch_compile": False},
    ),
    preload=_preload,
)
