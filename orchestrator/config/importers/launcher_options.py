"""Options of torchrun, DeepSpeed's launcher and accelerate's in a training command.

torch 2.13, torch/distributed/run.py; DeepSpeed 0.19, deepspeed/launcher/runner.py; accelerate 1.15, commands/launch.py.
"""

from __future__ import annotations

from trials.trainers.table import Table

_FLAGS = """
    standalone module no-python run-path no-local-rank no-ssh no-ssh-check force-multi save-pid quiet virtual-local-rank
    bind-cores-to-rank elastic-training
    """
_WITH_VALUE = """
    nnodes nproc-per-node num-nodes num-gpus num-accelerators gpus-per-node num-machines num-processes hostfile launcher
    rdzv-backend rdzv-endpoint rdzv-id rdzv-conf max-restarts monitor-interval start-method role log-dir redirects tee
    local-ranks-filter node-rank master-addr master-port local-addr logs-specs launcher-args enable-each-rank-log
    ssh-port venv-script duplicate-stderr-filters duplicate-stdout-filters event-log-handler numa-binding
    shutdown-timeout log-level signals-to-handle bind-core-list include exclude min-elastic-nodes max-elastic-nodes
    autotuning
    """

LAUNCHER = Table(
    "the launcher",
    "",
    trains_another=dict.fromkeys(
        ("include", "exclude", "elastic-training", "min-elastic-nodes", "max-elastic-nodes", "autotuning"),
        "it chooses among a node's GPUs, or changes their number while the training runs",
    ),
    flags=frozenset(_FLAGS.split()),
    prefix="--",
)
LAUNCHER_OPTIONS = LAUNCHER.flags | {*_WITH_VALUE.split()}
"""Those with a value have one word."""
