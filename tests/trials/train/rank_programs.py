"""Programs of the forked ranks in the parity tests. Arguments and answers are JSON."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook

from search_spaces.decoding import decode
from trials.diagnostics.selftest import Case, case_spec
from trials.files.folders import AttemptFolder
from trials.ranks.environment import RankEnvironment
from trials.ranks.failures import TrialFailure
from trials.train.engines import deepspeed_engine, fsdp
from trials.train.model.chunk import ChunkExecution, ChunkPlan, ModelChunk
from trials.train.model.initial_weights import WeightSource
from trials.train.parallel import collectives, gather
from trials.train.parallel.device import Device
from trials.train.parallel.process_groups import World
from trials.train.parallel.tensor_parallel import TensorParallelRanks
from trials.train.selftest import training

CPU = Device(torch.device("cpu"))


def train_reference(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Ten steps of the plain GPT from the trial program's initial weights, on the same global batches."""
    return asdict(training.train_reference(decode(Case, arguments["case"]), CPU))


def train_layout(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Some steps of a layout by its engine."""
    case, env = decode(Case, arguments["case"]), RankEnvironment.read(os.environ)
    spec = case_spec(case, "cpu", gpus_per_node=case.layout.num_gpus)
    return asdict(training.train_layout(spec, AttemptFolder(folder), env, CPU, arguments["steps"]))


def train_switched_off(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The same without the reduction or guard that `without` names, which would have been used."""
    used = switch_off(arguments["without"])
    trained = train_layout(arguments, folder)
    assert used, f"{arguments['without']} was never used"
    return trained


def train_without_patch(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Train a case without the patch of this name, of the module `library` of trials.train.cpu_device; the error where
    that fails. `compiler`: the C++ compiler that there is."""
    if "compiler" in arguments:
        importlib.import_module("torch._inductor.config").cpp.cxx = (None, arguments["compiler"])
    module = importlib.import_module(f"trials.train.cpu_device.{arguments['library']}")
    left = tuple(patch for patch in module.PATCHES if patch.name != arguments["patch"])
    assert len(left) == len(module.PATCHES) - 1
    module.PATCHES = left
    try:
        return {"trained": train_layout(arguments, folder)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def count_forward_passes(arguments: Mapping[str, Any], folder: Path) -> Counter[str]:
    """One step of a case: forward passes of this rank's modules by their class, those in the backward pass included."""
    passes: Counter[str] = Counter()
    hook = register_module_forward_hook(lambda module, *_: passes.update([type(module).__name__.removeprefix("FSDP")]))
    train_layout({**arguments, "steps": 1}, folder)
    hook.remove()
    return passes


def told_each_other(arguments: Mapping[str, Any], folder: Path) -> Any:
    """Values that a rank gathered from all ranks, each of which sent its part of `told`; the error where that was
    refused."""
    env = RankEnvironment.read(os.environ)
    store = torch.distributed.FileStore(str(folder / "store"), env.world_size)
    torch.distributed.init_process_group("gloo", store=store, rank=env.rank, world_size=env.world_size)
    try:
        return gather.gather_json(arguments["told"][env.rank], CPU.torch_device, arguments["longest_bytes"])
    except ValueError as error:
        return str(error)


def held_parameters(arguments: Mapping[str, Any], folder: Path) -> int:
    """Parameters that a rank counts as held after two steps. `gives_back`: FSDP reshards after each forward pass,
    whatever the layout's stage."""
    if "gives_back" in arguments:
        fully_shard = fsdp.fully_shard
        forced = {"reshard_after_forward": arguments["gives_back"]}
        fsdp.fully_shard = lambda module, **options: fully_shard(module, **options | forced)
    return train_layout({**arguments, "steps": 2}, folder)["parameters"]


def outputs_of_a_pipeline(arguments: Mapping[str, Any], folder: Path) -> dict[str, int]:
    """One step of a pipeline: the number of micro-batches whose logits torch kept until its end, and the number of
    tensors that its schedule concatenated them to."""
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineSchedule

    kept: list[int] = []
    returned: list[Any] = []
    clear, merge = PipelineStage.clear_runtime_states, _PipelineSchedule._merge_outputs
    PipelineStage.clear_runtime_states = lambda stage: (kept.append(len(stage.output_chunks)), clear(stage))[1]
    _PipelineSchedule._merge_outputs = lambda schedule, chunks: (returned.append(chunks), merge(schedule, chunks))[1]
    train_layout({**arguments, "steps": 2}, folder)  # a step begins with clearing what the one before left
    return {"kept": max(kept), "returned": len(returned)}


def graphs_of_compiled_blocks(arguments: Mapping[str, Any], folder: Path) -> int:
    """Number of graphs of each block's forward pass in torch's compiler; no code is generated."""
    compiled: list[Any] = []

    def count(graph: torch.fx.GraphModule, inputs: Any) -> Callable:
        compiled.append(graph)
        return graph.forward

    store = torch.distributed.FileStore(str(folder / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    model = decode(Case, arguments["case"]).model
    group = TensorParallelRanks(0, 1, torch.distributed.group.WORLD, arguments["splits_sequence"])
    chunk = ModelChunk(model, ChunkPlan.of(model, 0, 1), group, WeightSource(1, CPU.torch_device), ChunkExecution())
    for block in chunk.blocks:
        block.compile(backend=count)
    chunk(torch.zeros((2, model.seq_length), dtype=torch.long)).sum().backward()
    return len(compiled)


def reason_of_a_loss_that_is_no_number(arguments: Mapping[str, Any], folder: Path) -> str:
    """Reason for which a step ends whose loss is no number."""
    from torchtitan.trainer import Trainer

    Trainer.forward_backward_step = lambda *_, **__: torch.tensor(torch.nan)
    try:
        train_layout({**arguments, "steps": 1}, folder)
    except TrialFailure as failure:
        return failure.reason
    return "none"


def sees_an_overflow_of_the_last_rank(arguments: Mapping[str, Any], folder: Path) -> bool:
    """True if this rank's optimizer skips a step in which a gradient of the last rank is infinite. `without`
    names a place whose reductions are left out."""
    from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params as Optimizer

    from tests.trials.train.recorded_reductions import Reductions

    Reductions(arguments.get("without")).watch_megatron()
    gradients_of, seen = Optimizer._collect_main_grad_data_for_unscaling, []
    check = Optimizer._unscale_main_grads_and_check_for_nan

    def overflowed(optimizer: Any) -> list[torch.Tensor]:
        gradients = gradients_of(optimizer)
        if torch.distributed.get_rank() == torch.distributed.get_world_size() - 1:
            gradients[0].fill_(torch.inf)
        return gradients

    def noted(optimizer: Any) -> bool:
        seen.append(check(optimizer))
        return True  # a rank that goes on would wait for the others in the norm's sum

    Optimizer._collect_main_grad_data_for_unscaling = overflowed
    Optimizer._unscale_main_grads_and_check_for_nan = noted
    train_layout({**arguments, "steps": 1}, folder)
    return seen == [True]


def sends_freed_before_they_are_waited_for(arguments: Mapping[str, Any], folder: Path) -> int:
    """Number's tensors that megatron-core frees between a send and the wait for it."""
    from torch.distributed import distributed_c10d

    from trials.train.cpu_device import megatron_core

    megatron_core.emulate_device()
    original, freed = distributed_c10d.isend, []

    def isend(tensor: torch.Tensor, *values: Any, **options: Any) -> SimpleNamespace:
        work, elements = original(tensor, *values, **options), tensor.numel()

        def wait() -> None:
            freed.extend([elements] * (tensor.numel() != elements))
            work.wait()

        return SimpleNamespace(wait=wait)

    torch.distributed.isend = distributed_c10d.isend = isend
    train_layout({**arguments, "steps": 1}, folder)
    return len(freed)


def switch_off(name: str) -> list[str]:
    """Disable the reduction or guard of this name; the returned list grows with each suppressed use."""
    used: list[str] = []
    if name in _GUARDS:
        _GUARDS[name](lambda *_: used.append(name))
        return used
    for function, leave_out in _LEFT_OUT.items():
        _replace_everywhere(function, lambda original, leave_out=leave_out: _passing(name, original, leave_out, used))
    return used


def _passing(name: str, original: Callable, leave_out: Callable, used: list[str]) -> Callable:
    """The function, with the one reduction disabled."""

    def reduce(reduction, *arguments, **options):
        if reduction != name:
            return original(reduction, *arguments, **options)
        used.append(name)
        return leave_out(*arguments, **options)

    return reduce


def _replace_everywhere(function: str, replacement: Callable[[Callable], Callable]) -> None:
    """Replace the function in every module of the trainer that imported it."""
    original = getattr(collectives, function)
    for module in _trainer_modules():
        if getattr(module, function, None) is original:
            setattr(module, function, replacement(original))


def _trainer_modules() -> Iterator[ModuleType]:
    return (module for name, module in list(sys.modules.items()) if name.startswith("trials.train."))


class Done:
    """A finished `dist.Work`."""

    def wait(self) -> None:
        pass


def keep(tensor: torch.Tensor, *_: Any, **__: Any) -> Done:
    """Leave a rank its own part of a sum."""
    return Done()


def keep_share(output: torch.Tensor, input: torch.Tensor, *others: Any, group: Any = None, **_: Any) -> Done:
    """This rank's share of its own part of the sum; named as in torch, and the group may be the third argument."""
    ranks = group or others[0]
    output.copy_(input.chunk(torch.distributed.get_world_size(ranks))[torch.distributed.get_rank(ranks)])
    return Done()


_LEFT_OUT: dict[str, Callable] = {
    "reduce_in_place": keep,
    "start_reduce": keep,
    "start_reduce_scatter": keep_share,
    "reduce_scatter": keep_share,
}
"""Effect of each summing function when disabled."""


def _without_parameter_marks(instead) -> None:
    deepspeed_engine._mark_parameters = instead


def _without_clipping(instead) -> None:
    """Compute and return the norm without scaling the gradients."""
    clip = deepspeed_engine.clip_gradients

    def take_norm(chunk: ModelChunk, max_norm: float, world: World) -> torch.Tensor:
        instead()
        return clip(chunk, math.inf, world)

    deepspeed_engine.clip_gradients = take_norm


def _without_tied_gradients(instead) -> None:
    deepspeed_engine._DeepSpeedEngine._sum_tied_gradients = instead


_GUARDS = {
    "deepspeed_parameter_marks": _without_parameter_marks,
    "deepspeed_clipping": _without_clipping,
    "deepspeed_tied_gradients": _without_tied_gradients,
}
