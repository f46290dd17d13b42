"""Contradictions between the sections of a search file. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from orchestrator.config.importers.settings import FileSettings, flat
from orchestrator.config.schema.search_file import SearchFile
from orchestrator.config.setting_problems import setting_problems
from search_spaces.engines import ENGINE_PROFILES, PARLAY, engines_of
from search_spaces.errors import Problem, format_value
from search_spaces.hardware.cluster import Cluster
from search_spaces.hardware.memory_headroom import rank_memory_gib
from search_spaces.layouts.layout import AXES
from search_spaces.routing import BALANCED, LEARNED, Routing, largest_skew
from slurm.request import Runtime
from trials.analysis.ranking import Objective
from trials.trainers.registry import TRAINERS, log_format_of

FORKING_LAUNCHERS = ("local", "ray", "slurm_pilot")
"""Launchers whose ranks may be forked by a fork server."""


def consistency_problems(file: SearchFile) -> Iterator[Problem]:
    """Problems where sections ask for what the trainer or the memory does not have."""
    of_its_log = chain(_unreported_memory(file), _missing_log_rank(file))
    of_the_trainer = chain(
        _engine_problems(file), _template_of_another_model(file), _parlay_trainer_problems(file), of_its_log
    )
    of_the_space = chain(_ineffective_recomputation(file), setting_problems(file), _against_problems(file))
    of_the_data = _given_documents(file)
    of_the_measurement = chain(of_the_data, _warm_start_problems(file), _routing_problems(file), _energy_problems(file))
    return chain(of_the_trainer, of_the_space, _memory_problems(file, file.cluster.cluster()), of_the_measurement)


def _given_documents(file: SearchFile) -> Iterator[Problem]:
    length = file.model.shape().document_length
    if length is not None and file.trainer.kind == PARLAY:
        rule, fix = "documents are those of trainer.data", "remove it, and write attention_mask: block_causal there"
        yield _contradiction("model.document_length", length, "is given for Parlay's own trainer", rule, fix)


def needs_energy(file: SearchFile) -> bool:
    """True if the energy of every trial has to be measured."""
    return Objective.JOULES_PER_TOKEN in file.objective


def _energy_problems(file: SearchFile) -> Iterator[Problem]:
    """Problem with energy as an objective where nothing measures it."""
    accelerator = file.cluster.cluster().accelerator.name
    if not needs_energy(file):
        return
    if accelerator == "cpu":
        found, rule = "cluster.accelerator cpu", "energy is read from the drivers of GPUs (NVML, AMD SMI)"
    elif file.launcher.kind == "simulated":
        found, rule = "launcher.kind simulated", "a table of measurements has no energy"
    elif file.trainer.kind != PARLAY:
        found = f"trainer.kind {file.trainer.kind}"
        rule = "Parlay's own trainer alone reads the energy of the measured steps"
    else:
        return
    energy = Objective.JOULES_PER_TOKEN.value
    fix = "another objective; node_hours_per_billion_tokens is the nearest that needs no counter"
    yield _contradiction("objective", energy, f"has {energy} with {found}", rule, fix)


def routing_of(file: SearchFile) -> str | None:
    """Routing of experts in the trials, given or the default; None for a model without experts."""
    if file.shape().num_experts is None:
        return None
    return file.measure.routing or (BALANCED if BALANCED in _routings(file.trainer.kind) else LEARNED)


def _routings(trainer_kind: str) -> set[str]:
    """Kinds of routing that every engine of the trainer that builds experts can run."""
    profiles = (ENGINE_PROFILES[engine] for engine in engines_of(trainer_kind))
    known = [set(profile.routings) for profile in profiles if "num_experts" in profile.model_features]
    return set.intersection(*known) if known else {LEARNED}


def _routing_problems(file: SearchFile) -> Iterator[Problem]:
    """Problems with a routing of experts that the model or the trainer does not have."""
    given, model = file.measure.routing, file.shape()
    if given is None:
        return
    routing, kinds = Routing.of(given), sorted(_routings(file.trainer.kind))
    if model.num_experts is None:
        message, rule, fix = "has no effect: the model has no experts", "routing is that of experts", "remove it"
    elif routing.kind not in kinds:
        message = f"is {given} with trainer.kind {file.trainer.kind}, which cannot force it"
        rule, fix = f"trainer.kind {file.trainer.kind} measures with routing {' or '.join(kinds)}", "remove it"
    elif (routing.skew or 1) > (largest := largest_skew(model)):
        message = f"is {given}, but a token passes {model.experts_per_token} of {model.num_experts} experts"
        rule = f"an expert has at most every token: {largest:g} times the mean"
        fix = f"skewed({largest:g}) or less"
    else:
        return
    yield _contradiction("measure.routing", given, message, rule, fix)


def _memory_problems(file: SearchFile, cluster: Cluster) -> Iterator[Problem]:
    """Problems with the memory to leave free: more than there is, or of an unknown size."""
    wanted_gib, accelerator = file.constraints.min_free_memory_gib, cluster.accelerator
    capacity_gib = rank_memory_gib(accelerator, file.measure.memory_limit_gib)
    if wanted_gib is None or (capacity_gib is not None and wanted_gib < capacity_gib):
        return
    if capacity_gib is None:
        numbers = f"is {wanted_gib:g}, but the memory of a rank on {accelerator.name} is unknown"
        is_ours = file.trainer.kind == PARLAY
        fix = "set measure.memory_limit_gib" if is_ours else "remove it: only Parlay's own trainer has a memory limit"
    else:
        numbers = f"is {wanted_gib:g}, but a rank can allocate {capacity_gib:.4g} GiB"
        fix = f"less than {capacity_gib:.4g}"
    yield Problem(
        "bounds",
        numbers,
        rule="free memory is part of what a rank can allocate: the accelerator's memory without its context, and at"
        " most measure.memory_limit_gib",
        fix=fix,
        key="constraints.min_free_memory_gib",
        value=wanted_gib,
    )


def _warm_start_problems(file: SearchFile) -> Iterator[Problem]:
    """Problems with ranks that are to be forked, where the launcher or the trainer cannot."""
    cannot = []
    if file.launcher.kind not in FORKING_LAUNCHERS:
        cannot.append(f"launcher.kind {file.launcher.kind}")
    if TRAINERS[file.trainer.kind].preload is None:
        cannot.append(f"trainer.kind {file.trainer.kind}")
    if file.measure.warm_start is True and cannot:
        can = [name for name, trainer in TRAINERS.items() if trainer.preload is not None]
        kinds = f"launcher.kind {' or '.join(FORKING_LAUNCHERS)} with trainer.kind {' or '.join(can)}"
        message, fix = f"is true with {' and '.join(cannot)}", "auto, which forks them where it can"
        yield _contradiction("measure.warm_start", True, message, f"ranks are forked by {kinds}", fix)


def _engine_problems(file: SearchFile) -> Iterator[Problem]:
    engines = engines_of(file.trainer.kind)
    foreign = [engine for engine in file.space.given_axes().get("engine", ()) if engine not in engines]
    if foreign:
        yield Problem(
            "engine",
            f"lists {foreign[0]} for trainer.kind {file.trainer.kind}",
            rule=f"trainer.kind {file.trainer.kind} has the engine {' or '.join(reversed(engines))}",
            fix="remove the key, or change trainer.kind",
            key="space.engine",
            value=foreign[0],
        )


def _template_of_another_model(file: SearchFile) -> Iterator[Problem]:
    """Problems with a configuration by which the trainer would train another model than the file's, or in another way
    than the layouts say."""
    trainer, template = TRAINERS[file.trainer.kind], file.trainer.template
    if trainer.table is None or not isinstance(template, Mapping):
        return
    given = {name.replace("-", "_"): each for name, each in flat(template, trainer.table).items()}
    refused = {str(problem.key): str(problem.rule) for problem in FileSettings(given, trainer.table).problems()}
    said = trainer.model_keys(file.shape())
    other = "a template must not train another model than the model section's"
    contradicting = {name: other for name in said if name in given and given[name].value not in (None, said[name])}
    for name, rule in (refused | contradicting).items():
        value = given[name].value
        instead = f"; the model has {format_value(said[name])}" if name in said else ""
        fix = f"remove {name} from the template" + (", or change the model section" if instead else "")
        yield _contradiction("trainer.template", value, f"{name} is {format_value(value)}{instead}", rule, fix)


def _ineffective_recomputation(file: SearchFile) -> Iterator[Problem]:
    """Problems with what is recomputed, where no layout of the search recomputes in that way."""
    space, baseline = file.space.given_axes(), {} if file.baseline is None else file.baseline.model_dump()
    kinds = space.get("activation_checkpointing", (AXES["activation_checkpointing"].default,))
    kinds = (*kinds, baseline.get("activation_checkpointing"))
    for name, kind in _OF_RECOMPUTATION.items():
        values = [value for value in space.get(name, ()) if value != AXES[name].default]
        if values and kind not in kinds:
            message = f"has no effect: space.activation_checkpointing has no {kind}"
            rule = f"{name} is of activation_checkpointing {kind}"
            fix = f"remove it, or add {kind} to space.activation_checkpointing"
            yield _contradiction(f"space.{name}", values[0], message, rule, fix)


_OF_RECOMPUTATION = {"recompute_layers": "full", "recompute_modules": "selective"}
"""Fields that have an effect with one kind of recomputation."""


def _parlay_trainer_problems(file: SearchFile) -> Iterator[Problem]:
    for key, rule in _PARLAY_TRAINER_ONLY.items():
        value = getattr(file.measure, key)
        if file.trainer.kind != PARLAY and value != type(file.measure).model_fields[key].default:
            message = f"has no effect with trainer.kind {file.trainer.kind}"
            yield _contradiction(f"measure.{key}", value, message, rule, "remove it")


_PARLAY_TRAINER_ONLY = {
    "memory_limit_gib": "only Parlay's own trainer has a memory limit",
    "profile": "only Parlay's own trainer is profiled",
}
"""Settings of the measure section that only Parlay's own trainer supports."""


