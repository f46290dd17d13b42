"""Job requests: one batch job whose ranks are one job step. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

SETUP_NAME = "setup.sh"
"""Name of the copy of the user's setup file in the job's folder."""


class Runtime(StrEnum):
    """Container runtimes."""

    PYXIS = "pyxis"
    APPTAINER = "apptainer"
    SHIFTER = "shifter"


class Placement(StrEnum):
    """Placement of a job's nodes: anywhere, below one leaf switch of topology/tree, in one block of topology/block, or
    next to each other in Slurm's order of nodes."""

    ANY = "any"
    ONE_SWITCH = "one_switch"
    ONE_BLOCK = "one_block"
    CONTIGUOUS = "contiguous"


VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def _option(description: str, default: Any = None, **about: Any) -> Any:
    """An option of the search file, declared for its section there, its check, the script and sbatch's environment.

    `about` has the `pattern` of a text, or of each text of a list or mapping, the `rule` in words and the `fix`, the
    bounds `ge` and `le` of a number, the `words` of a
    choice, the `variables` that sbatch reads for it (sbatch(1), "INPUT ENVIRONMENT VARIABLES"), by precedence, and
    `is_directive` where the script has it as --name=value.
    """
    given = {"default_factory": default} if callable(default) else {"default": default}
    return field(**given, metadata={"description": description, "min_length": 1, "max_length": 4096, **about})


def _count(description: str, ge: int, le: int, **about: Any) -> Any:
    return field(default=None, metadata={"description": description, "ge": ge, "le": le, **about})


def _directive(description: str, form: tuple[str, str], *variables: str) -> Any:
    """A text that the script has as --name=value: `form` is its pattern and the rule in words, `variables` those that
    sbatch reads for it."""
    pattern, rule = form
    read = {"variables": variables} if variables else {}
    return _option(description, pattern=pattern, rule=rule, is_directive=True, **read)


_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}"
_WORD = (_NAME, "letters, digits and _ . @ + -")
_WORDS = (rf"{_NAME}(,{_NAME}){{0,31}}", "names of letters, digits and _ . @ + -, between commas")
_FEATURES = (
    r"[A-Za-z0-9_\[(][A-Za-z0-9_.:=+&|,*()\[\]-]{0,255}",
    "features of letters, digits and _ . : = + -, joined by & | , * and brackets",
)
_ONE_GRES = r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,63}(:[A-Za-z0-9_.-]{1,63}){0,2}"
_GRES = (rf"{_ONE_GRES}(,{_ONE_GRES}){{0,15}}", "name:count or name:type:count, between commas")
_MEMORY = (r"[0-9]{1,12}[KMGT]?", "a whole number of MiB, or one with K, M, G or T; 0 is all of a node")
_AFTER = r"after(any|ok|notok|corr)?:[1-9][0-9]{0,9}(\+[0-9]{1,6})?(:[1-9][0-9]{0,9}(\+[0-9]{1,6})?){0,15}"
_DEPENDENCY = (
    rf"{_AFTER}(,{_AFTER}){{0,15}}|{_AFTER}(\?{_AFTER}){{0,15}}",
    "after, afterany, afterok, afternotok or aftercorr with job ids, such as afterok:12345, joined by , or by ?",
)
_NETWORK = (r"[A-Za-z0-9_][A-Za-z0-9_.:=,-]{0,255}", "letters, digits and _ . : = , -")
_LICENSE = rf"{_NAME}([:=][0-9]{{1,6}})?"
_LICENSES = (rf"{_LICENSE}(,{_LICENSE}){{0,15}}", "name or name:count, between commas")
_COMMENT = (
    r"[A-Za-z0-9_][A-Za-z0-9_.,:=@/+-]{0,255}",
    "letters, digits and _ . , : = @ / + -, without blanks",
)
_SIGNAL = (
    r"([BR]{1,2}:)?([A-Z][A-Z0-9]{1,9}|[0-9]{1,2})(@[0-9]{1,5})?",
    "a signal, B: or R: before it, @seconds after it",
)
_PATH = r"(?!(?:[^:]*/)?\.\.(?:[/:]|\Z))/[A-Za-z0-9_.@+=/-]{0,1023}"
"""An absolute path without a part that is `..`."""


def _form(pattern: str, rule: str, fix: str) -> dict[str, str]:
    return {"pattern": pattern, "rule": rule, "fix": fix}


