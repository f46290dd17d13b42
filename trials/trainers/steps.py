"""How many steps somebody else's trainer is told to run: its supervisor ends it before. Standard library only."""

from __future__ import annotations

from trials.trial import MeasureRules

SPARE_STEPS = 10
"""Steps that a trainer may not log (the first, skipped ones) and that must not be missing at the end."""
NEVER = 1_000_000
"""An interval that no trial reaches."""


def train_iterations(rules: MeasureRules) -> int:
    """As many as a measurement takes at most."""
    return rules.max_warmup_steps + rules.max_steps + SPARE_STEPS
