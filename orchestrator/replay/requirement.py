"""A speed that a recipe is required to reach: pass, fail or inconclusive, and the budget of node-hours. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from xml.etree import ElementTree

from orchestrator.config.answer import AnswerPart
from orchestrator.replay.speed_ratio import Comparison
from search_spaces.errors import ExternalError, InputError
from trials.trial import LowerStrEnum

_SLACK = 0.1
"""A pass requires that the speed is not lower than required by more than this: intervals of a single session are wider
than the few percent that are asked about."""
_MOST = 2.0


class RequirementVerdict(LowerStrEnum):
    """Whether a recipe is as fast as required."""

    PASS = "pass"
    FAIL = "fail"
    """The 99 % interval lies below the requirement."""
    INCONCLUSIVE = "inconclusive"


class SlowNodes(AnswerPart):
    """Nodes that train together and are slow, and their speed over that of the fastest others, with its 95 %
    interval; null where only the fabric check names them."""

    nodes: list[str]
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None


class RequirementAnswer(AnswerPart):
    """What `--require` asked and found."""

    required: float
    """Throughput over the recorded one."""
    verdict: RequirementVerdict
    node_hours: float
    """The budget."""
    node_hours_used: float
    nodes: list[str]
    """Nodes of the last run."""
    slow: list[SlowNodes]
    """After a fail on several nodes."""
    search_of_nodes: str | None
    """How slow nodes were looked for, or why not; null without a fail."""


@dataclass(frozen=True)
class Requirement:
    """The speed over the recorded one that is required, and the node-hours that may be spent, None for the default."""

    ratio: float
    node_hours: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= _MOST:
            rule = f"more than 0 and at most {_MOST:g}: the speed over the recorded one"
            raise InputError.of(
                "bounds", f"is {self.ratio:g}", key="--require", value=self.ratio, rule=rule, fix="for example 0.95"
            )
        if self.node_hours is not None and not 0 < self.node_hours < math.inf:
            raise InputError.of(
                "bounds",
                f"is {self.node_hours:g}",
                key="--node-hours",
                value=self.node_hours,
                rule="a number above 0",
                fix="leave it out for the default",
            )

    def verdict(self, found: Comparison) -> RequirementVerdict:
        """The verdict by the median steps and by the fast ones, which other work on the machine does not slow."""
        speed, precise = found.speed, found.fast or found.speed
        if max(speed.value, precise.value) < self.ratio and precise.high_99 < self.ratio:
            return RequirementVerdict.FAIL
        if min(speed.value, precise.value) >= self.ratio and precise.low > self.ratio - _SLACK:
            return RequirementVerdict.PASS
        return RequirementVerdict.INCONCLUSIVE


class BudgetSpent(ExternalError):
    """Another run could exceed the budget."""


class NodeHourBudget:
    """Node-hours that may be spent. A run is started only where all that it may take still fits."""

    def __init__(self, node_hours: float, used: float = 0.0):
        self.node_hours = node_hours
        self.used = used

    def require(self, node_hours: float) -> None:
        """BudgetSpent where a run that may take as many does not fit."""
        if self.used + node_hours > self.node_hours:
            left = f"{self.node_hours - self.used:.3g} of {self.node_hours:.3g} node-hours are left"
            raise BudgetSpent(f"another run may take {node_hours:.3g}, and {left}: raise --node-hours")

    def spend(self, node_hours: float) -> None:
        self.used += node_hours


def junit_xml(name: str, found: RequirementAnswer, words: str, seconds: float) -> str:
    """A JUnit report of one case, which fails by the verdict and is skipped where there is none."""
    is_failed = found.verdict is RequirementVerdict.FAIL
    is_open = found.verdict is RequirementVerdict.INCONCLUSIVE
    counts = {"tests": "1", "failures": str(int(is_failed)), "skipped": str(int(is_open)), "errors": "0"}
    suite = ElementTree.Element("testsuite", {"name": "parlay replay", "time": f"{seconds:.1f}", **counts})
    case = ElementTree.SubElement(suite, "testcase", classname="parlay.replay", name=name, time=f"{seconds:.1f}")
    if found.verdict is not RequirementVerdict.PASS:
        ElementTree.SubElement(case, "failure" if is_failed else "skipped", message=words.splitlines()[0]).text = words
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
