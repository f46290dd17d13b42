"""torchtitan's own training program, torchtitan.train.

A trial and a recipe have the layout as a Python module that torchtitan loads by `--module` and `--config`. Its values
are one literal, which `parlay init --from` reads without running the module. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from search_spaces.engines import TORCHTITAN
from search_spaces.plain_file import read_named
from search_spaces.rules.trainer_rules import OWN_RULES
from trials.trainers.base import SCRIPT_KEYS, Invocation, LayoutExport, Trainer, train_iterations
from trials.trainers.common.recipe import torchrun, user_arguments
from trials.trainers.table import nested
from trials.trainers.torchtitan.config import TORCHTITAN_TABLE
from trials.trial import TrialSpec

CONFIG_FILE, PARTS_FILE = "torchtitan_config.py", "torchtitan_parts.py"
FUNCTION, NAME = "parlay", "VALUES"
"""Names of the function that torchtitan calls, and of the literal."""


def config_files(spec: TrialSpec, package: str = ".") -> dict[str, str]:
    """The module, and beside it the parts that the engine builds a configuration of. The layout is canonical and
    violates no rule. `package` stands before the parts' name in their import: nothing where both are on the path."""
    parts = read_named(Path(__file__).parents[2] / "train" / "engines" / PARTS_FILE)
    imports = f"{_IMPORTS}from {package}torchtitan_parts import model_spec, parallelism, recomputation\n"
    return {CONFIG_FILE: f"{imports}\n{NAME} = {_literal(values_of(spec))}\n{EXPORTED}", PARTS_FILE: parts.decode()}


def values_of(trained: Any) -> dict[str, Any]:
    """What torchtitan is told of a trial, or of what an engine trains, by section."""
    written = TORCHTITAN_TABLE.written(trained).items()
    return nested({name: value for name, value in written if value is not None})


def _literal(value: Any, depth: int = 0) -> str:
    """A value as Python has it, with a line for each entry of a mapping, and for each list in a list."""
    indent = "    " * depth
    if isinstance(value, Mapping):
        lines = (f"{indent}    {json.dumps(key)}: {_literal(each, depth + 1)}," for key, each in value.items())
        return "\n".join(["{", *lines, f"{indent}}}"])
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "\n".join(["[", *(f"{indent}    {_literal(each)}," for each in value), f"{indent}]"])
    return json.dumps(value) if isinstance(value, (str, list)) else repr(value)


_IMPORTS = '''\
"""Written for torchtitan 0.3.0."""

from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import CompileConfig, TrainingConfig
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.trainer import Trainer

'''
EXPORTED = f"""

def {FUNCTION}() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_spec({NAME}),
        training=TrainingConfig(**{NAME}["training"]),
        parallelism=parallelism({NAME}),
        activation_checkpoint=recomputation({NAME}),
        compile=CompileConfig(**{NAME}["compile"]),
        loss=CrossEntropyLoss.Config(global_vocab_size={NAME}["model_spec"]["vocab_size"]),
        # Yours, like everything that is not here.
        optimizer=default_adamw(lr=3e-4),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
    )
"""


_MODULE = f"recipe.{CONFIG_FILE.removesuffix('.py')}"


def _start(spec: TrialSpec) -> str:
    """torchrun adds the current folder, the parent of recipe/, to those that modules are imported from."""
    arguments = user_arguments(spec, TORCHTITAN)
    return f"{torchrun(spec)} -m torchtitan.train --module {_MODULE} --config {FUNCTION} {arguments}"


def _invocation(spec: TrialSpec, python: str, folder: str) -> Invocation:
    """The attempt's folder is the current one, from which `python -m` imports."""
    of_trial = {
        "--module": CONFIG_FILE.removesuffix(".py"),
        "--config": FUNCTION,
        "--training.steps": str(train_iterations(spec)),
        "--debug.seed": str(spec.seed),
        "--dump_folder": f"{folder}/torchtitan",
    }
    words = (word for pair in of_trial.items() for word in pair)
    command = (python, "-m", "torchtitan.train", *words, *spec.trainer.get("arguments", ()))
    return Invocation(command, config_files(spec, package=""))


def _argument_error(name: str) -> str | None:
    """The reason why an option of this name may not be given: the module or the trial has its value."""
    section, option = name.split(".")[0], name.replace("-", "_")
    if section in _OF_THE_LAYOUT or option in _OF_THE_TRIAL:
        return "the layout, model or measure section sets it"
    return TORCHTITAN_TABLE.refusal(option)


_OF_THE_LAYOUT = ("model-spec", "parallelism", "activation-checkpoint", "compile")
_OF_THE_TRIAL = (
    *("module", "config", "dump_folder", "debug.seed", "checkpoint.enable", "checkpoint.no_enable"),
    *(f"training.{name}" for name in ("steps", "local_batch_size", "global_batch_size", "seq_len", "dtype")),
    *("training.mixed_precision_param", "training.disable_cuda_graphs", "training.no_disable_cuda_graphs"),
)

_RULES = OWN_RULES[TORCHTITAN]

TRAINER = Trainer(
    rules={TORCHTITAN: _RULES},
    optional_keys=(*SCRIPT_KEYS, "observe"),
    invocation=_invocation,
    is_observed=True,
    argument_error=_argument_error,
    export=LayoutExport(
        TORCHTITAN,
        "torchtitan",
        TORCHTITAN,
        _RULES,
        config_files,
        _start,
    ),
)
