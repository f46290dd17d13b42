"""Recipe: recipe.yaml as an object, with the layout, its measurements and a checksum over both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self, TypedDict

import yaml

from search_spaces.decoding import (
    Amount,
    Bound,
    JsonObject,
    Positive,
    WrittenAs,
    decode,
    decode_value,
    encode,
    require_schema,
)
from search_spaces.errors import InputError, Problem
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import BATCH_RULE, WORLD_RULE, Layout
from search_spaces.model_shape import ModelShape
from search_spaces.schema.presets import accelerator_named
from trials.analysis.best_layout import Fastest
from trials.analysis.pareto import ParetoPoint
from trials.analysis.search_cost import SearchCost
from trials.analysis.training_rate import TrainingRate
from trials.ledger.events import replayed_table
from trials.outcome_types import MeasuredMetrics
from trials.trainers.registry import TRAINERS
from trials.trial import UtcSeconds

AS_WRITTEN = "use the recipe as Parlay wrote it"
"""Fix for a recipe that was edited and cannot be used."""
_AGREEING = f"{AS_WRITTEN}, or make all its numbers agree and read it with --force"


def _is_of_known_trainer(section: Mapping[str, Any]) -> bool:
    return section.get("kind") in TRAINERS


def _written_cluster(cluster: Cluster) -> dict[str, Any]:
    sizes = {"gpus_per_node": cluster.gpus_per_node, "num_nodes": cluster.num_nodes}
    return {"accelerator": cluster.accelerator.name, **sizes}


def _read_cluster(data: Any) -> Cluster:
    known = decode_value(_WrittenCluster, data, "cluster")
    return Cluster(accelerator_named(known["accelerator"]), known["gpus_per_node"], known["num_nodes"])


class _WrittenCluster(TypedDict):
    accelerator: str
    gpus_per_node: int
    num_nodes: int


@dataclass(frozen=True)
class RecordedRun:
    """One run of the layout: its trial, job and nodes, and its median step time with the 95 % interval, seconds."""

    trial: str
    attempt: str
    job_id: str | None
    nodes: tuple[str, ...]
    leaves: tuple[str, ...]
    started_at: UtcSeconds | None
    step_time_s: Positive
    step_time_low_s: Amount | None
    step_time_high_s: Amount | None


@dataclass(frozen=True)
class Evidence:
    """What the numbers are based on. `files` has the SHA-256 of the files behind them, and of those that start the
    measured program."""

    code_hash: str
    files: Mapping[str, str]
    runs: Annotated[tuple[RecordedRun, ...], Bound("one or more", bool)]


@dataclass(frozen=True)
class Recipe(JsonObject):
    """Content of recipe.yaml. Throughputs are tokens per second.

    `measured` is the measurement over all runs of the layout, `training_rate` its tokens a day less the stalls of
    stated checkpoints. `memory` has the `FullestRank` over all runs (`fullest_rank`, None where unknown) and the
    cost model's GiB of a rank of the fullest stage by purpose (`predicted_gib`). `repeats` is the number of runs,
    and `evidence.runs` lists them. `compared_with` lists the other measured layouts with this one's speedup over
    them, the `baseline` first. `python` is the interpreter that starts the ranks, `launcher` the search file's
    section, `routing` that of experts in the runs (None without experts), `verified` what is known of the layout's
    axis values (search_spaces/verification.py). `start` is the command of the measured program in recipe.yaml, before
    the `exports`, which list the files of each trainer, and whether it measured the layout or cannot run it.
    `selection_reason`, `rationale`, `fastest` and `pareto` are those of the `best` object, `verdict` and `cost` the
    search's; all are None or empty for a layout that is not the best.
    """

    SCHEMA = "parlay.recipe/1"

    created_at: str
    parlay_version: str
    search_id: str
    trial: str
    layout: Layout
    verified: Mapping[str, Any] | None
    model: ModelShape
    cluster: Annotated[Cluster, WrittenAs(_written_cluster, _read_cluster)]
    objective: str
    measured: MeasuredMetrics
    training_rate: TrainingRate
    memory: Mapping[str, Any]
    repeats: int
    ties: tuple[str, ...]
    verdict: Mapping[str, Any] | None
    cost: SearchCost | None
    selection_reason: str | None
    rationale: str | None
    fastest: Fastest | None
    pareto: tuple[ParetoPoint, ...]
    compared_with: tuple[Mapping[str, Any], ...]
    constraints: Mapping[str, Any]
    routing: str | None
    trainer: Annotated[Mapping[str, Any], Bound("the section of a known trainer", _is_of_known_trainer)]
    python: str
    launcher: Mapping[str, Any]
    exports: tuple[Mapping[str, Any], ...]
    fingerprint: Mapping[str, Any]
    evidence: Evidence
    caveats: tuple[str, ...]

    @property
    def replayed_table(self) -> str | None:
        """The measured table that answered in place of trials; None for a search that ran them."""
        return replayed_table(self.launcher)

    @property
    def batch(self) -> dict[str, int]:
        """The batch arithmetic: sequences, micro-batches, data-parallel ranks, and tokens of one optimizer step."""
        return {
            "global_batch_size": self.layout.global_batch_size,
            "micro_batch_size": self.layout.micro_batch_size,
            "grad_accum_steps": self.layout.grad_accum_steps,
            "data_parallel": self.layout.data_parallel,
            "tokens_per_step": self.layout.global_batch_size * self.model.seq_length,
        }

    @property
    def start(self) -> str | None:
        """Command that starts the measured program, in the recipe's folder and as the trials were started; None where
        a table was replayed, and nothing ran."""
        if self.replayed_table is not None:
            return None
        if str(self.launcher.get("kind")).startswith("slurm"):
            return "sbatch launch.sbatch"
        return "bash launch.sh YOUR_SHARED_FOLDER" if self.cluster.num_nodes > 1 else "bash launch.sh"

    @property
    def baseline(self) -> Mapping[str, Any] | None:
        """The comparison with the baseline; None without a measured one."""
        return next((other for other in self.compared_with if other.get("baseline")), None)

    def to_json(self) -> dict[str, Any]:
        """Content of recipe.yaml: the fields, what follows from them, and the checksum last."""
        written = {"schema": self.SCHEMA, "start": self.start, **encode(self), "batch": self.batch}
        data = json.loads(json.dumps(written, allow_nan=False))
        return data | {"checksum": checksum(data)}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The inverse of `to_json`; does not verify the checksum.

        InputError for another kind of file, another schema, missing or unknown fields, and contradictory numbers.
        """
        try:
            require_schema(data, cls.SCHEMA)
        except ValueError as error:
            raise InputError.of(
                "schema",
                str(error),
                key="schema",
                rule=f"a recipe begins with schema: {cls.SCHEMA}",
                fix="name a recipe.yaml; one with another schema needs the Parlay of its parlay_version",
            ) from error
        try:
            if missing := [name for name in _DERIVED if name not in data]:
                raise ValueError(f"{missing[0]} is missing")
            batch = decode_value(dict[str, Any], data["batch"], "batch")
            recipe = decode(cls, {name: value for name, value in data.items() if name not in _DERIVED})
        except InputError as error:
            raise InputError(*(replace(p, fix=p.fix or _AGREEING) for p in error.problems)) from error
        except ValueError as error:
            rule = "recipe.yaml has the fields, of the types, that Parlay wrote"
            raise InputError.of("recipe", str(error), rule=rule, fix=AS_WRITTEN) from error
        if problems := [*_batch_problems(recipe, batch), *_world_problems(recipe)]:
            raise InputError(*problems)
        return recipe


