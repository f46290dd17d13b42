"""A search driven by hypothesis on a simulated Slurm, iterations alternating with faults."""

from __future__ import annotations

import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from orchestrator.search.driver import Driver
from tests.orchestrator.search.kill_points import KILL_POINTS, KillPoint, counting
from tests.orchestrator.search.rig import Killed
from tests.orchestrator.search.slurm_rig import SlurmRig, iterate_times

MANY = settings(
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a counterexample here takes minutes to shrink
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class DisturbedSearch(RuleBasedStateMachine):
    """The driver's iterations and kills. Subclasses add faults and invariants."""

    kill_points: ClassVar[Mapping[str, tuple]] = KILL_POINTS

    def __init__(self, make_rig: Callable[[Path], SlurmRig]) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="parlay-machine-"))
        self.rig = make_rig(self.folder)
        self.rig.callbacks = replace(self.rig.callbacks, cancel_requested=lambda: self.cancelling)
        self.driver: Driver | None = None
        self.cancelling = False

    @rule(turns=st.integers(1, 30))
    def goes_on(self, turns: int) -> None:
        iterate_times(self.the_driver(), self.rig.launcher, turns)

    @rule(kill_point=st.integers(0, 11), number=st.integers(1, 12), after=st.booleans())
    def is_killed(self, kill_point: int, number: int, after: bool) -> None:
        name = sorted(self.kill_points)[kill_point % len(self.kill_points)]
        with counting(name, KillPoint(number, after), self.kill_points):
            try:
                self.goes_on(20)
            except Killed:
                self.driver = None

    @rule()
    def the_user_cancels(self) -> None:
        self.cancelling = True

    def teardown(self) -> None:
        try:
            self.ends_well()
        finally:
            shutil.rmtree(self.folder)

    @abstractmethod
    def ends_well(self) -> None:
        """Let the search end, and check its invariants."""

    def the_driver(self) -> Driver:
        if self.driver is None:
            self.driver = self.rig.open_driver()
            if not self.driver.search.state.is_ended:
                self.driver.recover()
        return self.driver
