"""megatron-core 0.16.1 on a CPU: its local layers, over gloo.

It names the device `cuda` instead of asking for it, so that a CPU answers torch.cuda's calls. Each patch names the
function that fails first without it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed import distributed_c10d
from torch.overrides import TorchFunctionMode

from trials.train.cpu_device.patch import Patch, apply_all

CPU = torch.device("cpu")


def emulate_device() -> None:
    """Apply all patches, before a model is built. RuntimeError where there is a GPU."""
    apply_all(PATCHES)


class _CpuForCuda(TorchFunctionMode):
    """Runs torch's functions with `cpu` where they are given a CUDA device."""

    def __torch_function__(
        self, function: Callable, types: Any, arguments: tuple = (), options: dict[str, Any] | None = None
    ) -> Any:
        given = options or {}
        if _is_cuda(given.get("device")):
            given = {**given, "device": CPU}
        return function(*(CPU if _is_cuda(value) else value for value in arguments), **given)


def _is_cuda(value: Any) -> bool:
    if isinstance(value, str):
        return value.partition(":")[0] == "cuda"
    return isinstance(value, torch.device) and value.type == "cuda"


def _use_cpu_for_cuda() -> None:
    _CpuForCuda().__enter__()


def _answer_current_device() -> None:
    torch.cuda.current_device = lambda: CPU  # type: ignore[assignment,return-value]


def _keep_tensors_in_place() -> None:
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[method-assign]


def _name_types_as_on_a_gpu() -> None:
    type_of = torch.Tensor.type

    def named(tensor: torch.Tensor, dtype: Any = None, **options: Any) -> Any:
        if dtype is not None:
            return type_of(tensor, dtype, **options)
        return "torch.cuda." + type_of(tensor).rpartition(".")[2]

    torch.Tensor.type = named  # type: ignore[assignment,method-assign]


def _call_now(function: Callable[[], None], **_: Any) -> None:
    function()


def _use_cpu_random_numbers() -> None:
    # manual_seed is left out: the generator is the process's own, which the caller would not expect to be seeded.
    torch.cuda.manual_seed = torch.cuda.manual_seed_all = lambda seed: None
    torch.cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    torch.cuda.random.get_rng_state = torch.cuda.get_rng_state
    torch.cuda.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    # In place: a library that was imported earlier holds torch's function, whose queue would keep every call.
    torch.cuda._lazy_call.__code__ = _call_now.__code__
    torch.cuda.default_generators = {CPU: torch.default_generator}  # type: ignore[assignment]


def _do_not_wait() -> None:
    torch.cuda.synchronize = lambda *_: None


class _OnlyStream:
    """The order of a CPU's operations, as a stream and as an event in it."""

    def record_event(self, event: Any = None) -> _OnlyStream:
        return self

    def _wait(self, *_: Any) -> None:
        pass

    wait_stream = wait_event = synchronize = wait = record = _wait


def _run_in_one_stream() -> None:
    only = _OnlyStream()
    torch.cuda.Stream = lambda *_, **__: only  # type: ignore[assignment,misc]
    torch.cuda.current_stream = lambda *_: only  # type: ignore[assignment]
    torch.cuda.stream = lambda stream: nullcontext()  # type: ignore[assignment,return-value]


