"""Patches of torch.cuda's calls, which a CPU then answers: for libraries that name the device `cuda` instead of asking
for it.

Each patch names the function of megatron-core 0.16.1 that fails first without it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.distributed import distributed_c10d
from torch.overrides import TorchFunctionMode

from trials.train.cpu_device.patch import Patch

CPU = torch.device("cpu")


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
)
