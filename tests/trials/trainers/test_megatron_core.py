"""A recipe's options for Megatron-LM, loaded by the real thing: megatron-core, and pretrain_gpt.py's own parser."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.check_exports import CORE_TAG, at_version, question
from benchmarks.export_cases import Case, export_cases
from benchmarks.export_meanings import differences, of_megatron_lm
from benchmarks.parser_process import DOWNLOADS, ask
from benchmarks.real_configs import fields_of, transformer_engine_stubbed
from search_spaces.engines import MEGATRON_CORE
from search_spaces.layouts.layout import AXES, Layout
from search_spaces.routing import Routing
from search_spaces.rules.check import engine_violations
from tests.orchestrator.recipe.export_readers import words_of
from tests.trials.train.parity import needs_megatron
from tests.trials.train.trial_processes import make_spec
from tests.trials.trainers.core_configs import core_configs
from trials.trainers.common.megatron_options import oldest_megatron_lm
from trials.trainers.megatron_lm.trainer import TRAINER
from trials.trial import TrialSpec

pytestmark = [needs_megatron, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

EXPORT = TRAINER.export

NOT_IN_CONFIGS = {
    *("--make-vocab-size-divisible-by", "--ckpt-format"),
    *("--hierarchical-context-parallel-sizes", "--no-check-for-nan-in-loss-and-grad"),
}
"""Options of the tokenizer and of checkpoints, and two without which Megatron-LM refuses others."""
WITHOUT_MEANING = {
    *("--no-gradient-accumulation-fusion", "--no-bias-dropout-fusion"),
    *("--moe-grouped-gemm", "--reuse-grad-buf-for-mxfp8-param-ag"),
}
"""Options that change a kernel or a collective alone, and where gathered weights are."""


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Layouts that megatron-core 0.16.1 knows."""
    return [case for case in export_cases("megatron-lm") if oldest_megatron_lm(case.spec.layout) is None]


def options_of(case: Case) -> list[list[str]]:
    return [line.split() for line in case.files["megatron_args.txt"].splitlines() if not line.startswith("#")]


def differing(case: Case, options: Sequence[Sequence[str]]) -> list[str]:
    """Differences of the layout from what megatron-core is configured to train."""
    with transformer_engine_stubbed():
        values, configs = core_configs([word for option in options for word in option], case.spec.num_gpus)
    return differences(case.spec, of_megatron_lm(values, {name: fields_of(made) for name, made in configs.items()}))


def test_megatron_core_is_configured_as_the_layout_says(cases):
    found = {case.spec.layout.key: differing(case, options_of(case)) for case in cases}
    assert not {key: sentences for key, sentences in found.items() if sentences}


def test_no_option_can_be_left_out(cases):
    """Each decides the meaning of some layout, or megatron-core does not take the others without it."""
    given = {option[0] for case in cases for option in options_of(case)}
    assert given - {name for name in given if any(is_needed(case, name) for case in cases)} == (
        (NOT_IN_CONFIGS | WITHOUT_MEANING) & given
    )


def is_needed(case: Case, name: str) -> bool:
    rest = [option for option in options_of(case) if option[0] != name]
    if len(rest) == len(options_of(case)):
        return False
    try:
        return bool(differing(case, rest))
    except (ArithmeticError, AssertionError, KeyError, RuntimeError, TypeError, ValueError):
        return True


OF_A_CPU = {
    *("bias_dropout_fusion", "masked_softmax_fusion", "persist_layer_norm", "gradient_accumulation_fusion"),
    *("apply_rope_fusion", "moe_grouped_gemm"),
}
"""Fused kernels, which the engine takes where they are installed."""
WITHOUT_EFFECT = {
    *("cp_comm_type", "inference_sampling_seed", "use_cpu_initialization", "grad_reduce_in_fp32"),
    *("barrier_with_L1_time", "fp8_recipe", "muon_momentum", "optimizer_offload_fraction", "min_lr"),
}
"""Dtype of gradients where weights have fp32; parts that no layout has."""
PARLAYS_OWN = {
    *("init_method", "embedding_init_method", "output_layer_init_method", "adam_beta2", "lr", "initial_loss_scale"),
}
"""Initial weights and optimizer settings of all of Parlay's engines."""


