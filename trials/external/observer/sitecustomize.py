"""Observer of a rank's optimizer steps, which Python imports at its start (site, sitecustomize).

The supervisor puts this folder, and nothing else, on the trainer's PYTHONPATH, and names the report in
PARLAY_OBSERVED_STEP. The site's own sitecustomize runs first. Once torch is imported, outermost calls of modules are
seen until the second optimizer step begins; at its end the report is written, and the next call removes what was
added. The first step is left out, since scripts try, compile and skip before it. The fields of the report are those of
`trials.observed_step.ObservedStep`. With PARLAY_TIMED_STEPS each step has a line in the log, too. Nothing here may end
or change the training: what cannot be seen is left out. Standard library and torch only; nothing of Parlay is imported.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from itertools import pairwise
from weakref import WeakKeyDictionary

REPORT, TIMED = "PARLAY_OBSERVED_STEP", "PARLAY_TIMED_STEPS"
REPLICATED = "DistributedDataParallel"
WRAPPERS = ("DeepSpeedEngine", "FullyShardedDataParallel", "ReplicateModule", "FSDPModule", REPLICATED)
"""Classes that reduce or shard gradients, by name; a wrapper inside another comes after it."""


def run_the_sites_own():
    """Run the sitecustomize that Python would have found without this folder."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


FSDP_STAGES = {"FULL_SHARD": 3, "HYBRID_SHARD": 3, "SHARD_GRAD_OP": 2, "_HYBRID_SHARD_ZERO2": 2, "NO_SHARD": 0}
"""ZeRO stage of each sharding strategy of FSDP1."""


