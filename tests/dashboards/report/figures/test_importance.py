"""Shapley values of the surrogate: against their definition, and on speeds with known causes."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from dashboards.report.figures.importance import axis_importance


def grid():
    """48 layouts; the speed follows from the first two axes alone."""
    axes = product((1, 2, 4, 8), ("none", "full"), (1, 2, 4), (False, True))
    layouts = [dict(zip(("tensor", "recompute", "micro", "compiled"), values, strict=True)) for values in axes]
    speeds = [1000 / layout["tensor"] * (1.2 if layout["recompute"] == "none" else 1.0) for layout in layouts]
    return layouts, speeds


def test_axes_that_change_the_speed_come_first_others_are_near_zero_and_noise_explains_nothing():
    found = axis_importance(*grid())
    assert list(found.effects)[:2] == ["tensor", "recompute"]
    # Halved with each of three doublings, so off the geometric mean by 2^1.5, 2^0.5, 2^0.5, 2^1.5.
    assert found.effects["tensor"] == pytest.approx(1.0, abs=0.1)
    assert found.effects["recompute"] == pytest.approx(math.sqrt(1.2) - 1, abs=0.02)
    assert max(found.effects["micro"], found.effects["compiled"]) < 0.01
    assert found.explained > 0.95
    assert found.num_layouts == 48
    rng = np.random.default_rng(11)
    layouts, _ = grid()
    found = axis_importance(layouts, list(rng.lognormal(size=len(layouts))))
    assert not found.is_reliable
