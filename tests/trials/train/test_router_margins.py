"""Choice of experts in the parity cases: rounding does not change it, so that layouts are compared on the same one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from trials.diagnostics.parity_cases import named_case
from trials.diagnostics.parity_models import SHAPES

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(300)]

WITH_EXPERTS = [name for name, model in SHAPES.items() if model.num_experts is not None]
LEAST_RATIO = 10
"""Least distance between the logits of the last chosen and the first other expert, over what rounding changes of a
logit."""


@dataclass
class Routing:
    """Logits of all routers in all steps, and the least distance at which one chose."""

    logits: list[Any] = field(default_factory=list)
    margin: float = float("inf")


@contextmanager
def recorded() -> Iterator[Routing]:
    """Routing of every forward pass of the plain GPT inside."""
    import torch
    from torch.nn.modules.module import register_module_forward_hook

    from trials.train.selftest.reference import PlainExperts

    found = Routing()

    def record(module: Any, inputs: tuple[Any, ...], _: Any) -> None:
        if isinstance(module, PlainExperts):
            found.logits.append(
                torch.nn.functional.linear(inputs[0], module.router.weight, module.router.bias).detach()
            )
            found.margin = min(found.margin, module.smallest_margin)

    hook = register_module_forward_hook(record)
    try:
        yield found
    finally:
        hook.remove()


@pytest.mark.parametrize("shape", WITH_EXPERTS)
def test_routers_choose_at_distances_far_above_what_rounding_changes(shape, monkeypatch, record_property):
    import torch

    from trials.train.parallel.device import Device
    from trials.train.selftest import training

    case, plain = named_case("margins", shape), training.PlainGpt
    with recorded() as rounded:
        training.train_reference(case, Device(torch.device("cpu")))
    monkeypatch.setattr(training, "PlainGpt", lambda model: plain(model).double())
    with recorded() as exact:
        training.train_reference(case, Device(torch.device("cpu")))
    pairs = zip(rounded.logits, exact.logits, strict=True)
    difference = max((one.double() - other).abs().max().item() for one, other in pairs)
    record_property("margin", exact.margin)
    record_property("difference", difference)
    assert exact.margin > LEAST_RATIO * difference
