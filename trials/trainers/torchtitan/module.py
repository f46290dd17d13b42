"""A layout as a Python module that torchtitan loads by `--module` and `--config`. Standard library only.

Its configuration is written as calls with literal arguments, which `parlay init --from` reads without running it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import NORM_EPSILON, ModelShape
from search_spaces.plain_file import read_named
from trials.trainers.torchtitan.config import (
    ATTENTION,
    FIRST_LAYERS,
    compile_arguments,
    converter,
    head_dim,
    is_qwen3,
    parallelism_arguments,
    recomputation_policy,
    rope_arguments,
    router_arguments,
    training_arguments,
)
from trials.trial import TrialSpec

CONFIG_FILE = "torchtitan_config.py"
FUNCTION = "parlay"
_FIRST_LAYERS_FILE = "torchtitan_first_layers.py"


def config_files(spec: TrialSpec) -> dict[str, str]:
    """The module, and beside it the policy that torchtitan does not have, where the layout needs it."""
    policy = recomputation_policy(spec.layout)
    more = {_FIRST_LAYERS_FILE: _first_layers()} if policy is not None and policy[0] == FIRST_LAYERS else {}
    return {CONFIG_FILE: config_module(spec.model, spec.layout), **more}


def config_module(model: ModelShape, layout: Layout) -> str:
    """Text of the module. The layout is canonical and violates no rule."""
    policy, converted = recomputation_policy(layout), converter(model, layout)
    kind, has_experts = _QWEN3 if is_qwen3(model) else _LLAMA3, model.num_experts is not None
    more = {**(_experts(model) if has_experts else {}), **_converters(converted)}
    return _MODULE.format(
        imports=_imports(
            kind,
            None if policy is None else policy[0],
            None if converted is None else converted[0],
            has_experts,
        ),
        function=FUNCTION,
        name=kind.name,
        block=kind.block,
        model_class=kind.model,
        parallelize=kind.parallelize,
        adapter=kind.adapter,
        parameters="".join(f"    {name},\n" for name in _sizes(model, layout) | more if name != "converters"),
        qk_norm=kind.qk_norm,
        mlp=_EXPERTS_OR_MLP if has_experts else _MLP,
        experts=_EXPERTS.format(routing=_arguments(_routing(model))) if has_experts else "",
        model=_call(kind.name, _sizes(model, layout) | more, 2),
        training=_call("TrainingConfig", training_arguments(model, layout), 2),
        parallelism=_call("ParallelismConfig", parallelism_arguments(model, layout), 2),
        recomputation="None" if policy is None else _call(f"{policy[0]}.Config", policy[1], 2),
        compilation=_call("CompileConfig", compile_arguments(layout), 2),
        vocab_size=model.vocab_size,
        rope=_call(f"{kind.rope}.Config", {**rope_arguments(model), "theta": _Code("float(theta)")}, 1),
        norm=_arguments({"eps": NORM_EPSILON}),
    )


@dataclass(frozen=True)
class _Kind:
    """A model of torchtitan's by the names of its parts, in torchtitan/models/NAME."""

    name: str
    block: str
    model: str
    adapter: str
    parallelize: str
    rope: str
    qk_norm: str

    @property
    def imports(self) -> tuple[str, ...]:
        folder = f"torchtitan.models.{self.name}"
        return (
            f"from torchtitan.models.common import {self.rope}, Embedding, Linear, RMSNorm",
            f"from {folder}.model import {self.model}, {self.block}",
            f"from {folder}.parallelize import {self.parallelize}",
            f"from {folder}.state_dict_adapter import {self.adapter}",
        )


_LLAMA3 = _Kind(
    "llama3",
    "Llama3TransformerBlock",
    "Llama3Model",
    "Llama3StateDictAdapter",
    "parallelize_llama",
    "ComplexRoPE",
    "None",
)
_QWEN3 = _Kind(
    "qwen3",
    "Qwen3TransformerBlock",
    "Qwen3Model",
    "Qwen3StateDictAdapter",
    "parallelize_qwen3",
    "CosSinRoPE",
    "_norm(head_dim) if qk_norm else None",
)


