"""Command line of a job's ranks, between srun's own options and the trial program. Pure.

First comes a shell that prepares each rank on its node (its GPU, the step's folders), then the container's command,
then the program. Words are literal ones, which are quoted, or have shell variables to expand.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from slurm.request import Container, JobOptions, JobRequest, Launch, Runtime

ADDRESS_VARIABLE = "PARLAY_ADDRESS"
"""Variable read in trials/ranks/rendezvous.py, which has the same constant: slurm/ does not import trials/."""

_OWN_FOLDER = "parlay-$SLURM_JOB_ID.$SLURM_STEP_ID"
"""Folder of one step, so that a pilot's trials do not share caches."""


def srun_options(request: JobRequest) -> list[str]:
    """Return the options of srun for the site and the container."""
    return [*request.options.launch.srun, *container_options(request)]


def container_options(request: JobRequest) -> list[str]:
    """Return the options of srun for the container, where srun starts it."""
    container = request.options.container
    if container is None or container.runtime is not Runtime.PYXIS:
        return []
    return _pyxis(container, request)


def gpu_options(options: JobOptions) -> tuple[str, ...]:
    """Return the options of srun for all GPUs that the job has on each of its nodes."""
    return (
        *(() if options.gpus_per_node is None else (f"--gpus-per-node={options.gpus_per_node}",)),
        *(() if options.gres is None else (f"--gres={options.gres}",)),
    )


def rank_command(request: JobRequest) -> list[str]:
    """Return the command that srun starts as each rank."""
    return [*_on_the_node(request.options.launch), *_in_container(request), *request.prefix, *request.argv]


def launch_environment(request: JobRequest) -> dict[str, str]:
    """Return variables to export for the site and the container: the node's address, and what Apptainer must set
    itself.

    APPTAINERENV_X is X in the container, whatever the image sets.
    """
    options = request.options
    address = {} if options.launch.address is None else {ADDRESS_VARIABLE: options.launch.address}
    if options.container is None or options.container.runtime is not Runtime.APPTAINER:
        return address
    return address | {f"APPTAINERENV_{name}": value for name, value in (_variables(request) | address).items()}


def _on_the_node(launch: Launch) -> list[str]:
    """Return a shell command that sets variables known only on the rank's node and then becomes the rank.

    A folder of that name that belongs to another user ends the rank: /tmp is world-writable.
    """
    lines = [f'd="{base}/{_OWN_FOLDER}"; {_MAKE_OWN}' + _exported(base, launch) for base in _bases(launch)]
    if launch.visible_devices is not None:
        lines.append(f"export {launch.visible_devices}=$SLURM_LOCALID")
    return ["/bin/sh", "-c", "; ".join([*lines, 'exec "$@"']), "sh"] if lines else []


_IS_OWN = '[ -d "$d" ] && [ ! -L "$d" ] && [ -O "$d" ]'
_MAKE_OWN = f'mkdir -m 700 "$d" 2>/dev/null; {_IS_OWN} || {{ echo "$d belongs to another user" >&2; exit 1; }}'


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
    """Name the variables explicitly: pyxis then takes the job's values, not the image's."""
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
    """Build shifter's command. Images see parallel file systems at the same path (siteFs of udiRoot.conf)."""
    return [
        "shifter",
        f"--image={container.image}",
        *(f"--volume={mount}" for mount in container.mounts),
        joined("--workdir=", request.rank_directory),
        *(joined(f"--env={name}=", value) for name, value in _variables(request).items()),
    ]


def _mounts(container: Container, request: JobRequest) -> list[str]:
    """Return the user's mounts, then the folders that the ranks need; deeper paths come last."""
    taken = {mount.split(":")[1] for mount in container.mounts}
    return [*container.mounts, *(joined(folder, ":", folder) for folder in request.folders if folder not in taken)]


def _variables(request: JobRequest) -> dict[str, str]:
    """Return the variables that must have the same value in the container, whatever the image sets."""
    return {**request.options.env, **request.environment}


def _with_commas(options: Iterable[str]) -> str:
    first, *rest = options
    return joined(first, *(part for word in rest for part in (",", word)))


# -- words


class Filled(str):
    """A word with variables that the shell expands, as in `$here/code`, and no other shell syntax."""


def joined(*parts: str) -> str:
    """Concatenate parts into one word, a Filled one if any of the parts is."""
    kind = Filled if any(isinstance(part, Filled) for part in parts) else str
    return kind("".join(parts))


def quoted(word: str) -> str:
    """Quote a word for a script."""
    return f'"{word}"' if isinstance(word, Filled) else shlex.quote(word)


def command(words: Iterable[str]) -> str:
    """Join the words into one command line."""
    return " ".join(quoted(word) for word in words)


def exported(variables: Mapping[str, str]) -> list[str]:
    """Return an `export` line for each variable."""
    return [f"export {name}={quoted(value)}" for name, value in variables.items()]
