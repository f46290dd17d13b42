"""Problems with `env`, `launch` and `options` of a space or baseline: names that are not the user's, and settings that
have no effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.config.schema.search_file import SearchFile
from search_spaces.errors import InputError, Problem
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.settings import ENV, LAUNCH, LAUNCH_OPTIONS, OPTIONS, SOFTWARE, Settings, settings_of
from search_spaces.schema.setting_axes import MAX_LENGTH, require_option_value
from search_spaces.schema.unsafe_text import looks_secret, secret_problem
from slurm.environment import PYTHON_VARIABLES, RANK_NAMES
from slurm.request import VISIBLE_DEVICES
from trials.trainers.command.trainer import placeholders_in
from trials.trainers.common.options import option_name, option_names
from trials.trainers.registry import TRAINERS

_OF_LAUNCHERS = (*RANK_NAMES, *PYTHON_VARIABLES, *VISIBLE_DEVICES, "PYTHONSAFEPATH", "PYTHONUNBUFFERED", "PATH")
_PREFIXES_OF_LAUNCHERS = ("SLURM", "SBATCH_", "SRUN_", "PMI", "TORCHELASTIC_", "RAY_", "PARLAY_")
_OF_LAYOUTS = (
    *("CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_CUTEDSL_FUSED_GROUPED_MLP", "DS_ACCELERATOR"),
    *("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"),
)
_PREFIXES_OF_LAYOUTS = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")
_OF_GPUS = ("NCCL_", "RCCL_", "TORCH_NCCL_", "CUDA_", "NVTE_", "NVSHMEM_", "HSA_", "MIOPEN_", "CUBLAS_")
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Names of one setting, of which torch reads one; the first is the newest."""


def setting_problems(file: SearchFile) -> Iterator[Problem]:
    """Problems of both sections, at the key of each variable or option."""
    for section, given in (("space", file.space), ("baseline", file.baseline)):
        env, launch = getattr(given, "env", None) or {}, getattr(given, "launch", None) or {}
        for name in env:
            yield from _of_variable(name, f"{section}.env.{name}", env, file)
        for name, values in launch.items():
            yield from _of_option(name, f"{section}.launch.{name}", values, file)
        yield from _of_hint(f"{section}.launch.hint", launch, file)
        for name in getattr(given, "options", None) or {}:
            yield from _of_trainer(name, f"{section}.options.{name}", file)


_CANDIDATES = "space.candidates"


def candidate_problems(layouts: Iterable[Layout], file: SearchFile) -> Iterator[Problem]:
    """Problems with the settings of a table's layouts, which become trials; a simulated search starts none."""
    for text in dict.fromkeys(layout.settings for layout in layouts):
        for name, problem in _of_candidate(settings_of(text), file):
            yield replace(problem, message=f"{name} {problem.message}", key=_CANDIDATES)


def _of_candidate(settings: Settings, file: SearchFile) -> Iterator[tuple[str, Problem]]:
    """Each problem with the name of its axis."""
    secrets = [name for name, value in settings.by_axis.items() if looks_secret(value or "", name.partition(".")[2])]
    yield from ((name, secret_problem()) for name in secrets)
    if secrets or file.launcher.kind == "simulated":
        return
    for name, value in settings.software.items():
        rule, fix = "a table chooses no program that trials start", "use search.against, or remove the rows"
        yield SOFTWARE + name, Problem("software", "is in a table", rule=rule, fix=fix, value=value)
    for name in settings.env:
        yield from ((ENV + name, problem) for problem in _of_candidates_variable(name, settings.env, file))
    for name, word in settings.launch.items():
        yield from ((LAUNCH + name, problem) for problem in _of_candidates_option(name, word, file))
    for name in settings.options:
        yield from ((OPTIONS + name, problem) for problem in _of_trainer(name, _CANDIDATES, file))


def _of_candidates_variable(name: str, env: Mapping[str, str | None], file: SearchFile) -> Iterator[Problem]:
    text = env[name] or ""
    if len(text) > MAX_LENGTH:
        rule = f"a value of at most {MAX_LENGTH} characters"
        yield Problem("bounds", "is longer", rule=rule, fix="shorten it", value=name)
    else:
        yield from _of_variable(name, _CANDIDATES, env, file)


def _of_candidates_option(name: str, word: str, file: SearchFile) -> Iterator[Problem]:
    try:
        require_option_value(name, word)
    except InputError as error:
        yield from error.problems
    else:
        yield from _of_option(name, _CANDIDATES, word, file)