def _sizes(model: ModelShape, layout: Layout) -> dict[str, Any]:
    return {
        "n_layers": model.num_layers,
        "dim": model.hidden_size,
        "n_heads": model.num_attention_heads,
        "n_kv_heads": model.num_key_value_heads,
        "head_dim": head_dim(model),
        "rope_theta": model.rotary_base,
        "hidden_dim": model.ffn_hidden_size,
        "vocab_size": model.vocab_size,
        "enable_weight_tying": model.tied_embeddings,
        "attn_backend": ATTENTION[layout.attention_kernel],
        **({"qk_norm": model.qk_norm} if is_qwen3(model) else {}),
    }


def _experts(model: ModelShape) -> dict[str, Any]:
    return {
        "num_experts": model.num_experts,
        "experts_per_token": model.experts_per_token,
        "expert_hidden_dim": model.expert_width,
        "shared_expert_hidden_dim": model.shared_expert_ffn_hidden_size,
        "num_dense_layers": model.num_dense_layers,
        "expert_layer_every": model.expert_layer_every,
    }


def _routing(model: ModelShape) -> dict[str, Any]:
    """Choice and weights of experts, but for their numbers."""
    routing = router_arguments(model)
    return {name: routing[name] for name in ("score_func", "route_norm")}


def _converters(converted: tuple[str, dict[str, Any]] | None) -> dict[str, _Code]:
    if converted is None:
        return {}
    (name, arguments), indent = converted, "    " * 4
    return {"converters": _Code(f"[\n{indent}{_call(f'{name}.Config', arguments, 4)}\n{indent[4:]}]")}


class _Code(str):
    """Text that is Python already."""


def _call(name: str, arguments: Mapping[str, Any], depth: int) -> str:
    """A call with one argument a line, at a depth of so many indents."""
    indent = "    " * depth
    lines = (f"{indent}    {key}={_literal(value, depth + 1)}," for key, value in arguments.items())
    return "\n".join([f"{name}(", *lines, f"{indent})"])