def test_the_engine_configures_megatron_core_as_the_options_do(cases):
    compared = 0
    for case in cases:
        few = {name: axis.values_of(MEGATRON_CORE) for name, axis in AXES.items()}
        others = {
            name: AXES[name].default
            for name, values in few.items()
            if values is not None and getattr(case.spec.layout, name) not in values
        }
        layout = replace(case.spec.layout, engine=MEGATRON_CORE, **others).canonical()
        if any(engine_violations(layout, case.spec.model)):
            continue
        compared += 1
        files = EXPORT.files(replace(case.spec, layout=replace(layout, engine="megatron-lm")))
        with transformer_engine_stubbed():
            ours = engine_configs(replace(case.spec, layout=layout))
            _, theirs = core_configs(words_of(files["megatron_args.txt"]), case.spec.num_gpus)
        for name, config in ours.items():
            mine, other = fields_of(config), fields_of(theirs[name])
            differing = {field for field in {*mine, *other} if mine.get(field) != other.get(field)}
            assert differing <= OF_A_CPU | WITHOUT_EFFECT | PARLAYS_OWN, layout.key
            assert "grad_reduce_in_fp32" not in differing or layout.precision == "fp32"
    assert compared >= 8


def engine_configs(spec: TrialSpec) -> dict[str, Any]:
    """Configurations that the engine megatron-core makes of the layout."""
    import torch

    from trials.train.engines.engine import TrainingConfig
    from trials.train.engines.megatron_core_config import ddp_config, optimizer_config, transformer_config
    from trials.train.engines.optimizer import OptimizerConfig
    from trials.train.model.initial_weights import WeightSource

    weights = WeightSource(spec.seed, torch.device("cpu"))
    training = TrainingConfig(spec.model, spec.layout, weights, OptimizerConfig(), Routing.of(spec.measure.routing))
    has_grouped_products = "moe_act" in spec.layout.modules_recomputed
    return {
        "transformer": transformer_config(training, has_te_layers=has_grouped_products),
        "ddp": ddp_config(spec.layout),
        "optimizer": optimizer_config(training),
    }


@pytest.mark.parametrize(("kernel", "flash", "unfused"), [("flash", "1", "0"), ("math", "0", "1")])
def test_megatron_core_leaves_transformer_engine_one_kernel_of_attention(monkeypatch, kernel, flash, unfused):
    from megatron.core.models.common.language_module.language_module import LanguageModule

    layout = Layout(engine=MEGATRON_CORE, precision="bf16", attention_kernel=kernel)
    config = engine_configs(make_spec(layout))["transformer"]
    for name in ("FLASH", "FUSED", "UNFUSED"):
        monkeypatch.setenv(f"NVTE_{name}_ATTN", "to be restored")
        monkeypatch.delenv(f"NVTE_{name}_ATTN")
    LanguageModule._set_attention_backend(SimpleNamespace(config=config))
    found = {name: os.environ[f"NVTE_{name}_ATTN"] for name in ("FLASH", "FUSED", "UNFUSED")}
    assert found == {"FLASH": flash, "FUSED": "0", "UNFUSED": unfused}


@pytest.mark.processes
def test_pretrain_gpt_makes_the_same_configurations_of_the_options(cases, tmp_path):
    checkout = Path(os.environ.get(DOWNLOADS, "no downloads")) / "Megatron-LM"
    if not checkout.is_dir():
        pytest.skip(f"no downloads: {DOWNLOADS} names no folder with a checkout of Megatron-LM")
    words = [words_of(case.files["megatron_args.txt"]) for case in cases]
    questions = [question("megatron-lm", case, tmp_path / f"{n}") | {"words": words[n]} for n, case in enumerate(cases)]
    answers = ask("megatron-lm", at_version(checkout, CORE_TAG, tmp_path / "source"), questions, tmp_path)
    for case, given, answer in zip(cases, words, answers, strict=True):
        with transformer_engine_stubbed():
            _, configs = core_configs(given, case.spec.num_gpus)
        assert answer["configs"] == {name: fields_of(made) for name, made in configs.items()}
        assert answer["vocabulary"] == case.spec.model.vocab_size