def _of_variable(name: str, key: str, env: Mapping[str, Any], file: SearchFile) -> Iterator[Problem]:
    accelerator = file.cluster.cluster().accelerator.name
    if name in _OF_LAUNCHERS or name.startswith(_PREFIXES_OF_LAUNCHERS):
        rule = "the launcher sets the ranks' places, their devices and what they import"
        yield Problem("variable", "is set by the launcher", rule=rule, fix="remove it", key=key, value=name)
    elif name in _OF_LAYOUTS or name.startswith(_PREFIXES_OF_LAYOUTS):
        rule = "values that follow from a layout are set for each trial, and not searched"
        yield Problem("variable", "follows from the layout", rule=rule, fix="remove it", key=key, value=name)
    elif accelerator == "cpu" and (name.startswith(_OF_GPUS) or name in _ALLOCATOR):
        rule = "a variable that GPUs' libraries read has no effect on a CPU: all its values would be one layout"
        yield Problem("contradiction", f"is of GPUs, on {accelerator}", rule=rule, fix="remove it", key=key, value=name)
    elif name in file.launcher.slurm.env:
        rule = "a variable is searched, or the same for all trials"
        fix = f"remove launcher.slurm.env.{name}; it may be a value here"
        yield Problem(
            "contradiction", f"is in launcher.slurm.env, too: {name}", rule=rule, fix=fix, key=key, value=name
        )
    elif name in file.launcher.slurm.launch.node_folders:
        rule, fix = "launcher.slurm.launch.node_folders sets it on every node", "remove one of the two"
        yield Problem("contradiction", "is a folder of the node", rule=rule, fix=fix, key=key, value=name)
    elif name in _ALLOCATOR[1:] and _ALLOCATOR[0] in env:
        rule, fix = f"torch reads one of {', '.join(_ALLOCATOR)}", f"write its values to {_ALLOCATOR[0]}"
        yield Problem("contradiction", f"is given with {_ALLOCATOR[0]}", rule=rule, fix=fix, key=key, value=name)


def _of_option(name: str, key: str, values: Any, file: SearchFile) -> Iterator[Problem]:
    launcher = file.launcher
    given = _given(values)
    if launcher.uses_slurm:
        option = f"--{name.replace('_', '-')}"
        if option in (word.partition("=")[0] for word in launcher.slurm.launch.srun):
            rule, fix = "an option of srun is searched, or the same for all trials", f"remove {option} there"
            yield Problem("contradiction", "is in launcher.slurm.launch.srun, too", rule=rule, fix=fix, key=key)
    elif launcher.kind != "simulated":
        words = LAUNCH_OPTIONS[name].local_words
        for value in [value for value in given if value not in words]:
            rule = f"launcher.kind {launcher.kind} has {_words(words, name)}; slurm and slurm_pilot have all of srun's"
            yield Problem("choice", f"is {value}", rule=rule, fix="remove it", key=key, value=value)
        if "cores" in given and file.search.parallel_trials > 1:
            rule = "trials that run side by side would be bound to the same cores"
            fix = "set search.parallel_trials to 1"
            yield Problem("contradiction", "is cores with parallel trials", rule=rule, fix=fix, key=key, value="cores")


def _of_trainer(name: str, key: str, file: SearchFile) -> Iterator[Problem]:
    """Problems with an option that the trainer does not get, or that something else sets."""
    section = file.trainer
    trainer, is_key = TRAINERS[section.kind], not name.startswith("--")
    if is_key and (trainer.has_command_line or "template" not in trainer.keys):
        rule = f"trainer.kind {section.kind} has options --name; keys are of a configuration that a template begins"
        yield Problem("option", "has no hyphens", rule=rule, fix=f"write --{name}", key=key, value=name)
    elif not is_key and not (section.is_command_line or "arguments" in trainer.keys):
        rule = f"trainer.kind {section.kind} takes no options beside those of layout, model and measure"
        yield Problem("option", "is not passed on", rule=rule, fix="remove it", key=key, value=name)
    elif section.is_command_line and "options" not in placeholders_in(section.command_template):
        rule = "a command line has {options} where the options of space.options stand"
        fix = "write {options} in trainer.template"
        yield Problem("template", "is not in the command line", rule=rule, fix=fix, key=key, value=name)
    elif trainer.argument_error is not None and (why := trainer.argument_error(option_name(name))) is not None:
        rule = f"options must not set what Parlay sets: {why}"
        yield Problem("contradiction", "is set elsewhere", rule=rule, fix="remove it", key=key, value=name)
    elif option_name(name) in option_names(section.arguments):
        rule, fix = "an option is searched, or the same for all trials", "remove it from trainer.arguments"
        yield Problem("contradiction", "is in trainer.arguments, too", rule=rule, fix=fix, key=key, value=name)


def _of_hint(key: str, launch: Mapping[str, Any], file: SearchFile) -> Iterator[Problem]:
    """srun takes `--hint` for bindings and threads together. Its manual forbids it beside options for either, which
    Slurm 22.05 accepts."""
    if not file.launcher.uses_slurm or not _given(launch.get("hint")):
        return
    others = ["cpu_bind"] if _given(launch.get("cpu_bind")) else []
    others += [] if file.launcher.slurm.threads_per_core is None else ["launcher.slurm.threads_per_core"]
    if others:
        rule, fix = "srun(1) forbids --hint beside --cpu-bind and --threads-per-core", "remove one of the two"
        yield Problem("contradiction", f"is given with {' and '.join(others)}", rule=rule, fix=fix, key=key)


def _given(values: Any) -> list[Any]:
    """Values of an axis or of a baseline, without those that are the launcher's own."""
    return [value for value in (values if isinstance(values, tuple) else (values,)) if value is not None]


def _words(words: tuple[str, ...], name: str) -> str:
    return f"{name} {' or '.join(words)}" if words else f"no {name}"