_DERIVED = ("start", "batch", "checksum")
"""Keys of recipe.yaml that follow from the fields."""


def checksum(data: Mapping[str, Any]) -> str:
    """SHA-256 over all fields but the checksum, independent of the order of keys and of YAML formatting."""
    counted = {name: value for name, value in data.items() if name != "checksum"}
    text = json.dumps(counted, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def recipe_yaml(recipe: Recipe) -> str:
    """Text of recipe.yaml."""
    return yaml.dump(recipe.to_json(), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Quotes every text that begins like a number: YAML 1.1 and 1.2 differ in what is a number."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if text[:1] in "+-.0123456789" else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _batch_problems(recipe: Recipe, written: Mapping[str, Any]) -> Iterator[Problem]:
    layout, batch = recipe.layout, recipe.batch
    if written != batch:
        wrong = next(n for n in [*batch, *written] if written.get(n) != batch.get(n))
        yield Problem(
            "batch",
            f"batch.{wrong} is {written.get(wrong)}, but micro batch {layout.micro_batch_size} x accumulation "
            f"{layout.grad_accum_steps} x data {layout.data_parallel} = {layout.global_batch_size} sequences of "
            f"{recipe.model.seq_length} tokens",
            rule=BATCH_RULE,
            fix=_AGREEING,
            key=f"batch.{wrong}",
            value=written.get(wrong),
        )


def _world_problems(recipe: Recipe) -> Iterator[Problem]:
    layout, cluster = recipe.layout, recipe.cluster
    world = layout.num_nodes * cluster.gpus_per_node
    if layout.num_gpus != world:
        yield Problem(
            "world",
            f"{layout.shape} = "
            f"{layout.num_gpus} ranks, but {layout.num_nodes} nodes x {cluster.gpus_per_node} = {world}",
            rule=WORLD_RULE,
            fix=_AGREEING,
            key="layout",
        )