_MODULE = _form(
    r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_.+-]+)*",
    "name or name/version, of letters, digits and _ . + -",
    "one module per entry; anything else goes into setup_file",
)
_VALUE = _form(r"[^\n\x00]*", "one line", "set it in setup_file")
_SETUP_FILE = _form(
    r"/[^\x00-\x1f\x7f]*",
    "an absolute path: the job starts in its own directory",
    "give the whole path, as the compute nodes see it",
)
_IMAGE = _form(
    r"(?!(?:.*/)?\.\.(?:/|\Z))[A-Za-z0-9_./][A-Za-z0-9_./:@#+-]{0,1023}",
    "a path or a name: letters, digits and _ . / : @ # + -, without blanks and ' , '",
    "give it as the runtime takes it",
)
_MOUNT = _form(
    rf"{_PATH}:{_PATH}(:r[ow])?",
    "SRC:DST or SRC:DST:ro, of absolute paths without blanks, colons, commas and ..",
    "one mount per entry: /data:/data:ro",
)
_NODE_FOLDER = _form(
    _PATH, "an absolute path without blanks and .., in which each node creates a folder", "/tmp, or the node's own disk"
)
_DEVICES = _form("|".join(VISIBLE_DEVICES), f"one of {', '.join(VISIBLE_DEVICES)}", "write one of them")
_ADDRESS = _form(
    r"[A-Za-z0-9.-]*\{(host|fqdn|ip)\}[A-Za-z0-9.-]*",
    "{host} (short name), {fqdn} or {ip}, with letters, digits, . and - around it",
    'for example "{host}i"',
)


@dataclass(frozen=True)
class Container:
    """The image that the ranks run in, or a command before their own as a list: [apptainer, exec, --nv, x.sif]."""

    runtime: Runtime | None = _option("Container runtime.")
    image: str | None = _option("Image: a path, or a name as the runtime takes it.", **_IMAGE)
    mounts: tuple[str, ...] = _option("SRC:DST or SRC:DST:ro; the search's own folder is always mounted.", (), **_MOUNT)
    writable: bool = _option("Let the ranks write into the image; changes are lost at their end.", False)
    gpus: str | None = _option(
        "apptainer: driver to bind, nv or rocm. Default: the accelerator's.", words=("nv", "rocm")
    )
    command: tuple[str, ...] = _option("Command before the ranks' own, in place of all other keys.", ())


@dataclass(frozen=True)
class Launch:
    """Options of srun, which starts the ranks as one task per GPU."""

    srun: tuple[str, ...] = _option("Options of srun that bind tasks: [--cpu-bind=cores].", ())
    visible_devices: str | None = _option(
        f"Variable that restricts each rank to its own GPU: {', '.join(VISIBLE_DEVICES)}.", **_DEVICES
    )
    node_folders: Mapping[str, str] = _option(
        "Variables to set to a private folder on each node, with its parent: {TMPDIR: /tmp}.", dict, **_NODE_FOLDER
    )
    address: str | None = _option(
        "Address of rank 0's node for the others, with {host}, {fqdn} or {ip}. Default: {fqdn}.", **_ADDRESS
    )