class AfterTorch:
    """Finder and loader of torch that observes it once it is imported; everything else is left to the others."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self not in sys.meta_path:
            return None
        place = sys.meta_path.index(self)
        del sys.meta_path[place]
        try:
            spec = find_spec(name)
        finally:  # somebody may only look whether there is a torch
            sys.meta_path.insert(place, self)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self  # type: ignore[assignment]
        return spec

    def __getattr__(self, name):
        if name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        sys.meta_path.remove(self)
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        observe(module)


def observe(torch):
    """Observe the second step, and time all where that is asked for, unless this torch lacks the hooks for it."""
    with suppress(Exception):
        StepObserver(torch, os.environ[REPORT]).install()
        if TIMED in os.environ:
            StepClock(torch).install()


class StepObserver:
    """Record of the training between the first and the second optimizer step of this process."""

    def __init__(self, torch, path: str) -> None:
        self._torch = torch
        self._path = path
        self._roots: WeakKeyDictionary = WeakKeyDictionary()  # a model that was tried and dropped is freed
        self._inputs: dict = {}
        self._input_sum: float | None = None
        self._lengths: list[int] = []  # of documents
        self._optimizers: WeakKeyDictionary = WeakKeyDictionary()  # those of a step, in their order
        self._is_second = False
        self._at_s = 0.0
        self._last = None  # the optimizer whose step ends what is seen, once it has begun
        self._is_inside = False
        self._is_over = False

    def install(self):
        module_class, is_compiling = self._torch.nn.Module, self._torch.compiler.is_compiling
        self._original = original = module_class.__dict__["__call__"]
        optimizers = sys.modules["torch.optim.optimizer"]
        self._hooks = (
            optimizers.register_optimizer_step_pre_hook(self._before_optimizer),
            optimizers.register_optimizer_step_post_hook(self._after_optimizer),
        )
        enter, leave = self._enter, self._leave

        def call(module, *args, **kwargs):
            if is_compiling() or not enter(module, args, kwargs):
                return original(module, *args, **kwargs)
            try:
                return original(module, *args, **kwargs)
            finally:
                leave()

        # torch.compile leaves frames of this file alone, as it does with the original's, and compiles what they call.
        call.__code__ = call.__code__.replace(co_filename=original.__code__.co_filename)
        self._call = module_class.__call__ = call

    def _enter(self, module, args, kwargs):
        """True if this is an outermost call: modules inside of it are called as ever."""
        if self._is_inside:
            return False
        if self._is_over:
            self._remove()
            return False
        try:
            if self._last is None and self._torch.is_grad_enabled() and module.training and not self._is_in_backward():
                self._see(module, args, kwargs)
        except Exception:
            self._is_over = True
        self._is_inside = True
        self._replace(self._call, self._original)
        return True

    def _leave(self):
        self._is_inside = False
        if not self._is_over:
            self._replace(self._original, self._call)

    def _replace(self, old, new):
        """Replace the call of modules, unless the script has replaced it meanwhile."""
        if self._torch.nn.Module.__call__ is old:
            self._torch.nn.Module.__call__ = new

    def _remove(self):
        self._replace(self._call, self._original)
        for hook in self._hooks:
            hook.remove()  # of no effect once it is removed

    def _is_in_backward(self):
        """True where activations are computed again."""
        return self._torch._C._current_graph_task_id() != -1

    def _see(self, module, args, kwargs):
        if next(module.parameters(), None) is None:
            return
        self._roots[module] = None
        values = [*args, *kwargs.values()]
        batch = self._batch_of(values) if module is next(iter(self._roots)) else None
        if batch is None:
            return
        shape = tuple(batch.shape)
        self._inputs[shape] = self._inputs.get(shape, 0) + 1
        if self._input_sum is None and self._may_read(batch):
            self._input_sum = float(batch.detach().double().sum())
        if batch.dim() == 2 and self._may_read(batch):
            self._lengths += self._document_lengths(batch, kwargs)

    def _document_lengths(self, batch, given):
        """Tokens of each document of a batch, without padding, by the names that transformers' models have."""
        found = (given.get(name) for name in ("attention_mask", "position_ids"))
        mask, positions = (each if getattr(each, "shape", None) == batch.shape else None for each in found)
        if positions is None:
            return [batch.shape[1]] * batch.shape[0] if mask is None else mask.long().sum(1).tolist()
        kept = positions.flatten() if mask is None else positions[mask.bool()]
        starts = [*(kept == 0).nonzero().flatten().tolist(), kept.numel()]
        return [after - before for before, after in pairwise(starts)]

    def _batch_of(self, values):
        """The first tensor of whole numbers with a dimension, as tokens are."""
        tensors = (value for value in _flat(values) if isinstance(value, self._torch.Tensor) and value.dim() > 0)
        return next((t for t in tensors if not (t.is_floating_point() or t.dtype is self._torch.bool)), None)

    def _may_read(self, tensor):
        """False where reading a number would break the capture of a CUDA graph."""
        return not (tensor.is_cuda and self._torch.cuda.is_current_stream_capturing())

    def _before_optimizer(self, optimizer, args, kwargs):
        if self._torch.compiler.is_compiling():
            return
        if self._is_over or self._last is not None:
            return
        if self._roots and not self._is_second:
            self._is_second, self._inputs, self._input_sum, self._lengths = True, {}, None, []
            self._roots.clear()
        if self._is_second:
            with suppress(Exception):
                self._optimizers[optimizer] = None
        if not self._roots:  # the first step, or one of several optimizers of it
            return
        self._at_s, self._last = time.monotonic(), optimizer

    def _after_optimizer(self, optimizer, args, kwargs):
        """Report once the step is done: closures and optimizers that reduce gradients do so inside of it."""
        if optimizer is not self._last or self._torch.compiler.is_compiling():
            return
        self._is_over, self._last = True, None
        with suppress(Exception):
            _write(self._path, self._report(optimizer))

    def _report(self, optimizer):
        wrapper, engine = self._wrapper()
        return {
            "at_s": self._at_s,
            "world_size": self._world_size(),
            **self._parameters(wrapper),
            "optimizer_parameters": self._optimizer_parameters(),
            "inputs": [[*shape, count] for shape, count in self._inputs.items()],
            "input_sum": self._input_sum,
            "documents": len(self._lengths),
            "real_tokens": sum(self._lengths),
            "squared_lengths": sum(length**2 for length in self._lengths),
            "wrapper": wrapper,
            "zero_stage": _zero_stage(wrapper, engine),
            "reduces": _reduces(wrapper, engine),
            "gradient_norms": self._gradient_norms(optimizer) if wrapper in (None, REPLICATED) else [],
        }

    def _world_size(self):
        distributed = self._torch.distributed
        is_ready = distributed.is_available() and distributed.is_initialized()
        return distributed.get_world_size() if is_ready else 1

    def _wrapper(self):
        """(name of the wrapper's class, the wrapper); (None, None) without any that is known."""
        for root in self._roots:
            for module in root.modules():
                known = [name for name in WRAPPERS if any(base.__name__ == name for base in type(module).__mro__)]
                if known:
                    return known[0], module
        return None, None

    def _parameters(self, wrapper):
        """Counts over all shards, a shared parameter once."""
        if wrapper == "FullyShardedDataParallel":  # flat parameters: shards with padding
            return {}
        found = {id(parameter): parameter for root in self._roots for parameter in root.parameters()}.values()
        return {
            "parameters": sum(map(_size, found)),
            "trainable_parameters": sum(_size(parameter) for parameter in found if parameter.requires_grad),
            "local_parameters": sum(getattr(parameter, "_local_tensor", parameter).numel() for parameter in found),
        }

    def _optimizer_parameters(self):
        """Elements for which torch's own optimizers hold state; None with others, which may shard it."""
        modules = [type(optimizer).__module__ for optimizer in self._optimizers]
        if not all(module == "torch.optim" or module.startswith("torch.optim.") for module in modules):
            return None
        held = {id(parameter): parameter for optimizer in self._optimizers for parameter in _parameters_of(optimizer)}
        return sum(map(_size, held.values()))

    def _gradient_norms(self, optimizer):
        """Norms of the first, the last and all gradients that the optimizer has whole, equal on ranks that train
        together."""
        import math

        whole = {id(parameter) for root in self._roots for parameter in root.parameters()}
        gradients = [parameter.grad for parameter in _parameters_of(optimizer) if id(parameter) in whole]
        plain = [
            gradient for gradient in gradients if type(gradient) is self._torch.Tensor and self._may_read(gradient)
        ]
        norms = [
            float(self._torch.linalg.vector_norm(gradient.detach(), dtype=self._torch.float32)) for gradient in plain
        ]
        total = math.hypot(*norms)  # 0 where the optimizer has cleared them
        return [norms[0], norms[-1], total] if total > 0 and all(map(math.isfinite, norms)) else []


