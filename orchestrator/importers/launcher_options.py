"""Options of torchrun and DeepSpeed's launcher in a training command, and the ranks that they start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.importers.option_table import option_groups
from orchestrator.importers.settings import Settings
from orchestrator.importers.slurm_header import SlurmHeader
from search_spaces.errors import InputError

LAUNCHER_GROUPS = option_groups(
    read="nnodes= nproc-per-node= num-nodes= num-gpus= num-accelerators= gpus-per-node= hostfile=",
    no_effect={
        "it only changes how the ranks are started and find each other": """
            rdzv-backend= rdzv-endpoint= rdzv-id= rdzv-conf= standalone max-restarts= monitor-interval= start-method=
            role= module no-python run-path log-dir= redirects= tee= local-ranks-filter= node-rank= master-addr=
            master-port= local-addr= logs-specs= launcher= launcher-args= no-local-rank no-ssh no-ssh-check force-multi
            enable-each-rank-log= save-pid ssh-port= venv-script= duplicate-stderr-filters= duplicate-stdout-filters=
            event-log-handler= numa-binding= shutdown-timeout= log-level= quiet signals-to-handle= virtual-local-rank
            bind-cores-to-rank bind-core-list=
            """,
    },
    refused={
        "it chooses among a node's GPUs, or changes their number while the training runs": """
            include= exclude= elastic-training min-elastic-nodes= max-elastic-nodes= autotuning=
            """,
    },
)
"""By torch 2.13, torch/distributed/run.py, and DeepSpeed 0.19, deepspeed/launcher/runner.py."""

LAUNCHER_OPTIONS = frozenset(word.rstrip("=") for group in LAUNCHER_GROUPS for word in group.names.split())

_NODES, _GPUS = ("nnodes", "num-nodes"), ("nproc-per-node", "num-gpus", "num-accelerators", "gpus-per-node")
_TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")


@dataclass(frozen=True)
class Ranks:
    """Nodes and processes of a node that a launcher starts, each with its origin; None where that is not known."""

    num_nodes: int | None
    gpus_per_node: int | None
    origins: Mapping[str, str] = field(default_factory=dict)


def ranks_of(words: Sequence[str], options: Settings, header: SlurmHeader) -> Ranks:
    """The ranks of a training command, by its launcher's options, else by the job's header, else by the launcher's
    default. InputError where the first two contradict each other."""
    is_torchrun = any(word.rpartition("/")[2] in _TORCHRUN for word in words)
    has_hosts = options.has("hostfile")
    nodes, nodes_origin = _one(options, _NODES, header, "num_nodes", 1 if is_torchrun and not has_hosts else None)
    gpus, gpus_origin = _one(options, _GPUS, header, "gpus_per_node", 1 if is_torchrun else None)
    if nodes is None and gpus is not None and not options.has(*_NODES) and not has_hosts:
        nodes, nodes_origin = 1, "the launcher's default"
    origins = {"cluster.num_nodes": nodes_origin, "cluster.gpus_per_node": gpus_origin}
    return Ranks(nodes, gpus, {name: origin for name, origin in origins.items() if origin})


def _one(
    options: Settings, names: tuple[str, ...], header: SlurmHeader, key: str, default: int | None
) -> tuple[int | None, str | None]:
    """(the value, its origin)"""
    in_header: int | None = getattr(header, key)
    with options.tracked() as asked:
        stated = None if _counts_itself(options, names) or _is_the_jobs(options, names) else options.count(*names)
    if stated and in_header and stated != in_header:
        raise InputError.of(
            "contradiction",
            f"{key} is {stated} in the command and {in_header} in the job's header",
            key=key,
            rule="two sources of the same training agree",
            fix="write the same value in both",
        )
    if stated:
        return stated, options.origin(asked)
    if in_header:
        return in_header, header.origins.get(f"cluster.{key}")
    return (None, None) if options.has(*names) else (default, "the launcher's default" if default else None)


def _is_the_jobs(options: Settings, names: tuple[str, ...]) -> bool:
    """True for a variable that Slurm sets by the job's header."""
    return any(
        name in options.given and str(options.given[name].value).startswith(("$SLURM_", "${SLURM_")) for name in names
    )


def _counts_itself(options: Settings, names: tuple[str, ...]) -> bool:
    """True for a launcher that is told to count the GPUs."""
    return any(name in options.given and options.given[name].value in ("auto", "gpu") for name in names)
