"""The command of a job's ranks: what stands between srun's own options and the trial program. Pure.

First comes what each rank does on its node (its GPU, folders of the job's own there), then the container's command,
then the program.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm.request import Container, JobRequest, Launch, Runtime
from slurm.shell_quoting import joined

ADDRESS_VARIABLE = "PARLAY_ADDRESS"
"""What the ranks read in trials/ranks/address.py, whose name this is again: this room knows nothing of trials."""

_OWN_FOLDER = "parlay-$SLURM_JOB_ID.$SLURM_STEP_ID"
"""A step's own, so that no trial of a pilot finds the caches of the one before."""


def srun_options(request: JobRequest) -> list[str]:
    """Options of srun that the site and the container ask for."""
    container = request.options.container
    words = list(request.options.launch.srun)
    if container is not None and container.runtime is Runtime.PYXIS:
        words += _pyxis(container, request)
    return words


def rank_command(request: JobRequest) -> list[str]:
    """What srun starts as each rank."""
    return [*_on_the_node(request.options.launch), *_in_container(request), *request.argv]


def launch_environment(request: JobRequest) -> dict[str, str]:
    """What site and container want exported: how a node calls itself, and what Apptainer must not take from the image.

    A variable called APPTAINERENV_X is X in the container, whatever the image sets.
    """
    options = request.options
    address = {} if options.launch.address is None else {ADDRESS_VARIABLE: options.launch.address}
    if options.container is None or options.container.runtime is not Runtime.APPTAINER:
        return address
    return address | {f"APPTAINERENV_{name}": value for name, value in (_variables(request) | address).items()}


def _on_the_node(launch: Launch) -> list[str]:
    """A shell that sets what only a rank's own node knows, and becomes the rank. Someone else's folder of that name
    ends the rank: /tmp is everybody's."""
    lines = [f'd="{base}/{_OWN_FOLDER}"; {_MAKE_OWN}' + _exported(base, launch) for base in _bases(launch)]
    if launch.visible_devices is not None:
        lines.append(f"export {launch.visible_devices}=$SLURM_LOCALID")
    return ["/bin/sh", "-c", "; ".join([*lines, 'exec "$@"']), "sh"] if lines else []


_IS_OWN = '[ -d "$d" ] && [ ! -L "$d" ] && [ -O "$d" ]'
_MAKE_OWN = f'mkdir -m 700 "$d" 2>/dev/null; {_IS_OWN} || {{ echo "$d is another\'s" >&2; exit 1; }}'


def _bases(launch: Launch) -> list[str]:
    return list(dict.fromkeys(launch.node_folders.values()))


def _exported(base: str, launch: Launch) -> str:
    names = [name for name, below in launch.node_folders.items() if below == base]
    return "".join(f'; mkdir -p "$d/{name}"; export {name}="$d/{name}"' for name in names)


def _in_container(request: JobRequest) -> list[str]:
    container = request.options.container
    if container is None or container.runtime is Runtime.PYXIS:
        return []
    if container.runtime is Runtime.APPTAINER:
        return _apptainer(container, request)
    return _shifter(container, request) if container.runtime is Runtime.SHIFTER else list(container.command)


def _pyxis(container: Container, request: JobRequest) -> list[str]:
    """The variables by name: pyxis then takes the job's, not the image's."""
    mounts, names = _mounts(container, request), _variables(request)
    return [
        f"--container-image={container.image}",
        *([joined("--container-mounts=", _with_commas(mounts))] if mounts else []),
        joined("--container-workdir=", request.rank_directory),
        *(["--container-writable"] if container.writable else []),
        *([f"--container-env={','.join(names)}"] if names else []),
    ]


def _apptainer(container: Container, request: JobRequest) -> list[str]:
    return [
        *("apptainer", "exec"),
        *([f"--{container.gpus}"] if container.gpus is not None else []),
        *(["--writable-tmpfs"] if container.writable else []),
        *(joined("--bind=", mount) for mount in _mounts(container, request)),
        joined("--pwd=", request.rank_directory),
        str(container.image),
    ]


def _shifter(container: Container, request: JobRequest) -> list[str]:
    """Images see parallel file systems where they lie (siteFs of udiRoot.conf): nothing of ours has to be mounted."""
    return [
        "shifter",
        f"--image={container.image}",
        *(f"--volume={mount}" for mount in container.mounts),
        joined("--workdir=", request.rank_directory),
        *(joined(f"--env={name}=", value) for name, value in _variables(request).items()),
    ]


def _mounts(container: Container, request: JobRequest) -> list[str]:
    """The user's, then the folders without which no rank finds its code: what lies deeper comes last."""
    taken = {mount.split(":")[1] for mount in container.mounts}
    return [*container.mounts, *(joined(folder, ":", folder) for folder in request.folders if folder not in taken)]


def _variables(request: JobRequest) -> dict[str, str]:
    """What is the same in the container whatever the image sets."""
    return {**request.options.env, **request.environment}


def _with_commas(words: Iterable[str]) -> str:
    first, *rest = words
    return joined(first, *(part for word in rest for part in (",", word)))
