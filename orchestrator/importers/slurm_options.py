"""Options of sbatch and srun, and what each one means for an import."""

from __future__ import annotations

from orchestrator.importers.option_table import OptionTable, option_groups

_SOURCE = "Slurm of 2026-08-20 (284c3b95), src/common/slurm_opt.c"
_NO_STATE = "a trial starts from nothing, and Parlay starts it again where it fails"
_TIME_LIMIT = "it limits the whole training; a trial's limit follows from measure.time_limit and the trials' durations"

_PYXIS = option_groups(
    read="container-image= container-mounts= container-writable container-readonly",
    no_effect={
        "it only changes where the ranks start, and Parlay sets that": """
            container-workdir= no-container-workdir container-name= container-save= container-env=
            """,
    },
    noted={
        "trials run in the image as pyxis starts it by default": """
            container-mount-home no-container-mount-home container-remap-root no-container-remap-root
            container-entrypoint no-container-entrypoint container-entrypoint-log
            """,
    },
)
"""Options that the plugin pyxis 0.20 adds to sbatch and srun."""

_COMMON = (
    *_PYXIS,
    *option_groups(
        read="""
            account= partition= qos= reservation= constraint= nodes= ntasks= ntasks-per-node= tasks-per-node= gpus=
            gpus-per-node= gpus-per-task= gres= cpus-per-task= cpus-per-gpu= threads-per-core= mem= exclusive= exclude=
            nodelist= network= licenses= comment= mem-bind= gpu-bind= core-spec= cpu-freq= gpu-freq= gres-flags= hint=
            mem-per-cpu= mem-per-gpu= mincpus= segment= switches= thread-spec= wckey=
            """,
        no_effect={
            "it only changes names, files, messages or when the job starts": """
                acctg-freq= begin= chdir= deadline= delay-boot= dependency= error= extra= help hold immediate= input=
                job-name= kill-on-invalid-dep= mail-type= mail-user= nice= open-mode= output= parsable priority=
                profile= quiet test-only time-min= umask usage verbose version wait-all-nodes= autocomplete= ignore-pbs
                reboot
                """,
            _NO_STATE: "kill-on-bad-exit= no-kill= no-requeue requeue= oom-kill-step=",
        },
        noted={
            _TIME_LIMIT: "time=",
            "consecutive ranks share a node, as every layout assumes (--distribution=block)": "distribution=",
            "Parlay starts one task per GPU and lets Slurm place it": """
                contiguous cores-per-socket= extra-node-info= gpus-per-socket= nodefile= ntasks-per-core=
                ntasks-per-gpu= ntasks-per-socket= ntasks-per-tres= overcommit oversubscribe prefer= relative=
                resv-ports= sockets-per-node= spread-job spread-segments consolidate-segments stepmgr tres-bind=
                tres-per-task= use-min-nodes resources=
                """,
            "Parlay submits to the cluster of the machine it runs on, as the user who runs it": """
                clusters= cluster= cluster-constraint= context= gid= uid= get-user-env mcs-label=
                """,
            "variables of the ranks are written under launcher.slurm.env": """
                export= export-file= propagate= preserve-env
                """,
            "trials read made-up data and stage no files in": """
                bb= bbf= bcast= bcast-exclude= compress= send-libs= tmp=
                """,
            "launcher.slurm.container takes pyxis, apptainer and shifter": """
                container= container-id= runtime= environment=
                """,
            "pending jobs are not changed": "mem-update=",
        },
    ),
)

SBATCH_OPTIONS = OptionTable(
    "sbatch",
    f"sbatch of {_SOURCE}",
    (
        *_COMMON,
        *option_groups(
            no_effect={"it only changes what the submitting shell sees": "wait x11="},
            noted={
                "trials are jobs of their own, each with another layout": "array= wrap= external",
                "a trial has nothing to save before its time limit, and the signal would end it": "signal=",
                "all nodes of a trial must have the same features": "batch=",
                "Slurm no longer has it": "power=",
            },
        ),
    ),
    prefix="--",
)

SRUN_OPTIONS = OptionTable(
    "srun",
    f"srun of {_SOURCE}",
    (
        *_COMMON,
        *option_groups(
            read="cpu-bind= cpu_bind= accel-bind= mpi= unbuffered",
            no_effect={
                "it only changes how the step is started, watched and ended": """
                    label disable-status quit-on-interrupt wait= msg-timeout= slurmd-debug= threads= treewidth= async
                    jobid= ignore-signals= interactive pty= x11= wait-for-children external-launcher= no-allocate
                    debugger-test alloc_nodelist= argv= switch_req= switch_wait=
                    """,
                "each trial has its nodes to itself": "exact whole overlap=",
            },
            noted={
                "put its commands into launcher.slurm.setup_file if the ranks need them": """
                    prolog= epilog= task-prolog= task-epilog=
                    """,
                "all ranks of a trial are one program in one job": "multi-prog het-group= pack-group=",
                "a trial has nothing to save before its time limit": "signal=",
            },
        ),
    ),
    prefix="--",
)

OPTIONAL_VALUES = frozenset(
    (
        *("exclusive", "nice", "no-kill", "requeue", "propagate", "resv-ports", "oom-kill-step"),
        *("bcast", "compress", "external-launcher", "immediate", "kill-on-bad-exit", "overlap", "pty"),
        *("send-libs", "x11"),
    )
)
"""Options whose value only counts behind an equals sign."""

_COMMON_LETTERS = {
    "A": "account",
    "D": "chdir",
    "M": "clusters",
    "C": "constraint",
    "S": "core-spec",
    "c": "cpus-per-task",
    "d": "dependency",
    "m": "distribution",
    "x": "exclude",
    "B": "extra-node-info",
    "G": "gpus",
    "h": "help",
    "H": "hold",
    "J": "job-name",
    "L": "licenses",
    "k": "no-kill",
    "F": "nodefile",
    "w": "nodelist",
    "N": "nodes",
    "n": "ntasks",
    "O": "overcommit",
    "s": "oversubscribe",
    "p": "partition",
    "q": "qos",
    "Q": "quiet",
    "t": "time",
    "v": "verbose",
    "V": "version",
    "b": "begin",
    "e": "error",
    "i": "input",
    "o": "output",
    "W": "wait",
}
SBATCH_LETTERS = _COMMON_LETTERS | {"a": "array"}
SRUN_LETTERS = _COMMON_LETTERS | {
    "X": "disable-status",
    "I": "immediate",
    "K": "kill-on-bad-exit",
    "l": "label",
    "T": "threads",
    "Z": "no-allocate",
    "E": "preserve-env",
    "r": "relative",
    "u": "unbuffered",
}