def _arguments(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={_literal(value)}" for key, value in values.items())


def _literal(value: Any, depth: int = 0) -> str:
    """A value as Python has it; a list of lists with one of them a line."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        indent = "    " * depth
        return "\n".join(["[", *(f"{indent}    {_literal(each)}," for each in value), f"{indent}]"])
    if isinstance(value, _Code):
        return value
    return json.dumps(value) if isinstance(value, (str, list)) else repr(value)


def _imports(kind: _Kind, policy: str | None, converts: str | None, has_experts: bool) -> str:
    """Import statements, sorted; of the model, its experts, the policy and the converter, too."""
    lines = [*_IMPORTS, *kind.imports, *([_EXPERT_IMPORT] if has_experts else [])]
    if converts is not None:
        lines.append(f"from torchtitan.components.quantization import {converts}")
    if policy not in (None, FIRST_LAYERS):
        lines.append(f"from torchtitan.distributed.activation_checkpoint import {policy}")
    own = ["", f"from .{_FIRST_LAYERS_FILE.removesuffix('.py')} import {policy}"] if policy == FIRST_LAYERS else []
    return "\n".join([*sorted(lines), *own])


def _first_layers() -> str:
    """Source of the policy, as the engine runs it."""
    return read_named(Path(__file__).parents[2] / "train" / "engines" / _FIRST_LAYERS_FILE).decode()


_IMPORTS = (
    "from torch import nn",
    "from torchtitan.components.loss import CrossEntropyLoss",
    "from torchtitan.components.optimizer import default_adamw",
    "from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig",
    "from torchtitan.distributed.pipeline_parallel import pipeline_llm",
    "from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader",
    "from torchtitan.models.common.config_utils import get_attention_config, make_ffn_config, make_gqa_config",
    "from torchtitan.models.common.param_init import depth_scaled_std, skip_param_init",
    "from torchtitan.protocols.model_spec import ModelSpec",
    "from torchtitan.trainer import Trainer",
)
_EXPERT_IMPORT = (
    "from torchtitan.models.common.config_utils import make_moe_config, make_routed_experts_config, make_router_config"
)
_MODULE = '''\
"""Written for torchtitan 0.3.0."""

from functools import partial

{imports}


def {function}() -> Trainer.Config:
    return Trainer.Config(
        model_spec={model},
        training={training},
        parallelism={parallelism},
        activation_checkpoint={recomputation},
        compile={compilation},
        loss=CrossEntropyLoss.Config(global_vocab_size={vocab_size}),
        # Yours, like everything that is not here.
        optimizer=default_adamw(lr=3e-4),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
    )


def {name}(
    *,
{parameters}    converters=(),
):
    """torchtitan's {name} of this shape, with torchtitan's own initial weights."""
{experts}
    def layer(number):
        depth = _normal(depth_scaled_std(0.02, number))
        return {block}.Config(
            attention_norm=_norm(dim),
            ffn_norm=_norm(dim),
            attention=make_gqa_config(
                dim=dim,
                n_heads=n_heads,
                n_kv_heads=n_kv_heads,
                head_dim=head_dim,
                wqkv_param_init=_normal(0.02),
                wo_param_init=depth,
                inner_attention=get_attention_config(attn_backend),
                fuse_qkv=True,
                rope=_rope(rope_theta),
                qk_norm={qk_norm},
            ),
{mlp}
        )

    table = skip_param_init if enable_weight_tying else partial(nn.init.normal_, std=1.0)
    std = dim**-0.5
    head = partial(nn.init.trunc_normal_, std=std, a=-3 * std, b=3 * std)
    model = {model_class}.Config(
        dim=dim,
        vocab_size=vocab_size,
        enable_weight_tying=enable_weight_tying,
        tok_embeddings=Embedding.Config(num_embeddings=vocab_size, embedding_dim=dim, param_init={{"weight": table}}),
        norm=_norm(dim),
        lm_head=Linear.Config(in_features=dim, out_features=vocab_size, param_init={{"weight": head}}),
        layers=[layer(number) for number in range(n_layers)],
    )
    for converter in converters:
        model = converter.build().convert(model)
    return ModelSpec(
        name="{name}",
        flavor="{function}",
        model=model,
        parallelize_fn={parallelize},
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=None,
        state_dict_adapter={adapter},
    )


def _mlp(dim, width, depth):
    return make_ffn_config(dim=dim, hidden_dim=width, w1_param_init=_normal(0.02), w2w3_param_init=depth)


def _rope(theta):
    return {rope}


def _norm(width):
    return RMSNorm.Config(normalized_shape=width, {norm}, param_init={{"weight": nn.init.ones_}})


def _normal(std):
    return {{"weight": partial(nn.init.trunc_normal_, std=std)}}
'''
_MLP = "            feed_forward=_mlp(dim, hidden_dim, depth),"
_EXPERTS_OR_MLP = """\
            feed_forward=None if has_experts(number) else _mlp(dim, hidden_dim, depth),
            moe=experts(depth) if has_experts(number) else None,"""
_EXPERTS = """
    def has_experts(number):
        past_dense = number - num_dense_layers
        return past_dense >= 0 and (past_dense + 1) % expert_layer_every == 0

    def experts(depth):
        shared = shared_expert_hidden_dim
        weights = _normal(0.02)["weight"]
        return make_moe_config(
            num_experts=num_experts,
            router=make_router_config(
                dim=dim, num_experts=num_experts, top_k=experts_per_token, gate_param_init=depth, {routing}
            ),
            routed_experts=make_routed_experts_config(
                dim=dim,
                hidden_dim=expert_hidden_dim,
                num_experts=num_experts,
                top_k=experts_per_token,
                param_init={{"w1_EFD": weights, "w2_EDF": depth["weight"], "w3_EFD": depth["weight"]}},
                comm_backend="standard",
            ),
            shared_experts=None if shared is None else _mlp(dim, shared, depth),
            load_balance_coeff=None,
        )
"""
