"""`python -m tests.trials.external.megatron_on_cpu.left_out CHECKOUT PATCH...`: lines of Megatron-LM without a patch.

Prints JSON: what the line of each patch does without it, and what all these lines do with all patches.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any
from unittest.mock import DEFAULT, MagicMock, patch

from tests.trials.external.megatron_on_cpu import training

NOWHERE = "/nowhere"
"""In place of programs that some machines have."""


def import_of(module: str) -> Callable[[], None]:
    def do() -> None:
        import_module(module)

    return do


def compile_helpers() -> None:
    os.environ["PATH"] = NOWHERE
    from megatron.core.datasets import utils

    utils.compile_helpers()
    from megatron.core.datasets import helpers_cpp  # noqa: F401


def initialize() -> None:
    from megatron.training.initialize import initialize_megatron

    initialize_megatron()


def create_streams() -> None:
    """_init_fsdp_param_and_grad_buffer() of Megatron-FSDP, without the buffers."""
    from megatron.core.distributed.fsdp.src.megatron_fsdp import megatron_fsdp

    buffers = dict.fromkeys(
        ("ParamAndGradBuffer", "BucketingPolicy", "GradReducePipeline", "AllGatherPipeline"), DEFAULT
    )
    with patch.multiple(megatron_fsdp, **buffers):
        megatron_fsdp.MegatronFSDP._init_fsdp_param_and_grad_buffer(MagicMock())


def report_memory() -> str:
    from megatron.training import utils

    args, ranks = SimpleNamespace(log_device_memory_used=False), SimpleNamespace(get_data_parallel_rank=lambda: 0)
    where = sys.modules[utils.report_memory.__module__]
    rank_0 = patch("torch.distributed.get_rank", lambda: 0)
    with patch.multiple(where, get_args=lambda: args, mpu=ranks), rank_0, redirect_stdout(StringIO()) as printed:
        utils.report_memory("")
    return printed.getvalue()


def load_kernels() -> None:
    from torch.utils import cpp_extension

    cpp_extension.CUDA_HOME = NOWHERE
    from megatron.legacy import fused_kernels

    fused_kernels.load(None)


LINES: dict[str, Callable[[], Any]] = {
    "triton": import_of("megatron.core.transformer.custom_layers.batch_invariant_kernels"),
    "regex": import_of("megatron.training.tokenizer.gpt2_tokenization"),
    "override": import_of("megatron.training.models.gpt"),
    "compiler": import_of("megatron.core.fusions.fused_bias_gelu"),
    "helpers": compile_helpers,
    "device": initialize,
    "streams": create_streams,
    "memory": report_memory,
    "kernels": load_kernels,
}
"""The line of Megatron-LM that needs each patch."""


def outcomes_of(names: Sequence[str], without: str | None) -> list[str]:
    """The errors of these patches' lines, or what they return, without one patch or with all."""
    failed = _outcome(lambda: training.emulate_device(without))
    return [failed or _outcome(LINES[name]) for name in names]


def _outcome(line: Callable[[], Any]) -> str:
    try:
        return line() or ""
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    checkout, *names = sys.argv[1:]
    sys.argv[1:] = []
    sys.path.insert(0, checkout)
    todo = [*(([name], name) for name in names), (names, None)]
    with get_context("fork").Pool(1, maxtasksperchild=1) as pool:  # a patch stays for the life of a process
        *without, with_all = pool.starmap(outcomes_of, todo, chunksize=1)
    print(json.dumps([*zip(names, (outcome for [outcome] in without), with_all, strict=True)]))
