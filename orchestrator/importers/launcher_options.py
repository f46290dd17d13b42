"""Options of torchrun and DeepSpeed's launcher in a training command."""

from __future__ import annotations

from orchestrator.importers.option_table import option_groups

LAUNCHER_GROUPS = option_groups(
    read="nnodes= nproc-per-node= standalone num-nodes= num-gpus= num-accelerators= gpus-per-node= hostfile= launcher=",
    no_effect={
        "it only changes how the ranks are started and find each other": """
            rdzv-backend= rdzv-endpoint= rdzv-id= rdzv-conf= max-restarts= monitor-interval= start-method=
            role= module no-python run-path log-dir= redirects= tee= local-ranks-filter= node-rank= master-addr=
            master-port= local-addr= logs-specs= launcher-args= no-local-rank no-ssh no-ssh-check force-multi
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
