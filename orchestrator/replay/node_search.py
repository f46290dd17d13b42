"""Looks for slow nodes after a recipe failed its requirement: a fabric check, then short runs on parts of the nodes."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from orchestrator.config.schema.launcher import LauncherSection
from orchestrator.diagnostics.fabric import fabric_times, group_shapes
from orchestrator.diagnostics.job import ProgramFailed, run_on_cluster
from orchestrator.launchers import factory
from orchestrator.launchers.attempt_runner import AttemptRunner
from orchestrator.launchers.base import Launcher
from orchestrator.recipe.read import LoadedRecipe
from orchestrator.replay.measured_layout import runs_of, start_of
from orchestrator.replay.replay import replay_program
from orchestrator.replay.requirement import NodeHourBudget, SlowNodes
from orchestrator.replay.runs import ReplayCallbacks, ReplayRuns
from orchestrator.replay.slow_nodes import Group, node_groups, slow_nodes
from orchestrator.replay.speed_ratio import Run
from orchestrator.search.attempt_factory import AttemptFactory
from orchestrator.search.node_hours import CHECK_TIME_LIMIT_S
from search_spaces.errors import ExternalError
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import Layout
from trials.diagnostics.fabric_findings import judge
from trials.files.folders import SearchFolder
from trials.files.text import plural
from trials.trial import Trial, TrialKind

_log = logging.getLogger(__name__)


@dataclass
class NodeSearch:
    """Looks for the slow ones of the nodes `hosts`, on which a recipe failed. `folder` is that of the replay, beside
    which the runs have folders of their own."""

    loaded: LoadedRecipe
    hosts: Sequence[str]
    section: LauncherSection
    folder: SearchFolder
    python: str
    margin: float
    budget: NodeHourBudget
    callbacks: ReplayCallbacks
    num_runs: int = 0

    def run(self) -> tuple[list[SlowNodes], str]:
        """The slow nodes, and how they were looked for."""
        if len(self.hosts) < 2:
            return [], "the recipe ran on one node"
        if self.section.kind != "slurm":
            return [], f"launcher {self.section.kind} cannot choose nodes: slow ones are looked for with launcher slurm"
        named, words = self._by_fabric()
        found: list[SlowNodes] = []
        groups = node_groups(self.hosts, fewest_nodes(self.loaded.recipe.layout))
        if len(groups) < 2:
            return named, f"{words}; the layout needs all nodes, so no part of them was measured alone"
        program = self._program()
        try:
            found.extend(slow_nodes(groups, partial(self._measure, program), self.margin))
        except ExternalError as error:
            words += f"; short runs ended early: {error}"
        by_runs = {node for each in found for node in each.nodes}
        words += f"; {plural(self.num_runs, 'short run')} on parts of {plural(len(self.hosts), 'node')}"
        return [*found, *(each for each in named if not by_runs.issuperset(each.nodes))], words

    def _by_fabric(self) -> tuple[list[SlowNodes], str]:
        """Nodes that the fabric check names, and how it went."""
        recipe, num_nodes = self.loaded.recipe, len(self.hosts)
        cluster = replace(recipe.cluster, num_nodes=num_nodes)
        shapes = group_shapes([recipe.layout], cluster.num_gpus)
        program = fabric_times(cluster, recipe.model, shapes, self.python)
        try:
            self.budget.require(num_nodes * CHECK_TIME_LIMIT_S / 3600)
            with closing(self._launcher(self.hosts)) as launcher:
                started = launcher.now()
                try:
                    _, times = run_on_cluster(
                        AttemptRunner(launcher, self.callbacks.is_stop_requested), self._beside("fabric"), program
                    )
                finally:
                    self.budget.spend(num_nodes * (launcher.now() - started) / 3600)
        except (ExternalError, ProgramFailed) as error:
            return [], f"no fabric check: {error}"
        names = judge(times, cluster).slow_names
        slow = [SlowNodes(nodes=[name], ratio=None, ratio_low=None, ratio_high=None) for name in names]
        return slow, f"the fabric check names {', '.join(names) or 'no node'}"

    def _program(self) -> AttemptFactory:
        """What the short runs share: the recipe's code, in a folder beside the replay's."""
        folder = self._beside("nodes")
        folder.path.mkdir(parents=True, mode=0o700)
        shutil.copytree(self.loaded.code, folder.code, ignore=shutil.ignore_patterns("__pycache__"))
        whole = replay_program(self.loaded, folder, self.python)
        return replace(whole, measure=replace(whole.measure, max_steps=whole.measure.min_steps))

    def _beside(self, name: str) -> SearchFolder:
        return SearchFolder(self.folder.path.with_name(f"{self.folder.path.name}-{name}"))

    def _measure(self, program: AttemptFactory, groups: Sequence[Group]) -> Run:
        """One short run on these groups. ExternalError for one without a measurement."""
        nodes = list(dict.fromkeys(node for group in groups for node in group))
        self.num_runs += 1
        trial = Trial(f"t{self.num_runs:04d}", layout_on(self.loaded.recipe.layout, len(nodes)), TrialKind.REPLAY)
        with closing(self._launcher(nodes)) as launcher:
            runs = ReplayRuns(program, launcher, self.callbacks, self.budget)
            result = runs.measure(trial)
        found = [] if result.outcome is None else runs_of([(result.outcome, start_of(result.outcome.started_at))])
        if not found:
            raise ExternalError(f"{trial.layout.key} on {', '.join(nodes)}: {result.reason}: {result.excerpt}")
        _log.info(f"{', '.join(nodes)}: {found[0].step_time_s:.4g} s a step")
        return found[0]

    def _launcher(self, nodes: Sequence[str]) -> Launcher:
        """The launcher of the search on these nodes alone."""
        slurm = self.section.slurm.model_copy(update={"nodelist": tuple(nodes)})
        section = self.section.model_copy(update={"slurm": slurm})
        cluster: Cluster = replace(self.loaded.recipe.cluster, num_nodes=len(nodes))
        return factory.make_launcher(section, parallel_trials=1, cluster=cluster)[0]


def fewest_nodes(layout: Layout) -> int:
    """Nodes of one copy of the model, and of all its experts."""
    gpus_per_node = layout.num_gpus // layout.num_nodes
    copy = layout.num_gpus // layout.data_parallel
    return -(-min(copy * layout.expert_parallel, layout.num_gpus) // gpus_per_node)


def layout_on(layout: Layout, num_nodes: int) -> Layout:
    """The layout with as many copies of the model as these nodes hold, and the work of a rank as it is."""
    copies = layout.data_parallel * num_nodes // layout.num_nodes
    return replace(layout, num_nodes=num_nodes, data_parallel=copies, data_parallel_replicas=1).canonical()
