"""The command lines of the Megatrons: megatron-core's table in their words, and Megatron-LM's own. Standard library
only.

Option names: megatron/training/arguments.py (accepted by its parser as of 2026-08). Defaults give way to options that
the user names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from search_spaces.hardware.default_links import default_links
from search_spaces.layouts.groups import rank_groups
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.routing import BALANCED, Routing
from trials.ranks.cuda_connections import connections
from trials.trainers.base import NEVER, train_iterations
from trials.trainers.common.megatron_core import CORE_ROWS, all_fields
from trials.trainers.common.megatron_layout import is_on
from trials.trainers.common.options import option_name, option_names, option_value
from trials.trainers.table import Keys, Row, Table, Trained, Values, by_option, number
from trials.trial import TrialSpec

Option = Sequence[str]
NO_DROPOUT = {"attention-dropout": "0.0", "hidden-dropout": "0.0"}
"""Dropout off; Megatron's default is 0.1 for both."""
NO_DROPOUT_OPTIONS = [["--" + name, value] for name, value in NO_DROPOUT.items()]
"""Dropout off as in trials, for a recipe; a later option overrides it."""
_DEFAULTS = {"lr": "1.0e-4", **NO_DROPOUT}
OF_A_TRIAL: Mapping[str, Callable[[TrialSpec], Any]] = {
    "train-iters": train_iterations,
    "log-interval": lambda spec: 1,
    "eval-iters": lambda spec: 0,
    "eval-interval": lambda spec: NEVER,
    "seed": lambda spec: spec.seed,
}
"""Options of a trial's length and log, with their values."""


# -- words of a command line


@dataclass(frozen=True)
class CommandLine:
    """A Megatron's table in the words of its command line: an option with a hyphen for each underscore of a field, a
    flag for true, nothing for false and None.

    A flag of `flags` stands for values of one or several fields: `--swiglu` is a gate and SiLU. Of those that fit, the
    first is written, and the fields it stands for are written no more. Flags of `older` are only read.

    `names` are options by field where they have another name, or further ones after a blank: the first is written. An
    option is left out where its field has the value of `defaults`, or is one of `implied` by others. `of_a_trial` are
    the options that a trial has beside the table.
    """

    table: Table
    flags: Mapping[str, Values]
    older: Mapping[str, Values]
    names: Mapping[str, str]
    defaults: Values
    implied: frozenset[str]
    of_a_trial: frozenset[str]

    def options(self, spec: Any, more: Values | None = None) -> Iterator[Option]:
        """The options of a trial's layout, model and batch, and of `more` fields: flags that stand for several of them
        first, then each field that is left by its own name, unless it has its default."""
        fields = {**self.table.written(spec), **(more or {})}
        left = {name: value for name, value in fields.items() if name not in self.implied}
        for flag, said in self.flags.items():
            if said.items() <= left.items():
                yield [f"--{flag}"]
                left = {name: value for name, value in left.items() if name not in said}
        for name, value in left.items():
            if value is not None and value is not False and value != [] and value != self.defaults.get(name):
                yield [f"--{self._options(name)[0]}", *([] if value is True else _words(name, value))]

    def fields(self, option: str, value: Any) -> Values:
        """The fields that an option of a file says, by name."""
        said = self.flags.get(option) or self.older.get(option)
        if said and value is True:
            return said
        theirs = (field for field in self.names if option in self._options(field))
        return {next(theirs, option.replace("-", "_")): value}

    @property
    def switches(self) -> frozenset[str]:
        """Every option without a value that says something about a field of the table."""
        on_or_off = (name for name, value in all_fields(self.table.rows).items() if type(value) is bool)
        return frozenset({*self.flags, *self.older, *(self._options(name)[0] for name in on_or_off)})

    def refusal(self, name: str) -> str | None:
        """The reason why the user's arguments may not have an option of this name; None where they may."""
        of_fields = {option for field in all_fields(self.table.rows) for option in self._options(field)}
        if name in (self.of_a_trial | self.switches | of_fields) - _USERS:
            return "the layout, model or measure section sets it"
        return _REFUSED.get(name) or self.table.refusal(name.replace("-", "_"))

    def _options(self, field: str) -> list[str]:
        return self.names.get(field, field.replace("_", "-")).split()


def _words(name: str, value: Any) -> list[str]:
    if name == "window_size":
        return [",".join(map(str, value))]
    if name == "moe_layer_freq":
        return [f"({'+'.join(f'[{kind}]*{len([*run])}' for kind, run in groupby(value))})"]
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


