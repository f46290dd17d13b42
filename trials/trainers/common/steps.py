"""Number of steps for a third-party trainer: its supervisor ends it before. Standard library only."""

from __future__ import annotations

from trials.measure_rules import MeasureRules

SPARE_STEPS = 10
"""Extra steps for those that a trainer may not log (the first, skipped ones)."""
NEVER = 1_000_000
"""An interval that no trial reaches."""


def train_iterations(rules: MeasureRules) -> int:
    """The most steps that a measurement may take, with some to spare."""
    return rules.max_warmup_steps + rules.max_steps + SPARE_STEPS
