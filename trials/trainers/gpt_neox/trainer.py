"""GPT-NeoX, started with its configuration as an argument. Standard library only.

Rules: GPT-NeoX megatron/neox_arguments, and DeepSpeed's own.
"""

from __future__ import annotations

from search_spaces.rules.engine_rules import DEEPSPEED_RULES, bf16_reductions, half_precision_flash
from search_spaces.rules.rule import Rule, activations, clashes, engine_limits
from trials.trainers.base import SCRIPT_KEYS, Invocation, LayoutExport, Trainer
from trials.trainers.common.megatron_log import MEGATRON_LOG
from trials.trainers.common.plain_yaml import plain_yaml
from trials.trainers.common.recipe import own_arguments, script_or, user_template, with_variables
from trials.trainers.gpt_neox.config import GPT_NEOX, neox_arguments, neox_config, neox_layout, neox_model_keys
from trials.trial import TrialSpec

NAME = "gpt-neox"

_CONFIG_FILE = "gpt_neox.yml"


def _invocation(spec: TrialSpec, python: str, folder: str) -> Invocation:
    config, given = neox_config(spec, spec.trainer["template"]), spec.trainer.get("arguments", ())
    # The file is only informative: train.py gets the configuration as an argument.
    files = {_CONFIG_FILE: plain_yaml(config)}
    return Invocation((python, spec.trainer["script"], *neox_arguments(config), *given), files)


def _files(spec: TrialSpec) -> dict[str, str]:
    return {_CONFIG_FILE: plain_yaml(neox_layout(spec, user_template(spec, NAME)))}


def _start(spec: TrialSpec) -> str:
    """GPT-NeoX refuses a key that is in two files, so the user's file holds only the other keys."""
    rest = "" if user_template(spec, NAME) else " YOUR_OTHER_KEYS.yml"
    script = script_or(spec, NAME, "train.py")
    arguments = f"{script} recipe/{_CONFIG_FILE}{rest}{own_arguments(spec, NAME)}"
    return f"{with_variables(spec)}python deepy.py {arguments}"


RULES: tuple[Rule, ...] = (
    *DEEPSPEED_RULES,
    half_precision_flash,
    *bf16_reductions,
    # megatron/model/transformer.py, ParallelMLP.forward
    clashes(
        "model.linear_biases",
        {"model.gated_mlp": (False,)},
        "GPT-NeoX adds biases in an MLP without a gate, and fails where there are none",
        values=(False,),
        fix="set model.gated_mlp to true, model.linear_biases to true, or use another engine",
    ),
    # "geglu" has the exact GELU.
    activations(("silu", "relu"), ("gelu", "relu", "silu")),
    *engine_limits(NAME, GPT_NEOX.limits),
)

_REFUSED = {"megatron-config": "a trial writes the configuration from the template"}

TRAINER = Trainer(
    rules={NAME: RULES},
    required_keys=("script", "template"),
    optional_keys=(*SCRIPT_KEYS, "observe"),
    argument_error=_REFUSED.get,
    table=GPT_NEOX,
    model_keys=neox_model_keys,
    invocation=_invocation,
    is_observed=True,
    log_format=MEGATRON_LOG,
    export=LayoutExport(NAME, "GPT-NeoX", NAME, RULES, _files, _start),
)