class StepClock:
    """A line in the log for each optimizer step, with the time since the one before.

    A step ends with the first optimizer after a backward pass: further optimizers, and further calls of one, belong to
    it. Where the number of backward passes differs from that of the step before, the batch was another or an update was
    skipped, and the line is left out. Nothing waits for the device.
    """

    def __init__(self, torch) -> None:
        self._torch = torch
        self._steps = self._passes = self._passes_before = 0
        self._at_s = 0.0

    def install(self):
        original = self._torch.autograd.backward

        def backward(*args, **kwargs):
            self._passes += 1
            return original(*args, **kwargs)

        sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(self._after_optimizer)
        self._torch.autograd.backward = backward

    def _after_optimizer(self, optimizer, args, kwargs):
        if not self._passes or self._torch.compiler.is_compiling():
            return
        now_s, passes = time.perf_counter(), self._passes
        self._steps += 1
        if passes == self._passes_before:
            with suppress(Exception):
                self._write_line(now_s - self._at_s, optimizer)
        self._at_s, self._passes_before, self._passes = now_s, passes, 0

    def _write_line(self, took_s, optimizer):
        gib = self._memory_gib(optimizer)
        memory = "" if gib is None else f", {gib:.3f} GiB"
        # At once, and after a line's end: a progress bar may stand before it.
        os.write(1, f"\nparlay: step {self._steps} took {took_s:.9f} s{memory}\n".encode())

    def _memory_gib(self, optimizer):
        """Peak memory that this rank's GPU allocator reserved; on a CPU what the process held."""
        if self._torch.cuda.is_initialized():
            return self._torch.cuda.max_memory_reserved() / 2**30
        if next(iter(_parameters_of(optimizer))).device.type != "cpu":
            return None
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _zero_stage(wrapper, module):
    """ZeRO stage of DeepSpeed's engine or of FSDP1; None for others."""
    if wrapper == "DeepSpeedEngine":
        return module.zero_optimization_stage()
    return FSDP_STAGES.get(getattr(getattr(module, "sharding_strategy", None), "name", ""))


def _reduces(wrapper, module):
    """False where DDP was told to leave the last micro-batch's gradients as they are; None for others."""
    return bool(getattr(module, "require_forward_param_sync", True)) if wrapper == REPLICATED else None


def _parameters_of(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _flat(values):
    """The values, with those of one level of lists, tuples and mappings."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from value
        elif hasattr(value, "keys") and hasattr(value, "values"):
            yield from value.values()
        else:
            yield value


def _size(parameter):
    """Elements of a parameter, also where DeepSpeed's ZeRO 3 has taken it apart or bitsandbytes packs two in a byte."""
    packed = getattr(getattr(parameter, "quant_state", None), "shape", None)
    return int(getattr(parameter, "ds_numel", None) or (packed or parameter.shape).numel())


def _write(path, report):
    """Write the report, unless another process of the rank has."""
    import json

    if not os.path.exists(path):
        with open(f"{path}.{os.getpid()}", "w") as stream:
            json.dump(report, stream)
        os.replace(stream.name, path)


def wait_for_torch():
    """Observe torch once it is there, which a .pth file may have imported already."""
    if "torch" in sys.modules:
        observe(sys.modules["torch"])
    else:
        sys.meta_path.insert(0, AfterTorch())


try:
    run_the_sites_own()
finally:
    if REPORT in os.environ:
        wait_for_torch()
