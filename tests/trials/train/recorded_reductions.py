"""Program of forked ranks that trains by an engine that others wrote, and counts or leaves out its reductions."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import torch
from torch.distributed import _functional_collectives, distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from search_spaces.engines import MEGATRON_CORE
from tests.trials.train.rank_programs import Done, keep, keep_share, train_layout

_BETWEEN = ("distributed_c10d.py", "_functional_collectives.py", "c10d_logger.py", "_contextlib.py")
"""Files of torch through which a call goes."""
_CONTEXT_CALLS = "torch.distributed.tensor.experimental._context_parallel._cp_custom_ops"
_DISPATCHER = "torchtitan.models.common.token_dispatcher"


def train_recording(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Train a case, and count the reductions by the function that calls them. `without` names one whose reductions are
    left out."""
    reductions = Reductions(arguments.get("without"))
    if arguments["case"]["layout"]["engine"] == MEGATRON_CORE:
        reductions.watch_megatron()
    else:
        reductions.watch()
    return {"trained": train_layout(arguments, folder), "places": reductions.places}


class Reductions:
    """Every sum or maximum over ranks, every all-to-all and every gather of keys and values, by `file.function` of the
    first caller outside torch's wrappers; a function's second and later lines are numbered as they are first called."""

    def __init__(self, left_out: str | None):
        self.places: Counter[str] = Counter()
        self._left_out = left_out
        self._lines: dict[str, list[int]] = {}

    def watch(self) -> None:
        """Stand between callers and torch's functions."""
        self._watch_reducer()
        replaced: list[tuple[Any, dict[str, Callable]]] = [
            (torch.distributed, {"all_reduce": keep, "reduce_scatter_single": keep_share}),
            (_functional_collectives, {"all_reduce": _same, "reduce_scatter_single": _share}),
        ]
        if dispatcher := sys.modules.get(_DISPATCHER):
            replaced.append((dispatcher, {"all_to_all_single": _zeros}))
        if calls := sys.modules.get(_CONTEXT_CALLS):
            calls.funcol = SimpleNamespace(**vars(_functional_collectives))  # type: ignore[attr-defined]
            replaced.append((calls.funcol, {"all_gather_single": _own, "reduce_scatter_single": _share}))
        for module, names in replaced:
            for name, skipped in names.items():
                watched = self._watched(getattr(module, name), skipped)
                setattr(module, name, watched)
                if module is torch.distributed:
                    setattr(distributed_c10d, name, watched)

    def watch_megatron(self) -> None:
        """Stand between megatron-core and torch's functions, wherever it has taken a name for one."""
        left_out = {"all_reduce": keep, "reduce_scatter_tensor": keep_share, "all_to_all_single": _deliver_zeros}
        modules = [module for name, module in list(sys.modules.items()) if name.startswith("megatron.core")]
        for name, skipped in left_out.items():
            original = getattr(distributed_c10d, name)
            watched = self._watched(original, skipped, only="megatron")
            for module in modules:
                for held in [key for key, value in vars(module).items() if value is original]:
                    setattr(module, held, watched)
            setattr(torch.distributed, name, watched)

    def _watch_reducer(self) -> None:
        forward = DistributedDataParallel.forward

        def counted(ddp: DistributedDataParallel, *given: Any, **options: Any) -> Any:
            self.places["reducer"] += 1
            ddp.require_backward_grad_sync &= self._left_out != "reducer"
            return forward(ddp, *given, **options)

        DistributedDataParallel.forward = counted  # type: ignore[method-assign]

    def _watched(self, original: Callable, skipped: Callable, only: str = "") -> Callable:
        def call(*arguments: Any, **options: Any) -> Any:
            frame = _caller(sys._getframe(1))
            if only not in frame.f_code.co_filename:
                return original(*arguments, **options)
            place = self._place(frame)
            self.places[place] += 1
            return (skipped if place == self._left_out else original)(*arguments, **options)

        return call

    def _place(self, frame: FrameType) -> str:
        name = f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"
        lines = self._lines.setdefault(name, [])
        if frame.f_lineno not in lines:
            lines.append(frame.f_lineno)
        number = lines.index(frame.f_lineno)
        return name if number == 0 else f"{name}#{number + 1}"


def _caller(frame: FrameType) -> FrameType:
    while Path(frame.f_code.co_filename).name in _BETWEEN and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _deliver_zeros(output: torch.Tensor, *_: Any, **__: Any) -> Done:
    """An all-to-all that loses what the others send, and this rank's own part."""
    output.zero_()
    return Done()


def _same(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return tensor


def _zeros(tensor: torch.Tensor, output_splits: list[int] | None, *_: Any, **__: Any) -> torch.Tensor:
    """As `_deliver_zeros`, in a new tensor."""
    return tensor.new_zeros((len(tensor) if output_splits is None else sum(output_splits), *tensor.shape[1:]))


def _share(tensor: torch.Tensor, reduceOp: str, scatter_dim: int, group: Any, *_: Any, **__: Any) -> torch.Tensor:
    """As `keep_share`, in a new tensor."""
    found = _resolved(group)
    return tensor.chunk(torch.distributed.get_world_size(found), scatter_dim)[torch.distributed.get_rank(found)].clone()


def _own(tensor: torch.Tensor, gather_dim: int, group: Any, *_: Any, **__: Any) -> torch.Tensor:
    """This rank's part in place of every rank's."""
    return torch.cat([tensor] * torch.distributed.get_world_size(_resolved(group)), gather_dim)


def _resolved(group: Any) -> Any:
    """The process group of a mesh, with a dimension or without, of a name, or itself."""
    mesh, dim = group if isinstance(group, tuple) else (group, 0)
    if isinstance(mesh, str):
        return distributed_c10d._resolve_process_group(mesh)
    return mesh.get_group(dim) if hasattr(mesh, "get_group") else mesh