def _unreported_memory(file: SearchFile) -> Iterator[Problem]:
    """Problems with the memory to leave free when the trainer's log reports no memory."""
    wanted_gib = file.constraints.min_free_memory_gib
    if wanted_gib is None or file.trainer.kind == PARLAY:
        return
    log_format = log_format_of(file.trainer.for_trials())
    if "memory_gib" not in (*log_format.of_step, *log_format.elsewhere):
        message = "the trainer's log reports no memory: every layout would count as too large"
        rule = "with memory to leave free, a layout with an unknown peak is never the best"
        fix = "add memory_gib to trainer.patterns, or remove it"
        yield _contradiction("constraints.min_free_memory_gib", wanted_gib, message, rule, fix)


def _missing_log_rank(file: SearchFile) -> Iterator[Problem]:
    rank, cluster = file.trainer.log_rank, file.cluster.cluster()
    ranks = min(file.space.given_axes().get("num_nodes", (cluster.num_nodes,))) * cluster.gpus_per_node
    if isinstance(rank, int) and rank >= ranks:
        message, rule = f"is {rank}, but the smallest trial has {ranks} ranks", "the log's rank exists in every trial"
        yield Problem("bounds", message, rule=rule, fix="use last", key="trainer.log_rank", value=rank)


def _against_problems(file: SearchFile) -> Iterator[Problem]:
    """Problems with two software stacks that a launcher cannot start, or that side by side trials would disturb; and
    with a number of layouts without them."""
    given, key = file.search.against, "against_layouts"
    if given is None and key in file.search.model_fields_set:
        rule = "it is the number of layouts that two software stacks measure"
        fix, value = "add search.against (--against), or remove it", file.search.against_layouts
        yield _contradiction(f"search.{key}", value, "has no effect", rule, fix)
    if given is None:
        return
    launcher = file.launcher
    container = launcher.slurm.container if launcher.uses_slurm else None
    if launcher.kind == "simulated":
        found, rule, fix = "with launcher.kind simulated", "a table of measurements starts no software", "remove it"
    elif container is not None and launcher.kind != "slurm":
        found, rule = f"{given} with trials that share a job", "the image of a job is that of all its steps"
        fix = "use launcher.kind slurm"
    elif container is not None and container.runtime not in (Runtime.PYXIS, Runtime.APPTAINER, Runtime.SHIFTER):
        found, rule = f"{given} with a container's command", "an image replaces launcher.slurm.container.image"
        fix = "write the container with a runtime and an image"
    elif file.search.parallel_trials > 1:
        found, rule = "with parallel trials", "the stacks are measured in turns, so that both meet the same machine"
        fix = "set search.parallel_trials to 1"
    else:
        return
    yield _contradiction("search.against", given, f"is given {found}", rule, fix)


def _contradiction(key: str, value: Any, message: str, rule: str, fix: str) -> Problem:
    return Problem("contradiction", message, rule=rule, fix=fix, key=key, value=value)
