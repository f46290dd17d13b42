"""A user's own script around accelerate, started as `accelerate launch` starts it. Standard library only.

Rules: accelerate 1.15 accelerate/accelerator.py (`_prepare_fsdp2`, `prepare_model`), utils/launch.py.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from search_spaces.adapters import adapted_modules
from search_spaces.decoding import encode
from search_spaces.engines import ACCELERATE_LAUNCH
from search_spaces.rules.engine_rules import quantized_products, sharded_replicas
from search_spaces.rules.rule import Rule, engine_limits
from trials.trainers.accelerate.config import ACCELERATE, accelerate_config, cpu_variables, is_fsdp
from trials.trainers.base import SCRIPT_KEYS, Invocation, LayoutExport, Trainer
from trials.trainers.command.trainer import filled_arguments, placeholder_values
from trials.trainers.common.recipe import script_or, torchrun, with_variables
from trials.trainers.table import plain_yaml
from trials.trial import TrialSpec

NAME = "accelerate"

_CONFIG_FILE = "accelerate.yaml"
_LAUNCHER = Path(__file__).with_name("launch.py")
_OF_THE_RUN = {"train_iterations": "YOUR_ITERATIONS", "attempt_folder": "YOUR_FOLDER", "python": "python"}
"""Stand-ins of a recipe for values of a trial."""


def _invocation(spec: TrialSpec, python: str, folder: str) -> Invocation:
    arguments = filled_arguments(spec.trainer.get("arguments", ()), placeholder_values(spec, python, folder))
    words = (python, str(_LAUNCHER), f"{folder}/{_CONFIG_FILE}", spec.trainer["script"], *arguments)
    return Invocation(words, {_CONFIG_FILE: _config_text(spec)})


def _config_text(spec: TrialSpec) -> str:
    return plain_yaml(accelerate_config(spec))


def _files(spec: TrialSpec) -> dict[str, str]:
    layout = spec.layout
    products = "" if layout.matmul_precision == "same" else f", matmul_precision {layout.matmul_precision}"
    of_the_script = (
        f"# The script decides: micro-batches of {layout.micro_batch_size} sequences,"
        f" {layout.grad_accum_steps} a step and rank, attention {layout.attention_kernel}{products}.\n"
    )
    if spec.model.adapters is not None:
        given = encode(spec.model.adapters) | {"target_modules": ", ".join(adapted_modules(spec.model))}
        of_the_script += f"# It makes the adapters, too: {', '.join(f'{n} {v}' for n, v in given.items())}.\n"
    return {_CONFIG_FILE: of_the_script + _config_text(spec)}


def _start(spec: TrialSpec) -> str | None:
    """The line of `accelerate launch`; on a CPU, where that starts a single rank (`simple_launcher`), one of torchrun
    for what accelerate has there."""
    is_group_on_cpu = spec.accelerator == "cpu" and spec.num_gpus > 1
    if is_group_on_cpu and (is_fsdp(spec.layout) or spec.layout.precision == "fp16"):
        return None
    script, arguments = script_or(spec, NAME, "YOUR_SCRIPT.py"), "YOUR_OPTIONS"
    if spec.trainer["kind"] == NAME:
        values = placeholder_values(spec, "", "") | _OF_THE_RUN
        arguments = shlex.join(filled_arguments(spec.trainer.get("arguments", ()), values))
    if is_group_on_cpu:
        return f"{torchrun(spec, cpu_variables(spec.layout))} {script} {arguments}".rstrip()
    options = f"--config_file recipe/{_CONFIG_FILE}{_of_the_node(spec)}"
    return f"{with_variables(spec)}accelerate launch {options} {script} {arguments}".rstrip()


def _of_the_node(spec: TrialSpec) -> str:
    if spec.num_nodes == 1:
        return ""
    return ' --machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" --main_process_port 29500'


def argument_error(name: str) -> str | None:
    """The reason why an option of this name may not be given: it is one of `accelerate launch`, or replaces what the
    configuration says."""
    is_of_the_launcher = name in _LAUNCHER_OPTIONS or name.startswith(("fsdp", "dynamo-", "parallelism-config-"))
    return "accelerate's configuration has it, which Parlay writes" if is_of_the_launcher else None


_LAUNCHER_OPTIONS = (
    *("cpu", "multi-gpu", "mixed-precision", "use-fsdp", "use-deepspeed", "use-megatron-lm"),
    *("num-processes", "num-machines", "machine-rank", "main-process-ip", "main-process-port"),
    "use-parallelism-config",
)


RULES: tuple[Rule, ...] = (
    Rule(
        ("activation_checkpointing", "zero_stage", "data_parallel"),
        lambda checkpointing, stage, data: checkpointing == "full" and (stage < 2 or data == 1),
        "accelerate checkpoints activations only with FSDP: zero_stage 2 or 3 on several ranks",
        "set zero_stage to 2 or 3, or activation_checkpointing to none",
    ),
    *quantized_products(),
    sharded_replicas,
    *engine_limits(ACCELERATE_LAUNCH, ACCELERATE.limits),
)
"""Products in 8 bits are up to the script, too: with FSDP2 accelerate's own mixed_precision fp8 converts the layers for
Transformer Engine, and never enters its autocast (accelerator.py, _prepare_fsdp2)."""

TRAINER = Trainer(
    rules={ACCELERATE_LAUNCH: RULES},
    required_keys=("script",),
    optional_keys=(*SCRIPT_KEYS, "observe"),
    invocation=_invocation,
    is_observed=True,
    argument_error=argument_error,
    placeholder_axes=("micro_batch_size", "grad_accum_steps", "attention_kernel", "matmul_precision"),
    export=LayoutExport(NAME, "accelerate", ACCELERATE_LAUNCH, RULES, _files, _start),
)
