"""Patches for the pretrain_gpt.py of a checkout, beside those of Parlay's engine megatron-core."""

from __future__ import annotations

import os
import re
import sys
import typing
from contextlib import nullcontext
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import distribution
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
import typing_extensions

from trials.train.cpu_device import megatron_core
from trials.train.cpu_device.patch import Patch, apply_all

MEMORY_BYTES = 16 * 2**30


def emulate_device() -> None:
    """Apply all patches; the checkout must be first on the path."""
    apply_all([*IMPORTS, *megatron_core.PATCHES, *DEVICE, *MEGATRON])


class _TritonFinder(MetaPathFinder, Loader):
    """Finds a mock of triton and of all its modules: its decorators and types are named where kernels are defined."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "triton" else None

    def create_module(self, spec: ModuleSpec) -> Any:
        return MagicMock(__version__="3.5.0")

    def exec_module(self, module: ModuleType) -> None:
        pass


def _find_triton() -> None:
    sys.meta_path.append(_TritonFinder())


def _use_re_for_regex() -> None:
    sys.modules["regex"] = re


def _add_override() -> None:
    typing.override = typing_extensions.override  # type: ignore[attr-defined]


def _do_not_compile() -> None:
    os.environ["TORCHDYNAMO_DISABLE"] = "1"


def _find_dataset_helpers() -> None:
    from megatron.core import datasets
    from megatron.core.datasets import utils

    utils.compile_helpers = lambda: None
    datasets.__path__.append(str(distribution("megatron-core").locate_file("megatron/core/datasets")))


IMPORTS = (
    Patch(
        "triton", "import triton, of megatron/core/transformer/custom_layers/batch_invariant_kernels.py", _find_triton
    ),
    Patch(
        "regex", "import regex, of megatron/training/tokenizer/gpt2_tokenization.py in core_v0.16.1", _use_re_for_regex
    ),
    Patch(
        "override",
        "from typing import override (Python 3.12), of megatron/training/models/gpt.py on main",
        _add_override,
    ),
    Patch("compiler", "jit_fuser = torch.compile, of megatron/core/jit.py: enable_jit_fuser()", _do_not_compile),
    Patch("helpers", "make, of megatron/core/datasets/utils.py: compile_helpers()", _find_dataset_helpers),
)


class _Stream:
    """A CUDA stream or event on which everything is done at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = 0

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def _nothing(self, *_: Any, **__: Any) -> None:
        pass

    synchronize = wait = wait_stream = wait_event = record = _nothing

    def record_event(self, *_: Any) -> _Stream:
        return self

    def query(self) -> bool:
        return True


def _stand_for_streams() -> None:
    torch.cuda.Stream = torch.cuda.Event = _Stream  # type: ignore[assignment,misc]
    torch.cuda.current_stream = torch.cuda.default_stream = lambda *_: _Stream()  # type: ignore[assignment]
    torch.cuda.stream = lambda *_: nullcontext()  # type: ignore[assignment]
    torch.Tensor.record_stream = lambda *_: None  # type: ignore[assignment]


def _report_a_device() -> None:
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: int(os.environ["LOCAL_WORLD_SIZE"])
    torch.cuda.set_device = lambda *_: None
    torch.cuda.get_device_capability = lambda *_: (8, 0)
    properties = SimpleNamespace(name="cpu", major=8, minor=0, total_memory=MEMORY_BYTES, multi_processor_count=1)
    torch.cuda.get_device_properties = lambda *_: properties


def _report_resident_memory() -> None:
    torch.cuda.memory_allocated = torch.cuda.memory_reserved = lambda *_: _resident_bytes("VmRSS")
    torch.cuda.max_memory_allocated = torch.cuda.max_memory_reserved = lambda *_: _resident_bytes("VmHWM")
    torch.cuda.reset_peak_memory_stats = torch.cuda.empty_cache = lambda *_: None
    torch.cuda.memory_stats = lambda *_: {}


def _resident_bytes(name: str) -> int:
    with open("/proc/self/status") as stream:
        return 1024 * next(int(line.split()[1]) for line in stream if line.startswith(name))


DEVICE = (
    Patch(
        "device",
        "assert torch.cuda.is_available(), of megatron/training/initialize.py: initialize_megatron()",
        _report_a_device,
    ),
    Patch(
        "streams",
        "torch.cuda.Stream(), of megatron/core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py:"
        " _init_fsdp_param_and_grad_buffer()",
        _stand_for_streams,
    ),
    Patch(
        "memory",
        "torch.cuda.max_memory_reserved(), of megatron/training/utils: report_memory()",
        _report_resident_memory,
    ),
)


def _load_no_kernels() -> None:
    try:
        from megatron.legacy import fused_kernels
    except ImportError:  # removed from main
        return
    fused_kernels.load = lambda args: None


MEGATRON = (Patch("kernels", "nvcc, of megatron/legacy/fused_kernels/__init__.py: load()", _load_no_kernels),)
