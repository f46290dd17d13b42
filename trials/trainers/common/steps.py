"""Number of steps for a third-party trainer: its supervisor ends it before. Standard library only."""

from __future__ import annotations

from trials.trial import TrialKind, TrialSpec

SPARE_STEPS = 10
"""Extra steps for those that a trainer may not log (the first, skipped ones)."""
NEVER = 1_000_000
"""An interval that no trial reaches."""


def train_iterations(spec: TrialSpec) -> int:
    """The most steps that a measurement may take, with some to spare."""
    rules = spec.measure
    most = max(rules.max_steps, rules.finalist_steps) if spec.kind is TrialKind.REPEAT else rules.max_steps
    return rules.max_warmup_steps + most + SPARE_STEPS
