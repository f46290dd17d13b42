"""What the forked ranks of the parity tests run. Arguments and answers are JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from trials.ranks.environment import RankEnvironment

from search_spaces.layout import Layout
from search_spaces.model_shape import ModelShape
from tests.trials.train.reference import PlainGpt, train_plainly
from trials.folder import AttemptFolder
from trials.metrics import StepPhase
from trials.train import deepspeed_engine, gradients, layers
from trials.train.data import SyntheticData
from trials.train.device import Device, select_attention_kernel
from trials.train.engine import Training, build_engine
from trials.train.exchange import RankStep, exchange_steps
from trials.train.layers import TensorRanks
from trials.train.loop import step_record
from trials.train.model import Running, Stage, StagePlan
from trials.train.optimizer import Optimisation
from trials.train.weights import WeightSource
from trials.train.world import join_world
from trials.trial import MeasureRules, TrialKind, TrialSpec

STEPS = 10
SEED = 7
CPU = torch.device("cpu")
# With AdamW's usual epsilon of 1e-8 a gradient that is zero but for rounding moves its weight as far as a real one, and
# two orders of summation drift apart within ten steps; the plain GPT alone does so between float and double.
SETTINGS = Optimisation(learning_rate=3e-3, epsilon=1e-5, max_grad_norm=0.5)


def train_reference(arguments: Mapping[str, Any], folder: Path) -> dict[str, list[float]]:
    """Ten steps of the plain GPT from the trial program's initial weights, on the same global batches."""
    model = ModelShape.from_json(arguments["model"])
    layout = Layout.from_json(arguments["layout"])
    whole = StagePlan.of(model, 0, 1)
    gpt = PlainGpt(model)
    gpt.copy_weights(Stage(model, whole, TensorRanks(), WeightSource(SEED, CPU), Running()))
    steps = [_micro_batches(model, layout, step) for step in range(STEPS)]
    settings = SETTINGS.learning_rate, SETTINGS.epsilon, SETTINGS.max_grad_norm
    losses, norms = train_plainly(gpt, steps, *settings, autocast_bf16=layout.precision == "bf16")
    return {"losses": losses, "grad_norms": norms}


def train_layout(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Some steps of a layout by its engine. `without` names a reduction or a guard that is switched off."""
    used = switch_off(arguments["without"]) if arguments.get("without") else []
    spec = spec_of(arguments)
    device = Device(CPU)
    select_attention_kernel(spec.layout.attention_kernel)
    world = join_world(spec, AttemptFolder(folder), RankEnvironment.read(os.environ), device)
    engine = build_engine(Training(spec.model, spec.layout, WeightSource(SEED, CPU), SETTINGS), world)
    data = SyntheticData(spec.model, spec.layout, world.at.data, CPU)
    records = []
    for step in range(arguments["steps"]):
        result = engine.train_step(data.batch(step))
        loss = float("nan") if result.loss is None else float(result.loss)
        view = RankStep(1.0, 1.0, loss, float(result.grad_norm), 0, 0, 0, 0)
        records.append(step_record(spec, step, StepPhase.MEASURED, exchange_steps(view, CPU)))
    return {
        "losses": [r.loss for r in records],
        "grad_norms": [r.grad_norm for r in records],
        "parameters": engine.counts().parameters,
        "micro_batches": engine.counts().micro_batches,
        "switched_off": len(used),
    }


def switch_off(name: str) -> list[str]:
    """Make the reduction or guard of this name do nothing; the list grows each time it would have been used."""
    used: list[str] = []
    if name in _GUARDS:
        _GUARDS[name](lambda *_: used.append(name))
        return used
    original = layers.reduce_in_place

    def reduce_others(reduction, tensor, group):
        if reduction == name and group is not None:
            used.append(name)
        else:
            original(reduction, tensor, group)

    layers.reduce_in_place = gradients.reduce_in_place = reduce_others
    return used


def _without_parameter_marks(instead) -> None:
    deepspeed_engine._mark_parameters = instead


def _without_clipping(instead) -> None:
    deepspeed_engine._DeepSpeedEngine._clip = lambda self, *_: (
        instead(),
        setattr(self, "_clipped_norm", torch.ones(())),
    )


def _without_tied_gradients(instead) -> None:
    deepspeed_engine._StagePipeline.get_tied_weights_and_groups = lambda self: (instead(), [])[1]


_GUARDS = {
    "deepspeed_parameter_marks": _without_parameter_marks,
    "deepspeed_clipping": _without_clipping,
    "deepspeed_tied_gradients": _without_tied_gradients,
}


def spec_of(arguments: Mapping[str, Any]) -> TrialSpec:
    layout = Layout.from_json(arguments["layout"]).canonical()
    return TrialSpec(
        search_id="parity-aaaaaa",
        trial="t0001",
        attempt="a1",
        nonce="0" * 32,
        kind=TrialKind.SEARCH,
        layout=layout,
        model=ModelShape.from_json(arguments["model"]),
        global_batch_size=layout.global_batch_size,
        num_gpus=layout.num_gpus,
        gpus_per_node=layout.num_gpus,
        accelerator="cpu",
        measure=MeasureRules(),
        seed=SEED,
    )


def _micro_batches(model: ModelShape, layout: Layout, step: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The global batch of a step, cut as one data rank alone would."""
    first = step * layout.global_batch_size
    batch = SyntheticData(model, layout, 0, CPU).samples(torch.arange(first, first + layout.global_batch_size))
    size = layout.micro_batch_size
    return list(zip(batch.ids.split(size), batch.targets.split(size), strict=True))
