"""nanotron, started with a configuration file. Standard library only.

Rules: nanotron src/nanotron/config and parallel/pipeline_parallel/engine.py.
"""

from __future__ import annotations

from search_spaces.rules.engine_rules import too_few_micro_batches
from search_spaces.rules.rule import Rule, engine_limits
from trials.ranks.cuda_connections import ONE
from trials.trainers.base import SCRIPT_KEYS, Invocation, LayoutExport, Trainer
from trials.trainers.common.log_lines import MIB_PER_GIB, LogFormat, labelled, number_in
from trials.trainers.common.plain_yaml import plain_yaml
from trials.trainers.common.recipe import own_arguments, script_or, torchrun, user_template
from trials.trainers.nanotron.config import NANOTRON, nanotron_config, nanotron_layout, nanotron_model_keys
from trials.trial import TrialSpec

NAME = "nanotron"

_CONFIG_FILE = "nanotron.yaml"


def _invocation(spec: TrialSpec, python: str, folder: str) -> Invocation:
    given = spec.trainer.get("arguments", ())
    words = (python, spec.trainer["script"], "--config-file", f"{folder}/{_CONFIG_FILE}", *given)
    config = nanotron_config(spec, spec.trainer["template"])
    return Invocation(words, {_CONFIG_FILE: plain_yaml(config)}, ONE)


def _log_rank(spec: TrialSpec) -> int:
    """The first rank of the last stage."""
    return spec.layout.mesh.rank(pp=spec.layout.pipeline_parallel - 1)


def _files(spec: TrialSpec) -> dict[str, str]:
    return {_CONFIG_FILE: plain_yaml(nanotron_layout(spec, user_template(spec, NAME)))}


def _start(spec: TrialSpec) -> str:
    config = f"recipe/{_CONFIG_FILE}" if user_template(spec, NAME) else "YOUR_CONFIG_WITH_THESE_KEYS.yaml"
    start = f"{torchrun(spec, ONE)} {script_or(spec, NAME, 'run_train.py')} --config-file {config}"
    return start + own_arguments(spec, NAME)


RULES: tuple[Rule, ...] = (
    too_few_micro_batches(1, "nanotron's 1F1B needs at least pipeline_parallel - 1 micro-batches a step"),
    *engine_limits(NAME, NANOTRON.limits),
)

_PREFIXED = r"([-+]?\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)([KMBGTP]?)"
_LOG = LogFormat(
    {
        "iteration": number_in(r"\biteration: (\d+) / \d+ \|"),
        "step_time_ms": labelled(r"\belapsed_time_per_iteration_ms:", number=_PREFIXED),
        "loss": labelled(r"\blm_loss:", number=_PREFIXED),
        "grad_norm": labelled(r"\bgrad_norm:", number=_PREFIXED),
        # Only whole numbers: a larger batch is rounded to three digits, such as 1.02K.
        "global_batch_size": labelled(r"\bglobal_batch_size:", number=r"(\d+)"),
        "tokens_per_sec": labelled(r"\btokens_per_sec:", number=_PREFIXED),
        "tokens_per_sec_per_gpu": labelled(r"\btokens_per_sec_per_gpu:", number=_PREFIXED),
        "tflops": labelled(r"\bmodel_tflops_per_gpu:", number=_PREFIXED),
        "memory_gib": labelled(r"\bcuda_max_memory_reserved:", number=_PREFIXED, factor=2**-30),
    },
    {"memory_gib": number_in(r"Peak reserved: ([\d.]+)MiB", 1 / MIB_PER_GIB)},
)

_REFUSED = {"config-file": "a trial writes the configuration from the template"}

TRAINER = Trainer(
    rules={NAME: RULES},
    required_keys=("script", "template"),
    optional_keys=(*SCRIPT_KEYS, "observe"),
    argument_error=_REFUSED.get,
    table=NANOTRON,
    model_keys=nanotron_model_keys,
    invocation=_invocation,
    is_observed=True,
    log_format=_LOG,
    log_rank=_log_rank,
    export=LayoutExport(NAME, "nanotron", NAME, RULES, _files, _start),
)
