"""Choice of experts in the parity cases: rounding does not change it, so that layouts are compared on the same one."""

from __future__ import annotations

from typing import Any

import pytest

from trials.diagnostics.parity_cases import named_case
from trials.diagnostics.parity_models import SHAPES
from trials.diagnostics.selftest import Case

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(300)]

WITH_EXPERTS = [name for name, model in SHAPES.items() if model.num_experts is not None]
LEAST_RATIO = 10
"""Least distance between the logits of the last chosen and the first other expert, over what rounding changes of a
logit."""


def routed(case: Case) -> tuple[list[Any], float]:
    """Logits of all routers in all steps of the plain GPT, and the least distance at which one chose."""
    import torch
    from torch.nn.modules.module import register_module_forward_hook

    from trials.train.parallel.device import Device
    from trials.train.selftest import training
    from trials.train.selftest.reference import PlainExperts

    logits, margins = [], []

    def record(module: Any, inputs: tuple[Any, ...], _: Any) -> None:
        if isinstance(module, PlainExperts):
            router = module.router
            logits.append(torch.nn.functional.linear(inputs[0], router.weight, router.bias).detach())
            margins.append(module.smallest_margin)

    hook = register_module_forward_hook(record)
    try:
        training.train_reference(case, Device(torch.device("cpu")))
    finally:
        hook.remove()
    return logits, min(margins)


@pytest.mark.parametrize("shape", WITH_EXPERTS)
def test_routers_choose_at_distances_far_above_what_rounding_changes(shape, monkeypatch, record_property):
    from trials.train.selftest import training

    case, plain = named_case("margins", shape), training.PlainGpt
    rounded, _ = routed(case)
    monkeypatch.setattr(training, "PlainGpt", lambda model: plain(model).double())
    exact, margin = routed(case)
    pairs = zip(rounded, exact, strict=True)
    difference = max((one.double() - other).abs().max().item() for one, other in pairs)
    record_property("margin", margin)
    record_property("difference", difference)
    assert margin > LEAST_RATIO * difference