_USERS = frozenset(
    {
        *("make-vocab-size-divisible-by", "ckpt-format", "use-precision-aware-optimizer", "optimizer-offload-fraction"),
        *("accumulate-allreduce-grads-in-fp32", "no-check-for-nan-in-loss-and-grad", "no-gradient-accumulation-fusion"),
        *("no-bias-dropout-fusion", "no-rope-fusion", "moe-grouped-gemm", "moe-router-dtype", "moe-aux-loss-coeff"),
        *("moe-router-load-balancing-type", "no-bias-gelu-fusion", "hierarchical-context-parallel-sizes"),
    }
)
"""Options that a layout needs in places, and that the user may give otherwise: kernels, what balances experts, and the
sizes of a hierarchy."""
_REFUSED: Mapping[str, str] = {
    "save": "a trial writes no checkpoint",
    "train-samples": "a trial counts iterations",
    "exit-interval": "a trial ends when its measurement is precise enough",
    "rampup-batch-size": "the global batch is fixed",
    "fp4-recipe": "the layout has its usual one",
    "openai-gelu": "the model section has no such model for this trainer",
}


# -- rows of both forks, and of Megatron-LM

GPT2_VOCAB_SIZE = 50257
_GPT2_TOKENIZER = "GPT2BPETokenizer"
"""The default of pretrain_gpt.py of both Megatrons."""
_VOCABULARY_MULTIPLE = 128


def num_tokens(keys: Keys) -> int | None:
    """The tokenizer's vocabulary: GPT-2's by default, else --vocab-size."""
    tokenizer = keys.text("tokenizer_type") if keys.has("tokenizer_type") else _GPT2_TOKENIZER
    return GPT2_VOCAB_SIZE if tokenizer == _GPT2_TOKENIZER else keys.count("vocab_size")


