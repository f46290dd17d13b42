"""Ranks that a training command starts: by torchrun, DeepSpeed, accelerate, mpirun, srun, or one by itself."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from orchestrator.config.importers.settings import FileSettings
from orchestrator.config.importers.slurm_header import Size, Sizes, SlurmHeader
from search_spaces.errors import InputError

_NODES, _GPUS = ("nnodes", "num-nodes"), ("nproc-per-node", "num-gpus", "num-accelerators", "gpus-per-node")
_DEEPSPEED = ("num-nodes", "num-gpus", "num-accelerators", "hostfile", "launcher")
_TORCHRUN = ("torchrun", "ft_launcher", "torch.distributed.run", "torch.distributed.launch")
_MPI = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun")


@dataclass(frozen=True)
class Ranks:
    """Nodes of a training and its ranks on each, each with its origin; None where that is not known."""

    num_nodes: int | None
    gpus_per_node: int | None
    origins: Mapping[str, str] = field(default_factory=dict)


_UNKNOWN, _DEFAULT, _ALONE = Size(), Size(1, "the launcher's default"), Size(1, "python without a launcher")


def ranks_of(words: Sequence[str], options: FileSettings, header: SlurmHeader, exported: Mapping[str, str]) -> Ranks:
    """The ranks that the command starts in the job of this header; a note where they are fewer than the job has.

    `exported` are the variables of the script, among them the GPUs that a launcher may count.

    InputError where they are more.
    """
    job = header.job or Sizes()
    step = header.step or job
    started = _started(words, options, header, step, exported.get("CUDA_VISIBLE_DEVICES", ""))
    origins = {}
    limits = ((job.nodes, step.nodes), (job.gpus, step.gpus))
    for key, size, (whole, part) in zip(("num_nodes", "gpus_per_node"), started, limits, strict=True):
        if size.origin:
            origins[f"cluster.{key}"] = size.origin
        most = next((each for each in (whole, part) if (size.count or 0) > (each.count or math.inf)), None)
        if most:
            raise InputError.of(
                "contradiction",
                f"{key} is {size.count} in the command ({size.origin}) and {most.count} in the job ({most.origin})",
                key=key,
                rule="a training has at most the nodes and the GPUs of its job",
                fix="correct the header or the command; where a node has more GPUs than the header says, write it",
            )
        if size.count and whole.count and size.count < whole.count:
            by = f"as the command starts its ranks ({size.origin})"
            options.notes.append(f"cluster.{key} is {size.count}, {by}; the job has {whole.count}.")
    return Ranks(started[0].count, started[1].count, origins)


def _started(
    words: Sequence[str], options: FileSettings, header: SlurmHeader, step: Sizes, devices: str
) -> tuple[Size, Size]:
    """(nodes, ranks on each); those of the step where the command counts them."""
    nodes, gpus = step.nodes, step.gpus
    if re.fullmatch(r"\d{1,3}(,\d{1,3})*", devices):
        gpus = Size(devices.count(",") + 1, "CUDA_VISIBLE_DEVICES")
    programs = {word.rpartition("/")[2] for word in words}
    is_deepspeed = "deepspeed" in programs or options.has(*_DEEPSPEED)
    if is_deepspeed or not programs.isdisjoint(_TORCHRUN) or options.has(*_NODES, *_GPUS):
        # Without a list of hosts DeepSpeed starts the ranks on its own node, by default one on each GPU.
        hosts = nodes if is_deepspeed and options.has("hostfile", "launcher") else _DEFAULT
        each = _stated(options, _GPUS, gpus, gpus if is_deepspeed else _DEFAULT)
        return _DEFAULT if options.has("standalone") else _stated(options, _NODES, nodes, hosts), each
    if "accelerate" in programs:
        machines = _stated(options, ("num-machines",), nodes, _DEFAULT)
        return _divided(_stated(options, ("num-processes",), _UNKNOWN, _UNKNOWN), machines, gpus)
    if not programs.isdisjoint(_MPI):
        return _of_mpi(words, nodes, gpus)
    if header.step and step.tasks.origin:
        return nodes, step.tasks
    if header.step and gpus.count:
        options.notes.append("The number of tasks is not in the script: one for each GPU is assumed.")
    is_python = words and re.fullmatch(r"(.*/)?python[\d.]*", words[0])
    return (_ALONE, _ALONE) if header.job and not header.step and is_python else (nodes, gpus)


def _stated(options: FileSettings, names: Sequence[str], job: Size, default: Size) -> Size:
    """The number that an option says; the job's for a variable that Slurm sets or a launcher that counts."""
    if not options.has(*names):
        return default
    values = {str(options.given[name].value) for name in names if name in options.given}
    if any(value in ("auto", "gpu") or value.startswith(("$SLURM_", "${SLURM_")) for value in values):
        return job
    with options.tracked() as asked:
        count = options.count(*names)
    return Size(count, options.origin(asked)) if count else job


def _divided(total: Size, nodes: Size, gpus: Size) -> tuple[Size, Size]:
    """(nodes, ranks on each) of a number of ranks; as many as GPUs where it is not known"""
    if total.count is None:
        return nodes, gpus
    if nodes.count is None or total.count % nodes.count:
        return _UNKNOWN, _UNKNOWN
    return Size(nodes.count, total.origin), Size(total.count // nodes.count, total.origin)


def _of_mpi(words: Sequence[str], nodes: Size, gpus: Size) -> tuple[Size, Size]:
    """The ranks by `-np` and, on each node, by `--map-by ppr:N:node`, `-npernode` or `-ppn`."""
    total = _mpi_number(words, r"-{1,2}(np?|c)")
    each = _mpi_number(words, r"-{1,2}(npernode|N|ppn|ranks-per-node)")
    each = each or _mpi_number(words, r"-{1,2}map-by", r"ppr:(\d{1,6}):node\b.*")
    if each and total:
        nodes = Size(total // each if total % each == 0 else None)
    return _divided(Size(total, "mpirun"), nodes, Size(each, "mpirun") if each else gpus)


def _mpi_number(words: Sequence[str], option: str, value: str = r"(\d{1,6})") -> int | None:
    pairs = [re.fullmatch(value, following) for word, following in pairwise(words) if re.fullmatch(option, word)]
    return next((int(found[1]) for found in pairs if found and int(found[1])), None)
