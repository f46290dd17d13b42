"""Ranks that a training command starts: by torchrun, DeepSpeed's launcher, mpirun, srun, or one by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from orchestrator.importers.settings import Settings
from orchestrator.importers.slurm_header import SlurmHeader
from search_spaces.errors import InputError

_NODES, _GPUS = ("nnodes", "num-nodes"), ("nproc-per-node", "num-gpus", "num-accelerators", "gpus-per-node")
_DEEPSPEED = ("num-nodes", "num-gpus", "num-accelerators", "hostfile", "launcher")
_TORCHRUN = frozenset(("torchrun", "ft_launcher", "torch.distributed.run", "torch.distributed.launch"))
_MPI = frozenset(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun"))
_DEFAULT = "the launcher's default"
_ALONE = "python without a launcher"
_PYTHON = re.compile(r"python[\d.]*")


@dataclass(frozen=True)
class Ranks:
    """Nodes of a training and its ranks on each, each with its origin; None where that is not known."""

    num_nodes: int | None
    gpus_per_node: int | None
    origins: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Size:
    count: int | None = None
    origin: str | None = None


def ranks_of(
    words: Sequence[str], options: Settings, header: SlurmHeader, exported: Mapping[str, str] | None = None
) -> Ranks:
    """The ranks that the command starts in the job of this header; a note where they are fewer than the job has.

    `exported` are the variables of the script, among them the GPUs that a launcher may count.

    InputError where they are more.
    """
    job = _of_the_job(header)
    nodes, gpus = _started(words, options, header, job[0], _visible(exported or {}) or job[1])
    for key, started, whole in zip(_KEYS, (nodes, gpus), job, strict=True):
        if started.count and whole.count and started.count > whole.count:
            raise _more_than_the_job(key, started, whole)
        if started.count and whole.count and started.count < whole.count:
            options.notes.append(
                f"cluster.{key} is {started.count}, as the command starts its ranks ({started.origin}); the job has"
                f" {whole.count}."
            )
    origins = {f"cluster.{key}": size.origin for key, size in zip(_KEYS, (nodes, gpus), strict=True) if size.origin}
    return Ranks(nodes.count, gpus.count, origins)


_KEYS = ("num_nodes", "gpus_per_node")


def _visible(exported: Mapping[str, str]) -> _Size | None:
    """The GPUs of a node that the script makes visible; None where it does not say which."""
    devices = exported.get("CUDA_VISIBLE_DEVICES", "")
    is_list = re.fullmatch(r"\d{1,3}(,\d{1,3})*", devices)
    return _Size(devices.count(",") + 1, "CUDA_VISIBLE_DEVICES") if is_list else None


def _of_the_job(header: SlurmHeader) -> tuple[_Size, _Size]:
    sizes = (_Size(getattr(header, key), header.origins.get(f"cluster.{key}")) for key in _KEYS)
    nodes, gpus = (size if size.count else _Size() for size in sizes)
    return nodes, gpus


def _started(
    words: Sequence[str], options: Settings, header: SlurmHeader, job_nodes: _Size, job_gpus: _Size
) -> tuple[_Size, _Size]:
    """(nodes, ranks on each)"""
    programs = {word.rpartition("/")[2] for word in words}
    if "deepspeed" in programs or options.has(*_DEEPSPEED):
        # Without a list of hosts DeepSpeed starts the ranks on its own node, by default one on each GPU.
        is_alone = not options.has("hostfile", "launcher", *_NODES)
        nodes = _Size(1, _DEFAULT) if is_alone else _stated(options, _NODES, job_nodes)
        return nodes, _stated(options, _GPUS, job_gpus)
    if programs & _TORCHRUN or options.has(*_NODES, *_GPUS):
        one_node = options.has("standalone") or not options.has(*_NODES)
        nodes = _Size(1, _DEFAULT) if one_node else _stated(options, _NODES, job_nodes)
        return nodes, _stated(options, _GPUS, job_gpus) if options.has(*_GPUS) else _Size(1, _DEFAULT)
    if programs & _MPI:
        return _of_mpi(words, job_nodes, job_gpus)
    if header.tasks_per_node:
        return job_nodes, _Size(header.tasks_per_node, header.origins.get("tasks_per_node"))
    if not header.has_step and header.has_header and words and _PYTHON.fullmatch(words[0].rpartition("/")[2]):
        return _Size(1, _ALONE), _Size(1, _ALONE)
    if header.has_step and job_gpus.count:
        options.notes.append("The number of tasks is not in the script: one for each GPU is assumed.")
    return job_nodes, job_gpus


def _stated(options: Settings, names: Sequence[str], job: _Size) -> _Size:
    """The number that an option says, else the job's, as for a variable that Slurm sets or a launcher that counts."""
    values = {str(options.given[name].value) for name in names if name in options.given}
    if any(value in ("auto", "gpu") or value.startswith(("$SLURM_", "${SLURM_")) for value in values):
        return job
    with options.tracked() as asked:
        count = options.count(*names)
    return _Size(count, options.origin(asked)) if count else job


def _of_mpi(words: Sequence[str], job_nodes: _Size, job_gpus: _Size) -> tuple[_Size, _Size]:
    """The ranks by `-np` and, on each node, by `--map-by ppr:N:node`, `-npernode` or `-ppn`."""
    total = next(_mpi_numbers(words, r"-{1,2}(np?|c)"), None)
    each = next(_mpi_numbers(words, r"-{1,2}(npernode|N|ppn|ranks-per-node)"), None)
    each = each or next(_mpi_numbers(words, r"-{1,2}map-by", r"ppr:(\d{1,6}):node\b.*"), None)
    if total is None:
        return job_nodes, _Size(each, "mpirun") if each else job_gpus
    ranks = each or (total // job_nodes.count if job_nodes.count and total % job_nodes.count == 0 else None)
    if ranks is None or total % ranks:
        return _Size(), _Size()
    return _Size(total // ranks, "mpirun"), _Size(ranks, "mpirun")


def _mpi_numbers(words: Sequence[str], option: str, value: str = r"(\d{1,6})") -> Iterator[int]:
    for word, following in pairwise(words):
        found = re.fullmatch(value, following) if re.fullmatch(option, word) else None
        if found and int(found[1]):
            yield int(found[1])


def _more_than_the_job(key: str, started: _Size, job: _Size) -> InputError:
    return InputError.of(
        "contradiction",
        f"{key} is {started.count} in the command ({started.origin}) and {job.count} in the job ({job.origin})",
        key=key,
        rule="a training has at most the nodes and the GPUs of its job",
        fix="correct the header or the command; where a node has more GPUs than the header says, write their number",
    )