def _send_copies() -> None:
    isend = distributed_c10d.isend
    pending: defaultdict[Any, deque[tuple[Any, torch.Tensor]]] = defaultdict(deque)

    def send_copy(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        copy = tensor.detach().clone()
        with torch._C.DisableTorchFunction():  # else torch calls the function of this name again: this one
            work = isend(copy, *arguments, **options)
        # gloo calls a send complete only once it was waited for, and megatron-core never waits for one a step of its
        # interleaved schedule. Sends to one rank in one group complete in order.
        earlier = pending[arguments, tuple(options.items())]
        while any(sent.is_completed() for sent, _ in earlier):
            earlier.popleft()
        earlier.append((work, copy))
        return work

    torch.distributed.isend = distributed_c10d.isend = send_copy


def _marked_norm(config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> nn.Module:
    """Layer norm or RMS norm of torch, whose weights are marked as those of Apex and Transformer Engine are."""
    kind = nn.RMSNorm if config.normalization == "RMSNorm" else nn.LayerNorm
    norm = kind(hidden_size, eps=eps)
    for parameter in norm.parameters():
        parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return norm


def _mark_norms() -> None:
    from megatron.core.transformer import torch_norm

    torch_norm.WrappedTorchNorm.__new__ = staticmethod(lambda cls, *values, **named: _marked_norm(*values, **named))


def _name_missing_kernel() -> None:
    from megatron.core.transformer.moe import moe_utils

    vars(moe_utils).setdefault("te_general_gemm", None)


def _compute_discarded_outputs_without_8_bits() -> None:
    from megatron.core.tensor_parallel import random

    prepare = random.CheckpointWithoutOutput.__init__

    def without_8_bits(self: Any, *arguments: Any, **named: Any) -> None:
        prepare(self, *arguments, **named)
        self.fp8 = False

    random.CheckpointWithoutOutput.__init__ = without_8_bits


def _give_numbers_to_all_to_alls() -> None:
    from megatron.core.transformer.moe import token_dispatcher

    def numbers(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and isinstance(tensor, torch.Tensor) else tensor

    token_dispatcher.maybe_move_tensor_to_cpu = numbers


def _exchange_unequal_parts() -> None:
    distributed = torch.distributed
    gather, scatter = distributed.all_gather, distributed.reduce_scatter

    def all_gather(parts: list[torch.Tensor], mine: torch.Tensor, group: Any = None, **options: Any) -> Any:
        if _are_equal(parts):
            return gather(parts, mine, group=group, **options)
        parts[distributed.get_rank(group)].copy_(mine)
        for source, part in enumerate(parts):
            distributed.broadcast(part, group=group, group_src=source)
        return None

    def reduce_scatter(mine: torch.Tensor, parts: list[torch.Tensor], group: Any = None, **options: Any) -> Any:
        if _are_equal(parts):
            return scatter(mine, parts, group=group, **options)
        for owner, part in enumerate(parts):
            total = part.clone()
            distributed.reduce(total, group=group, group_dst=owner)
            if owner == distributed.get_rank(group):
                mine.copy_(total)
        return None

    distributed.all_gather = all_gather  # type: ignore[assignment]
    distributed.reduce_scatter = reduce_scatter  # type: ignore[assignment]


def _are_equal(parts: list[torch.Tensor]) -> bool:
    return len({part.shape for part in parts}) == 1


PATCHES = (
    Patch(
        "device_word",
        "torch.tensor(device='cuda'), of megatron/core/optimizer/optimizer.py: MixedPrecisionOptimizer.__init__()",
        _use_cpu_for_cuda,
    ),
    Patch(
        "current_device",
        "torch.cuda.current_device(), of megatron/core/tensor_parallel/layers.py: VocabParallelEmbedding.__init__()",
        _answer_current_device,
    ),
    Patch(
        "tensor_cuda",
        "Tensor.cuda(), of megatron/core/models/common/language_module/language_module.py:"
        " setup_embeddings_and_output_layer()",
        _keep_tensors_in_place,
    ),
    Patch(
        "tensor_type",
        "Tensor.type() compared with 'torch.cuda.FloatTensor', of megatron/core/optimizer/distrib_optimizer.py:"
        " _build_model_and_main_param_groups()",
        _name_types_as_on_a_gpu,
    ),
    Patch(
        "random_numbers",
        "torch.cuda.get_rng_state(), of megatron/core/tensor_parallel/random.py: CudaRNGStatesTracker.add()",
        _use_cpu_random_numbers,
    ),
    Patch(
        "synchronize",
        "torch.cuda.synchronize(), of megatron/core/pipeline_parallel/p2p_communication.py: _communicate()",
        _do_not_wait,
    ),
    Patch(
        "stream",
        "torch.cuda.Stream(), of megatron/core/transformer/moe/token_dispatcher.py: MoEAlltoAllTokenDispatcher",
        _run_in_one_stream,
    ),
    Patch(
        "isend",
        "torch.distributed.isend(), of megatron/core/pipeline_parallel/p2p_communication.py: _p2p_ops(); a CUDA stream"
        " keeps the tensor as it is until it is sent",
        _send_copies,
    ),
    Patch(
        "sequence_parallel_norm",
        "assert not config.sequence_parallel, of megatron/core/transformer/torch_norm.py: WrappedTorchNorm.__new__()",
        _mark_norms,
    ),
    Patch(
        "router_kernel",
        "te_general_gemm, which megatron/core/transformer/moe/moe_utils.py tests without having imported it",
        _name_missing_kernel,
    ),
    Patch(
        "discarded_outputs",
        "FP8GlobalStateManager of Transformer Engine, which megatron/core/tensor_parallel/random.py:"
        " CheckpointWithoutOutput asks where its fp8 is False, too",
        _compute_discarded_outputs_without_8_bits,
    ),
    Patch(
        "split_sizes",
        "is_cuda of what is to become numbers, of megatron/core/transformer/moe/moe_utils.py:"
        " maybe_move_tensor_to_cpu()",
        _give_numbers_to_all_to_alls,
    ),
    Patch(
        "unequal_parts",
        "all_gather() and reduce_scatter() of unequal parts, of megatron/core/tensor_parallel/mappings.py:"
        " _gather_along_first_dim(); gloo has equal ones alone",
        _exchange_unequal_parts,
    ),
)
