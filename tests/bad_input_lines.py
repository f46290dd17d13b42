"""Refused inputs and rules of security, as docs/bad_inputs.md lists them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """Line of the page in Markdown: the input or asset `what`, and the `rule`; `later` is what is still missing."""

    what: str
    rule: str
    later: str | None = None


BAD_INPUTS = {
    1: Line("a key nobody knows", "refused, with the key that was meant"),
    2: Line("the same key twice", "refused, with both lines"),
    3: Line("YAML tags and objects", "not read: values are numbers, words, switches, lists and mappings"),
    4: Line("anchors and aliases, files over 1 MiB, nesting over 20", "refused before they cost memory"),
    5: Line("tabs, a byte order mark, another encoding, an empty file", "refused, with the line"),
    6: Line("`yes`, `no`, `on`, `08`, `1e3`, `12:30:00`", "no surprises: typed fields, durations in Slurm's grammar"),
    7: Line("tensor x pipeline x data is not the world, or does not divide it", "refused with all the numbers"),
    8: Line("heads, key-value heads, hidden, feed-forward or vocabulary that tensor cannot split", "a layout rule"),
    9: Line(
        "layers that an engine cannot split over stages and chunks",
        "the engine's rule; uneven stages are legal where the engine can",
    ),
    10: Line("global batch is not micro batch x accumulation x data", "refused with all the numbers"),
    11: Line("tensor wider than a node, where the search does not allow it", "refused, and the switch named"),
    12: Line("zero, negative, a fraction or a switch where a whole number >= 1 is due", "refused: types are strict"),
    13: Line("10^12, not a number, infinity, `1_000`", "refused: every number has bounds"),
    14: Line("a space without a legal layout", "refused before anything runs, with how many each rule removed"),
    15: Line("over 10^6 raw points", "refused without the sampling switch; not listed in full"),
    16: Line("repeats in a list, min above max, step 0", "refused"),
    17: Line("an objective nobody knows", "refused, the known ones listed"),
    18: Line("trials, parallel trials, repeats of zero or less", "refused"),
    19: Line("a warm-up as long as all steps, fewer than 5 measured steps", "refused"),
    20: Line(
        "a time limit in a wrong form, or over the partition's", "refused: by the grammar, and by the cluster itself"
    ),
    21: Line("nodes x GPUs is not the world", "refused"),
    22: Line("more CPUs than a node offers", "refused, by what the site or the cluster says"),
    23: Line(
        "account, partition, QOS and the like with a blank, a newline, a quote, `$`, a backtick, `;`, `#`, a first `-`",
        "refused: each option has a list of what it may hold",
    ),
    24: Line("a raw directive that sets what Parlay sets: job-name, output, array, parsable, wrap, export", "refused"),
    25: Line("a raw directive without `--`, or `uid`, `gid`, `get-user-env`", "refused"),
    26: Line(
        "environment names no shell accepts, values of several lines or with NUL, `SLURM_*`, `SBATCH_*`, `MASTER_*`,"
        " `RANK`",
        "refused; `LD_PRELOAD` and `PATH` are allowed",
    ),
    27: Line("what looks like a secret in a file or in `--set`", "refused and not repeated"),
    28: Line("module names with shell characters", "refused"),
    29: Line("node lists that are none, or of more than 100,000 hosts", "refused before they cost memory"),
    30: Line(
        "a container that is neither words nor a runtime with an image, or whose image or mounts are not there or"
        " smuggle `:` or `,`",
        "refused",
    ),
    31: Line("a search name with `/`, `..`, over 41 characters, look-alikes, a leading dot", "refused"),
    32: Line(
        "a folder of searches that is missing, not shared, not writable, everybody's to write, too long, or inside a"
        " search",
        "refused, or told by `parlay doctor`",
    ),
    33: Line("SQLite on NFS, Lustre, GPFS and the like", "refused, with the local path to use instead"),
    34: Line("a database address with an unknown driver, or with a password", "refused, and the password not repeated"),
    35: Line(
        "MLflow's `file:` or `./mlruns`, credentials in an http address, a typo in the scheme", "refused with the fix"
    ),
    36: Line("an MLflow experiment that was deleted, or that may not be written", "said before the first trial"),
    37: Line("metric or parameter names that MLflow refuses", "written by another name, and said"),
    38: Line("a training script that is missing, or cannot be started as the search would", "refused before a trial"),
    39: Line(
        "a template with an unknown placeholder, one without a value in some layout, or without one that is searched",
        "refused",
    ),
    40: Line("user arguments that contradict what is searched", "refused"),
    41: Line(
        "an outcome file of another schema or attempt, with NaN, text for numbers, too few steps, more than the peak, a"
        " clock that went back",
        "the trial ends as `result_invalid`",
    ),
    42: Line("a recipe of a newer version, edited, or for other hardware", "refused; an edited one may be forced"),
    43: Line(
        "an imported table with missing columns, bad cells, a trial twice",
        "every row that is not read is reported",
        "the verb `import`",
    ),
    44: Line("resuming with another space, objective or world", "refused; a new search learns from the old one"),
    45: Line("an id that is unknown, or fits several", "refused, the candidates listed"),
    46: Line(
        "the service: a body too large, of a wrong type, a wrong token, a path in an id, an unknown method",
        "413, 415, 401, 400 or 404, 405, and no stack trace",
    ),
    47: Line(
        "a careless umask, an unsupported Python, a dependency below its floor", "corrected, refused or warned of"
    ),
    48: Line("a poll interval of zero or less, or below the floor", "refused; below the floor: raised, and said"),
    49: Line("`--set` in a wrong form, or of an unknown key", "refused, with the key that was meant"),
    50: Line("control and escape characters in what is shown", "refused in a file; shown escaped from elsewhere"),
    51: Line("a pipe, a terminal, a device, or a link to one, where a file is due", "refused, never waited for"),
    52: Line(
        "70,000 unknown keys, names of 1 MiB, sizes at the ends of all ranges",
        "bounded: the first mistakes are told, what is quoted is shortened, a plan ends",
    ),
}

SECURITY = {
    "no_shell": Line("Programs are started", "from argument lists; no text is given to a shell or to `eval`"),
    "directive_values": Line("Every `#SBATCH` value", "passes a list of what it may hold; one word of one line"),
    "setup_file": Line(
        "Free shell text",
        "stands in a file that the user names alone; `plan` says which, a copy lies by the job",
    ),
    "no_pickle": Line(
        "Nothing is unpickled", "no `pickle`, no `torch.load`, no collective of objects, no YAML that makes objects"
    ),
    "paths": Line("Paths below a search's folder", "stay below it: links that lead out are not followed"),
    "private_files": Line("What is written", "is 0600 in folders of 0700, whatever the umask"),
    "secrets": Line(
        "Secrets", "never reach a command line, a job's comment or script, a log, MLflow, the ledger or a recipe"
    ),
    "service": Line(
        "The service", "is off by default; a unix socket (0600) or loopback with a token, Host and Origin checked"
    ),
    "ray": Line("Ray", "listens on loopback, without dashboard, in a private folder; `ray stop` is never called"),
    "cancel": Line("A job is cancelled", "only if its id, name and user all match"),
    "environment": Line("`sbatch` is started", "without `SBATCH_*` and another job's `SLURM_*`"),
    "csv_cells": Line("Text in a CSV cell", "is none that a spreadsheet would compute"),
    "reports": Line("Reports", "run no script but their own, ask for nothing, and escape everything"),
}