@dataclass(frozen=True)
class JobOptions:
    """Options of each trial's job. Everything is optional; see `sbatch --help` of your site.

    None and () leave a directive out; option_checks.py refuses what would not be safe in a script. In the job,
    `modules` are loaded, then `setup_file` is sourced (a copy called SETUP_NAME in the script's folder), then `env` is
    exported. `segment` of 0 leaves its directive out, too.
    """

    # SLURM_ACCOUNT is not read by sbatch, but set by many sites and login scripts; Slurm itself sets SLURM_JOB_ACCOUNT.
    account: str | None = _directive("Account (project) that pays.", _WORD, "SBATCH_ACCOUNT", "SLURM_ACCOUNT")
    partition: str | None = _directive("Partition, or several with commas.", _WORDS, "SBATCH_PARTITION")
    qos: str | None = _directive("Quality of service.", _WORD, "SBATCH_QOS")
    reservation: str | None = _directive("Reservation to run in.", _WORDS, "SBATCH_RESERVATION")
    constraint: str | None = _directive("Features the nodes must have.", _FEATURES, "SBATCH_CONSTRAINT")
    gpus_per_node: int | None = _count(
        "GPUs requested on each node. Default: cluster.gpus_per_node; none on CPU or with gres.",
        1,
        64,
        is_directive=True,
        variables=("SBATCH_GPUS_PER_NODE",),
    )
    gres: str | None = _directive("Generic resources, for example gpu:4.", _GRES, "SBATCH_GRES")
    cpus_per_task: int | None = _count("CPU cores of each rank.", 1, 4096, is_directive=True)
    threads_per_core: int | None = _count(
        "Hardware threads used per core, 1 for no hyper-threads.", 1, 8, is_directive=True
    )
    mem: str | None = _directive(
        "Memory of each node, 0 for all of it. slurm_pilot: with that of fork servers added.",
        _MEMORY,
        "SBATCH_MEM_PER_NODE",
    )
    exclusive: bool | str = _option(
        "Whole nodes, for steadier measurements; user: shared with your own jobs only; topo: whole blocks of"
        " topology/block.",
        False,
        pattern="user|mcs|topo",
        rule="true, false, user, mcs or topo",
        variables=("SBATCH_EXCLUSIVE",),
    )
    segment: int | None = _count(
        "Nodes of a job that lie in one block of topology/block, or less where that does not divide the job's nodes; 0:"
        " anywhere. The cluster's last link domain is then as large. Default: that domain's nodes.",
        0,
        100_000,
    )
    dependency: str | None = _directive(
        "Jobs that the search's first jobs wait for, as in sbatch --dependency: afterok:12345. Later ones do not.",
        _DEPENDENCY,
    )
    repeat_placement: Placement = _option(
        "Nodes of the finalists' repeats, of pilots and of replays. one_switch: below one leaf switch (--switches=1);"
        " one_block: in one block of topology/block (--segment); contiguous: next to each other.",
        Placement.ANY,
    )
    switch_wait_s: float | None = _option(
        "Longest wait for nodes below one switch, then any start. Default: the site's, often 5 minutes.",
        alias="switch_wait",
    )
    exclude: tuple[str, ...] = _option("Nodes to avoid.", (), is_directive=True)
    nodelist: tuple[str, ...] = _option("Nodes to run on.", (), is_directive=True)
    network: str | None = _directive("Network options of the site (Frontier).", _NETWORK, "SBATCH_NETWORK")
    licenses: str | None = _directive("Licenses; file systems on some sites.", _LICENSES)
    comment: str | None = _directive("Comment, used by some sites for accounting or routing.", _COMMENT)
    signal: str | None = _directive("Signal before the time limit, as in sbatch --signal.", _SIGNAL, "SBATCH_SIGNAL")
    modules: tuple[str, ...] = _option("Modules loaded before the ranks start.", (), **_MODULE)
    env: Mapping[str, str] = _option("Environment variables of the ranks.", dict, **_VALUE)
    setup_file: str | None = _option(
        "Shell file that is sourced after the modules and before the ranks; each trial keeps a copy.", **_SETUP_FILE
    )
    container: Container | None = _option("")
    launch: Launch = _option("", Launch())
    directives: tuple[str, ...] = _option("More #SBATCH options, each as --key=value.", ())


@dataclass(frozen=True)
class JobRequest:
    """One job: `num_nodes` x `tasks_per_node` ranks, each running `prefix` and `argv`.

    `name` identifies the job in queries, so it is unique. Job and ranks start in `directory`, which holds job.sh,
    job.log and each rank's `rank-NNNNN.log`. `time_limit_s` is rounded up to whole minutes. `environment` is exported
    to the ranks after the user's own. `exclude` are nodes to avoid in addition to those in `options`. `folders` are the
    folders of the node that ranks in a container need to see. `is_first`: no job of the search has started yet, so that
    it has the options' dependency; `is_repeat`: it measures a layout again, so that it has their placement.
    """

    name: str
    directory: Path
    num_nodes: int
    tasks_per_node: int
    time_limit_s: float
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    options: JobOptions = JobOptions()
    exclude: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    is_first: bool = False
    is_repeat: bool = False

    @property
    def script(self) -> Path:
        """Path of the batch script, written before the job is submitted."""
        return self.directory / "job.sh"

    @property
    def log(self) -> Path:
        """Output of the batch script, with Slurm's own messages."""
        return self.directory / "job.log"

    @property
    def rank_directory(self) -> str:
        """Directory in which the ranks start, as a word of the script."""
        return str(self.directory)

    @property
    def placement(self) -> Placement:
        """Placement of its nodes: the options' for repeats on several nodes."""
        return self.options.repeat_placement if self.is_repeat and self.num_nodes > 1 else Placement.ANY

    @property
    def time_limit_min(self) -> int:
        """Time limit in minutes, as passed to Slurm."""
        return limit_min(self.time_limit_s)


def limit_min(time_limit_s: float) -> int:
    """Return a time limit in whole minutes, rounded up, at least one. Less than a millisecond is ignored."""
    return max(1, -(-int(time_limit_s * 1000) // 60_000))


def max_job_s(time_limit_s: float, ending_s: float) -> float:
    """Return the most seconds for which a job may hold its nodes, with what Slurm adds to a limit (SlurmSettings)."""
    return limit_min(time_limit_s) * 60 + ending_s
