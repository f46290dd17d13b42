"""`python launch.py CONFIGURATION SCRIPT ARGUMENTS`: becomes one rank of a script as `accelerate launch` starts it.

The variables that accelerate's own launcher makes of the configuration are added to those of the rank, which find the
other ranks; then the script takes this process over. Standard library and accelerate only.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from search_spaces.engines import ACCELERATE, ACCELERATE_LAUNCH
from trials.ranks.engine_packages import engine_fault
from trials.ranks.software import package_version

ADDRESS = ("MASTER_ADDR", "MASTER_PORT")
PLACE = (*ADDRESS, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""The variables by which ranks find each other."""


def main(words: Sequence[str]) -> NoReturn:
    """Run the script in place of this process; exits with a sentence where accelerate would not train this layout."""
    configuration, script, *arguments = words
    _require_version()
    launched = _launched(configuration, script, arguments)
    variables = _placed(launched, _variables(launched))
    _require_devices(launched, variables)
    os.execve(sys.executable, [sys.executable, "-u", script, *arguments], variables)


def _require_version() -> None:
    """Exit for another version than those whose launcher is known: what is called here has no promised interface."""
    if fault := engine_fault(ACCELERATE_LAUNCH, ACCELERATE, package_version(ACCELERATE)):
        sys.exit(str(fault))


def _launched(configuration: str, script: str, arguments: Sequence[str]) -> Namespace:
    """The arguments of `accelerate launch`, completed by the configuration.

    The node's number and the address are those of this rank's node. Port 0 is a free one, since accelerate refuses one
    that is used, as that of the trial may be.
    """
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    node = int(os.environ["RANK"]) // int(os.environ["LOCAL_WORLD_SIZE"])
    place = ("--machine_rank", str(node), "--main_process_ip", os.environ["MASTER_ADDR"], "--main_process_port", "0")
    words = ["--config_file", configuration, *place, script, *arguments]
    launched: Namespace = _validate_launch_command(launch_command_parser().parse_args(words))[0]
    return launched


def _variables(launched: Namespace) -> dict[str, str]:
    """The environment that `accelerate launch` gives a rank (accelerate/commands/launch.py, launch_command,
    multi_gpu_launcher and simple_launcher)."""
    from accelerate.utils import check_cuda_p2p_ib_support
    from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

    if not (launched.use_fsdp or launched.multi_gpu):
        return dict(prepare_simple_launcher_cmd_env(launched)[1])
    variables = dict(prepare_multi_gpu_env(launched))
    without_peers = {} if check_cuda_p2p_ib_support() else {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"}
    return {**without_peers, **variables}


def _placed(launched: Namespace, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables with the trial's address; without any place for a single rank, which would make it a group."""
    if launched.num_processes == 1:
        return {name: value for name, value in variables.items() if name not in PLACE}
    return {**variables, **{name: os.environ[name] for name in ADDRESS}}


def _require_devices(launched: Namespace, variables: Mapping[str, str]) -> None:
    """Exit where accelerate would silently train otherwise: every rank alone without a device, or in fp32."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    is_on_cpu = variables.get("ACCELERATE_USE_CPU") == "True"
    kind = PartialState._prepare_backend(None, is_on_cpu)[1]
    if launched.num_processes > 1 and kind == DistributedType.NO:
        sys.exit(
            "accelerate finds no accelerator on this node, so every rank would train alone: on a CPU it has DDP only,"
            " which is zero_stage 0"
        )
    if launched.use_cpu and launched.mixed_precision == "fp16":
        sys.exit("accelerate trains in fp32 on a CPU where fp16 is asked for: set precision to fp32 or bf16")


if __name__ == "__main__":
    main(sys.argv[1:])
