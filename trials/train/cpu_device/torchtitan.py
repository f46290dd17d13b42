"""torchtitan 0.3.0 on a CPU, with torch 2.13, over gloo."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from trials.train.cpu_device.patch import Patch, apply_all

_MEMORY_BYTES = 16 * 2**30
"""Capacity that torchtitan prints; nothing depends on it."""


def emulate_device() -> None:
    """Apply all patches, before torchtitan is imported. RuntimeError where there is a GPU."""
    apply_all(PATCHES)


def _name_device() -> None:
    import torch._utils

    torch._utils._get_available_device_type = lambda: "cpu"


def _answer_memory() -> None:
    module: Any = torch.cpu
    module.get_device_name = lambda device=None: "cpu"
    module.get_device_properties = lambda device=None: SimpleNamespace(total_memory=_MEMORY_BYTES)
    module.reset_peak_memory_stats = module.empty_cache = lambda *_: None
    module.current_device = lambda: 0
    module.memory_stats = lambda device=None: {}


class _NoKernels(ModuleType):
    """triton, whose kernels are declared and never called."""

    def __init__(self, name: str):
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _NoKernels(name)

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        return arguments[0] if arguments else self


def _import_without_triton() -> None:
    from torch._inductor import compile_fx  # noqa: F401  # it asks for triton, too, and does without
    from torch.utils._triton import has_triton_package

    if has_triton_package():
        return

    names = ("triton", "triton.language")
    sys.modules.update({name: _NoKernels(name) for name in names})
    try:
        import torchtitan.trainer  # noqa: F401
    finally:
        for name in names:
            del sys.modules[name]


def _attend_by_mask() -> None:
    from torch.nn.attention.flex_attention import create_mask
    from torchtitan.models.common.attention import FlexAttention

    def attention(q: Any, k: Any, v: Any, *, block_mask: Any, scale: Any, enable_gqa: bool, **_: Any) -> Any:
        mask = create_mask(block_mask.mask_mod, q.shape[0], 1, q.shape[2], k.shape[2], device="cpu")
        mixed = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa
        )
        return mixed, SimpleNamespace(lse=None)

    FlexAttention._compiled_flex_attn = staticmethod(attention)


def _build_masks_eagerly() -> None:
    from torch.distributed.tensor.experimental._context_parallel import _attention
    from torch.nn.attention.flex_attention import create_block_mask

    _attention._compiled_create_block_mask = create_block_mask  # type: ignore[assignment]


def _multiply_expert_by_expert() -> None:
    from torch.distributed.tensor import DTensor
    from torch.nn import functional
    from torchtitan.models.common.moe import GroupedExperts

    def forward(self: Any, tokens: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        weights = [w.to_local() if isinstance(w, DTensor) else w for w in (self.w1_EFD, self.w2_EDF, self.w3_EFD)]
        parts = zip(tokens.split(counts.tolist()), *weights, strict=True)
        linear, silu = functional.linear, functional.silu
        return torch.cat([linear(silu(linear(x, gate)) * linear(x, value), out) for x, gate, out, value in parts])

    GroupedExperts.forward = forward


def _divide_before_sums() -> None:
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

    factors = collectives._get_gradient_divide_factors

    def forced(group: Any, all_reduce_group: Any, dtype: Any, device: str = "", factor: Any = None, *_: Any) -> Any:
        return factors(group, all_reduce_group, dtype, device, factor, True)

    collectives._get_gradient_divide_factors = forced  # type: ignore[assignment]


def _take_micro_batches() -> None:
    from torch.distributed.pipelining import schedules

    def taking(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(
            self: Any,
            *arguments: Any,
            arg_mbs: Any = None,
            kwarg_mbs: Any = None,
            target_mbs: Any = None,
            losses: Any = None,
            return_outputs: bool = True,
            loss_kwargs: Any = None,
            **named: Any,
        ) -> Any:
            if kwarg_mbs is None:
                return step(
                    self,
                    *arguments,
                    losses=losses,
                    return_outputs=return_outputs,
                    loss_kwargs=loss_kwargs,
                    **named,
                )
            for stage in getattr(self, "_stages", None) or [self._stage]:
                stage.has_backward = self._has_backward
                stage.clear_runtime_states()
            inputs = arg_mbs or [()] * len(kwarg_mbs)
            return self._step_microbatches(
                inputs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs=loss_kwargs
            )

        return run

    for kind in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
        if "arg_mbs" not in inspect.signature(kind.step).parameters:
            kind.step = taking(kind.step)  # type: ignore[method-assign]


PATCHES = (
    Patch("device_type", "torch._utils._get_available_device_type(), None without a GPU", _name_device),
    Patch("device_memory", "torchtitan/components/metrics.py DeviceMemoryMonitor", _answer_memory),
    Patch("triton", "torchtitan/distributed/minimal_async_ep/kernels.py import triton", _import_without_triton),
    Patch("flex_attention", "torchtitan/models/common/attention.py FlexAttention._compiled_flex_attn", _attend_by_mask),
    Patch(
        "micro_batches",
        "torch/distributed/pipelining of 2.14: step(arg_mbs, kwarg_mbs, target_mbs)",
        _take_micro_batches,
    ),
    Patch(
        "grouped_mm",
        "torchtitan/models/common/moe.py GroupedExperts.forward: bf16 whatever the precision",
        _multiply_expert_by_expert,
    ),
    Patch(
        "block_mask",
        "torch/distributed/tensor/experimental/_context_parallel/_attention.py _create_cp_block_mask: compiled",
        _build_masks_eagerly,
    ),
    Patch("sum", "torch/distributed/fsdp: ReduceOp.PREMUL_SUM, which gloo has not", _divide_before_sums),
)
