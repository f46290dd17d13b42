"""Programs of the forked ranks that train by torchtitan. Arguments and answers are JSON."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.distributed import _functional_collectives, distributed_c10d

from tests.trials.train import rank_programs
from tests.trials.train.reductions import NumberedPlaces, keep, keep_share
from trials.ranks.failures import TrialFailure

_BETWEEN = ("distributed_c10d.py", "_functional_collectives.py", "c10d_logger.py", "_contextlib.py")
"""Files of torch through which a call goes."""


def train_recording(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Train a case, and count the reductions by the function that calls them. `without` names one whose reductions are
    left out."""
    reductions = _Reductions(arguments.get("without"))
    reductions.watch()
    trained = rank_programs.train_layout({**arguments, "without": None}, folder)
    return {"trained": trained, "places": reductions.places}


def reason_of_a_loss_that_is_no_number(arguments: Mapping[str, Any], folder: Path) -> str:
    """Reason for which a step ends whose loss is no number."""
    from torchtitan.trainer import Trainer

    Trainer.forward_backward_step = lambda *_, **__: torch.tensor(torch.nan)
    try:
        rank_programs.train_layout({**arguments, "steps": 1}, folder)
    except TrialFailure as failure:
        return failure.reason
    return "none"


def train_without_patch_and_compiler(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Train a case without a patch where there is no C++ compiler."""
    import torch._inductor.config as inductor

    inductor.cpp.cxx = (None, "/no/compiler")
    return rank_programs.train_without_patch(arguments, folder)


class _Reductions:
    """Every sum or maximum over ranks, and every all-to-all and gather of keys and values, by `file.function` of the
    first caller outside torch's wrappers, numbered where a function has several."""

    def __init__(self, left_out: str | None):
        self.places: Counter[str] = Counter()
        self._left_out = left_out
        self._numbered = NumberedPlaces()

    def watch(self) -> None:
        """Stand between callers and torch's functions."""
        for module, names in (
            (torch.distributed, {"all_reduce": keep, "reduce_scatter_single": keep_share}),
            (_functional_collectives, {"all_reduce": _same, "reduce_scatter_single": _share}),
            *((module, {"all_to_all_single": _zeros}) for module in _token_dispatchers()),
            *((calls, {"all_gather_single": _own, "reduce_scatter_single": _share}) for calls in _context_calls()),
        ):
            for name, skipped in names.items():
                watched = self._watched(getattr(module, name), skipped)
                setattr(module, name, watched)
                if module is torch.distributed:
                    setattr(distributed_c10d, name, watched)

    def _watched(self, original: Callable, skipped: Callable) -> Callable:
        def call(*arguments: Any, **options: Any) -> Any:
            place = self._numbered.place(_caller(sys._getframe(1)))
            self.places[place] += 1
            return (skipped if place == self._left_out else original)(*arguments, **options)

        return call


def _token_dispatchers() -> list[ModuleType]:
    """torchtitan's module that sends tokens to experts, where it is imported: not by accelerate's ranks."""
    found = sys.modules.get("torchtitan.models.common.token_dispatcher")
    return [] if found is None else [found]


def _context_calls() -> list[SimpleNamespace]:
    """Collectives as torch's module calls them that gathers keys and values, where it is imported; its own copy."""
    found: Any = sys.modules.get("torch.distributed.tensor.experimental._context_parallel._cp_custom_ops")
    if found is None:
        return []
    found.funcol = SimpleNamespace(**vars(_functional_collectives))
    return [found.funcol]


def _caller(frame: FrameType) -> FrameType:
    while Path(frame.f_code.co_filename).name in _BETWEEN and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _same(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return tensor


def _zeros(tensor: torch.Tensor, output_splits: list[int] | None, *_: Any, **__: Any) -> torch.Tensor:
    """An all-to-all that loses what the others send, and this rank's own part."""
    return tensor.new_zeros((len(tensor) if output_splits is None else sum(output_splits), *tensor.shape[1:]))


def _share(tensor: torch.Tensor, reduceOp: str, scatter_dim: int, group: Any, *_: Any, **__: Any) -> torch.Tensor:
    """This rank's share of its own part of the sum."""
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
