"""Experts, latent attention, layers for further tokens and offloaded layers, read from the options of Megatron-LM or
the keys of Megatron-Bridge, which are both fields of megatron-core's configuration.

Defaults: megatron/core/transformer/transformer_config.py; of latent attention megatron/training/arguments.py.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from orchestrator.importers.expert_layers import expert_pattern
from orchestrator.importers.settings import FieldReaders, Settings
from search_spaces.layouts.layout import CHOICES, FUSED_DISPATCHERS
from trials.trainers.common.megatron_experts import FLEX

Key = Callable[[str], str]
"""Key of a field of megatron-core's configuration."""
_MOST_LAYERS = 10_000
_OF_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")


class CoreFields:
    """Readers of the fields by `key`. Absent ones have the core's defaults if `has_defaults`, else they are unknown."""

    def __init__(self, key: Key, has_defaults: bool):
        self._key = key
        self._has_defaults = has_defaults

    @property
    def model_fields(self) -> FieldReaders:
        """Readers of the model section."""
        return {
            "num_experts": self.num_experts,
            "experts_per_token": lambda s: self._of_experts(s, "moe_router_topk", 2),
            "expert_ffn_hidden_size": lambda s: self._of_experts(s, "moe_ffn_hidden_size"),
            "shared_expert_ffn_hidden_size": lambda s: self._of_experts(s, "moe_shared_expert_intermediate_size"),
            "num_dense_layers": lambda s: self._layers(s, 0),
            "expert_layer_every": lambda s: self._layers(s, 1),
            "key_value_latent_size": lambda s: self._of_latent(s, "kv_lora_rank", 32),
            "query_latent_size": lambda s: self._of_latent(s, "q_lora_rank"),
            "rotary_head_size": lambda s: self._of_latent(s, "qk_pos_emb_head_dim", 64),
            "value_head_size": lambda s: self._of_latent(s, "v_head_dim", 128),
            "num_mtp_layers": lambda s: self._count_above_0(s, "mtp_num_layers"),
        }

    def num_experts(self, settings: Settings) -> int | None:
        return self._count_above_0(settings, "num_experts")

    def is_latent(self, settings: Settings) -> bool:
        """True with latent attention; without defaults the keys that only it has say so, too."""
        is_stated = settings.has(self._key("multi_latent_attention"))
        return is_stated or (not self._has_defaults and any(settings.has(self._key(name)) for name in _OF_LATENT))

    def latent_head_size(self, settings: Settings) -> int | None:
        """Elements of a head's query with latent attention: those that are rotated, and the others."""
        plain = self._of_latent(settings, "qk_head_dim", 128)
        rotated = self._of_latent(settings, "qk_pos_emb_head_dim", 64)
        return plain + rotated if plain and rotated else None

    def offloaded_layers(self, settings: Settings) -> int | None:
        return self._count_above_0(settings, "cpu_offloading_num_layers")

    def expert_parallel(self, settings: Settings) -> int | None:
        return self._of_experts(settings, "expert_model_parallel_size")

    def expert_tensor_parallel(self, settings: Settings) -> int | None:
        """By default all tensor-parallel ranks split an expert."""
        name = self._key("expert_tensor_parallel_size")
        if self.is_dense(settings) or settings.has(name) or not self._has_defaults:
            return self._of_experts(settings, "expert_tensor_parallel_size")
        return settings.counted(self._key("tensor_model_parallel_size"), 1)

    def expert_dispatcher(self, settings: Settings) -> str | None:
        """The dispatcher, by default all-gather; of `flex` the library, by default DeepEP."""
        if self.is_dense(settings):
            return None
        name = settings.text(self._key("moe_token_dispatcher_type"))
        if name is None and not self._has_defaults:
            return None
        if name != FLEX and not settings.has(self._key("moe_enable_deepep")):
            return name or "allgather"
        backend = settings.text(self._key("moe_flex_dispatcher_backend"))
        return backend or (FUSED_DISPATCHERS[0] if self._has_defaults else None)

    def has_known_dispatcher(self, settings: Settings) -> bool:
        """False for a dispatcher that no layout has."""
        return self.expert_dispatcher(settings) in (None, *CHOICES["expert_dispatcher"])

    def has_known_layers(self, settings: Settings) -> bool:
        """False where experts are in layers that no two numbers of a search file say."""
        pattern = self._pattern(settings)
        return pattern is None or expert_pattern(pattern) is not None

    def is_dense(self, settings: Settings) -> bool:
        """True without experts; where their number may be another file's, only if it is said to be none."""
        stated = settings.value(self._key("num_experts"))
        is_none = settings.is_null(self._key("num_experts")) or str(stated) == "0"
        return is_none or (self._has_defaults and self.num_experts(settings) is None)

    def _of_experts(self, settings: Settings, name: str, default: int | None = None) -> int | None:
        if self.is_dense(settings):
            return None
        return settings.counted(self._key(name), default if self._has_defaults else None)

    def _of_latent(self, settings: Settings, name: str, default: int | None = None) -> int | None:
        if not self.is_latent(settings):
            return None
        return settings.counted(self._key(name), default if self._has_defaults else None)

    def _count_above_0(self, settings: Settings, name: str) -> int | None:
        """A whole number, None where it is 0."""
        return None if str(settings.value(self._key(name))) == "0" else settings.count(self._key(name))

    def _layers(self, settings: Settings, index: int) -> int | None:
        pattern = self._pattern(settings)
        found = None if pattern is None else expert_pattern(pattern)
        return None if found is None else found[index]

    def _pattern(self, settings: Settings) -> list[bool] | None:
        """True for each layer with experts; None without experts, and where the layers are not known. A number N gives
        experts to the first of each N layers."""
        layers = settings.count(self._key("num_layers"))
        given = settings.value(self._key("moe_layer_freq"))
        if self.is_dense(settings) or layers is None or layers > _MOST_LAYERS:
            return None
        if given is None:
            return [True] * layers if self._has_defaults else None
        try:
            found = _evaluated(ast.parse(str(given).strip(), mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return []
        if isinstance(found, int):
            return [layer % found == 0 for layer in range(layers)] if found else []
        return [bool(has_experts) for has_experts in found] if len(found) == layers else []


def _evaluated(node: ast.expr) -> int | list[int]:
    """A whole number, or `([0]*3+[1]*58)` as a list; ValueError for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.List):
        return [value for each in node.elts if isinstance(value := _evaluated(each), int)]
    if isinstance(node, ast.BinOp):
        left, right = _evaluated(node.left), _evaluated(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        is_repeated = isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int)
        if is_repeated and len(left) * right <= _MOST_LAYERS:  # type: ignore[arg-type, operator]
            return left * right  # type: ignore[operator]
    raise ValueError("no pattern of layers")
