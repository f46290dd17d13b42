"""A user's own script around accelerate, started as `accelerate launch` starts it. Standard library only."""

from __future__ import annotations

from search_spaces.engines import ACCELERATE_LAUNCH
from search_spaces.rules.engine_rules import engine_limits
from trials.trainers.base import Trainer

TRAINER = Trainer(rules={ACCELERATE_LAUNCH: (engine_limits(ACCELERATE_LAUNCH),)})