def padded(keys: Keys, size: int | None) -> int | None:
    """The vocabulary as both pad it: to a multiple of --make-vocab-size-divisible-by times the tensor degree."""
    multiple = keys.count("make_vocab_size_divisible_by") or _VOCABULARY_MULTIPLE
    if size is None or is_on(keys, "should_pad_vocab", True) is False:
        return size
    multiple *= keys.count("tensor_model_parallel_size") or 1
    return -(-size // multiple) * multiple


def _ffn_hidden_size(keys: Keys) -> int | None:
    """Without the option 4 h, and with SwiGLU two thirds of it in steps of 64."""
    hidden = None if keys.has("ffn_hidden_size") else keys.count("hidden_size")
    if hidden is None:
        return keys.count("ffn_hidden_size")
    is_swiglu = keys.text("activation_func") == "silu"
    return int(4 * hidden * 2 / 3 / 64) * 64 if is_swiglu else 4 * hidden


def _sizes(spec: Trained) -> Values:
    """Both pad the tokenizer's vocabulary to a multiple: here to the model's own."""
    model = spec.model
    return {
        "max_position_embeddings": model.seq_length,
        "make_vocab_size_divisible_by": model.vocab_size // spec.layout.tensor_parallel,
    }


OF_BOTH = (
    number("global_batch_size", "global_batch_size"),
    Row("ffn_hidden_size", _sizes, _ffn_hidden_size),
)


def _of_megatron_lm(spec: Trained) -> Values:
    """Gradients in fp32, which Megatron-LM has by itself in bf16 alone."""
    groups, heads = spec.model.num_key_value_heads, spec.model.num_attention_heads
    return {
        "group_query_attention": groups != heads,
        "num_query_groups": groups if groups != heads else None,
        "accumulate_allreduce_grads_in_fp32": spec.layout.precision == "fp16",
    }


def _vocab_size(keys: Keys) -> int | None:
    return keys.count("padded_vocab_size") or padded(keys, num_tokens(keys))


def _key_value_heads(keys: Keys) -> int | None:
    """Megatron-LM counts query groups, by default one, and only with --group-query-attention."""
    if keys.has("group_query_attention"):
        return keys.count("num_query_groups") or keys.default("num_query_groups", 1)
    return keys.count("num_attention_heads")


TRAINS_ANOTHER = by_option(
    {
        "no field of the model section expresses it": """
            attention_output_gate decoder_num_layers enable_mhc_connections experimental_attention_variant
            heterogeneous_* hybrid_*pattern is_hybrid_model kd_config linear_attention_freq moe_latent_size
            moe_shared_expert_gate mtp_detach_heads mtp_hsm mtp_hybrid_override_pattern mtp_use_repeated_layer
            qk_l2_norm retro_* teacher use_kitchen*
            """,
        "the model is described in another file, which is not read": "spec yaml_cfg",
        "the trainer pretrains a whole GPT": "sft freeze_* *skip_train vision_pretraining",
        "the values are in a checkpoint, which is not read": "use_*checkpoint_args",
        "context parallelism is no axis of a layout in this form": "hybrid_context_parallel",
        "no matmul_precision has it": "fp8_output_proj fp8_*attention te_precision_config_file quant_recipe",
        "this sharding is no value of zero_stage": (
            "*use_torch_fsdp2 *use_custom_fsdp *tensor_parallel_num_weight_shards *gtp_*remat*"
        ),
        "recomputation of a layout has no such part": (
            "distribute_saved_activations moe_layer_recompute fine_grained_activation_offloading"
        ),
        "the global batch of a search is fixed": "*decrease_batch_size_if_needed",
        "the trainer has no such option any more": "batch_size model_parallel_size warmup checkpoint_activations",
    }
)
"""Reasons why an option, by its name with underscores, would train another model or otherwise; `*` stands for any
characters."""

_FLAGS: Mapping[str, Values] = {
    "swiglu": {"gated_linear_unit": True, "activation_func": "silu"},
    "quick-geglu": {"gated_linear_unit": True, "activation_func": "quick_gelu"},
    "squared-relu": {"activation_func": "squared_relu"},
    "disable-bias-linear": {"add_bias_linear": False},
    "untie-embeddings-and-output-weights": {"share_embeddings_and_output_weights": False},
    "no-bias-gelu-fusion": {"bias_activation_fusion": False},
    "no-bias-dropout-fusion": {"bias_dropout_fusion": False},
    "no-rope-fusion": {"apply_rope_fusion": False},
    "no-gradient-accumulation-fusion": {"gradient_accumulation_fusion": False},
    "no-check-for-nan-in-loss-and-grad": {"check_for_nan_in_grad": False},
    "grad-reduce-in-bf16": {"grad_reduce_in_fp32": False},
}
MEGATRON_LM = CommandLine(
    Table(
        "Megatron-LM",
        "2026-08-22 (d98e8a64)",
        (
            *CORE_ROWS,
            *OF_BOTH,
            Row("num_key_value_heads", _of_megatron_lm, _key_value_heads),
            Row("vocab_size", read=_vocab_size),
        ),
        TRAINS_ANOTHER,
        prefix="--",
    ),
    flags=_FLAGS,
    older={
        "use-rotary-position-embeddings": {"position_embedding_type": "rope"},
        "recompute-activations": {"recompute_granularity": "selective"},
        "enable-cuda-graph": {"cuda_graph_impl": "local"},
        "external-cuda-graph": {"cuda_graph_impl": "transformer_engine"},
        "moe-enable-deepep": {"moe_token_dispatcher_type": "flex"},
        "no-pad-vocab-size": {"should_pad_vocab": False},
        "disable-pad-vocab-size": {"should_pad_vocab": False},
    },
    names={
        "num_layers": "num-layers encoder-num-layers",
        "seq_length": "seq-length encoder-seq-length",
        "num_moe_experts": "num-experts",
        "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
        "num_layers_in_first_pipeline_stage": "decoder-first-pipeline-num-layers",
        "num_layers_in_last_pipeline_stage": "decoder-last-pipeline-num-layers",
        "cuda_graph_scope": "cuda-graph-scope cuda-graph-modules",
        "fp8": "fp8-format",
        "fp8_param": "fp8-param-gather",
        "fp4": "fp4-format",
        "fp4_param": "fp4-param-gather",
        "bucket_size": "ddp-bucket-size",
    },
    defaults={
        **{name: True for said in _FLAGS.values() for name, value in said.items() if value is False},
        "activation_func": "gelu",
        "rotary_base": 10_000,
        "context_parallel_size": 1,
        "num_distributed_optimizer_instances": 1,
        "data_parallel_sharding_strategy": "no_shard",
        "optimizer_offload_fraction": 1.0,
        "cuda_graph_impl": "none",
        "softmax_type": "vanilla",
        "rotary_scaling_factor": 1.0,
        "moe_layer_freq": 1,
        "expert_model_parallel_size": 1,
    },
    implied=frozenset(("overlap_p2p_comm", "batch_p2p_comm", "use_te_rng_tracker")),
    of_a_trial=frozenset(
        {
            *OF_A_TRIAL,
            *("log-throughput", "log-memory-interval", "moe-router-force-load-balancing", "padded-vocab-size"),
            *("ddp-num-buckets", "num-layers-per-virtual-pipeline-stage"),
        }
    ),
)


# -- the options of a trial


def megatron_lm_options(spec: TrialSpec, arguments: Sequence[str], newer: Sequence[Option] = ()) -> list[str]:
    """All options of Megatron-LM's script: those of the layout and the rules, then the user's `arguments`.

    `newer` are those of `newer_megatron_lm` that the checkout has. Without data of the user's it uses --mock-data over
    exactly the model's vocabulary. The tokenizer had an end-of-document token more than --vocab-size until April 2026:
    padded, both are the model's.
    """
    own: list[Option] = [["--log-throughput"], ["--log-memory-interval", "5"], ["--distributed-timeout-minutes", "10"]]
    given = option_names(arguments)
    if given.isdisjoint(("mock-data", "data-path", "train-data-path", "data-args-path", "per-split-data-args-path")):
        own.append(["--mock-data"])
    if given.isdisjoint(("tokenizer-type", "vocab-file", "tokenizer-model", "vocab-size")):
        own += [["--tokenizer-type", "NullTokenizer"], ["--vocab-size", str(spec.model.vocab_size - 1)]]
    return words_of_a_trial(spec, [*megatron_lm_layout(spec), *newer], own, arguments)


def megatron_lm_layout(spec: TrialSpec) -> list[Option]:
    """Megatron-LM's options for layout, model and batch, without data and length."""
    is_forced = Routing.of(spec.measure.routing).kind == BALANCED
    return [*MEGATRON_LM.options(spec, {"moe_router_force_load_balancing": is_forced})]


def words_of_a_trial(
    spec: TrialSpec, layout: Sequence[Option], own: Sequence[Option], arguments: Sequence[str]
) -> list[str]:
    """The words of all options of a trial, without our own that the user's `arguments` have, and then these."""
    length = [[f"--{name}", str(value(spec))] for name, value in OF_A_TRIAL.items()]
    defaults = [[f"--{name}", value] for name, value in _DEFAULTS.items()]
    given = option_names(arguments)
    ours = (each for each in [*layout, *length, *own, *defaults] if option_name(each[0]) not in given)
    return [*(word for each in ours for word in each), *arguments]


_FUSED_EXPERTS = {"NVTE_CUTEDSL_FUSED_GROUPED_MLP": "1"}
"""Experts that can be captured are those of a kernel that Transformer Engine has for an asking."""


def environment_of(layout: Layout, accelerator: str, gpus_per_node: int) -> dict[str, str]:
    """Megatron-LM's default variables. HybridEP takes an expert group for one NVLink domain unless it is told the ranks
    of the group in each (NVIDIA-NeMo/Megatron-Bridge, issue 6043)."""
    fused = _FUSED_EXPERTS if layout.captures_experts else {}
    inside = _experts_in_domain(layout, accelerator, gpus_per_node)
    is_cut = layout.expert_dispatcher == "hybridep" and inside < layout.expert_parallel
    return connections(layout, accelerator) | fused | ({HYBRID_EP_RANKS: str(inside)} if is_cut else {})


HYBRID_EP_RANKS = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"


def _experts_in_domain(layout: Layout, accelerator: str, gpus_per_node: int) -> int:
    """Ranks of an expert group that share a link domain of the accelerator's usual node."""
    links, groups = default_links(accelerator, gpus_per_node), rank_groups("expert", layout, layout.rank_order)
    domain = gpus_per_node
    if links is not None:
        domain = links.for_job(layout.num_nodes, gpus_per_node).ranks_per_domain(gpus_per_node)
    return max(1, min(groups.ranks, math.gcd(domain, groups.block) // groups.stride))


def oldest_megatron_lm(layout: Layout) -> str | None:
    """First release that has all options of the layout; None if core_v0.16.1 has them."""
    return "core_v0.18.0" if layout.captures_experts else None


GRADIENT_DTYPE = ("--megatron-fsdp-main-grads-dtype", "fp32")


def newer_megatron_lm(layout: Layout) -> list[Option]:
    """Options that Megatron-LM needs besides those of the layout from core_v0.17.0 on, and refuses before: its
    Megatron-FSDP sums gradients in the weights' dtype by default."""
    sums_in_fp32 = layout.precision != "fp32" and not layout.gradients_in_bf16
    return [GRADIENT_DTYPE] if layout.zero_stage > 1 and sums_in_fp32 else []


def trained_model(model: ModelShape, arguments: Sequence[str]) -> ModelShape:
    """The model as it trains with the user's arguments: with dropout, or with a fused loss."""
    dropouts = [option_value(arguments, name) or value for name, value in NO_DROPOUT.items()]
    return replace(
        model,
        has_dropout=any(value.strip("0.") for value in dropouts),
        fuses_loss="cross-entropy-loss-fusion" in option_names(arguments),
    )
