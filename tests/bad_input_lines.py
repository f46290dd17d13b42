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
    1: Line("unknown key", "refused, with the most similar key"),
    2: Line("duplicate key", "refused, with both lines"),
    3: Line("YAML tags and objects", "refused: values are numbers, texts, booleans, lists and mappings"),
    4: Line("anchors and aliases, files over 1 MiB, nesting over 20", "refused before they cost memory"),
    5: Line("tabs, a byte order mark, another encoding, an empty file", "refused, with the line"),
    6: Line("`yes`, `no`, `on`, `08`, `1e3`, `12:30:00`", "typed fields; durations in Slurm's grammar"),
    7: Line("tensor x pipeline x data is not the world, or does not divide it", "refused, with all numbers"),
    8: Line("heads, key-value heads, hidden, feed-forward or vocabulary that tensor cannot split", "a layout rule"),
    9: Line(
        "layers that an engine cannot split over stages and chunks",
        "the engine's rule; uneven stages are valid where the engine can",
    ),
    10: Line("global batch is not micro batch x accumulation x data", "refused, with all numbers"),
    11: Line("tensor wider than a node, where the search does not allow it", "refused, with the key that allows it"),
    12: Line("zero, negative, a fraction or a boolean for a whole number >= 1", "refused: types are strict"),
    13: Line("10^12, not a number, infinity, `1_000`", "refused: every number has bounds"),
    14: Line("a space without a valid layout", "refused, with the number of layouts that each rule rejects"),
    15: Line("over 10^6 raw points", "refused without `search.sample_space`; not listed in full"),
    16: Line("repeats in a list, min above max, step 0", "refused"),
    17: Line("unknown objective", "refused, with the known ones"),
    18: Line("trials, parallel trials, repeats of zero or less", "refused"),
    19: Line("a warm-up as long as all steps, fewer than 5 measured steps", "refused"),
    20: Line(
        "a time limit in a wrong form, or over the partition's", "refused, by the grammar and by the cluster's limits"
    ),
    21: Line("nodes x GPUs is not the world", "refused"),
    22: Line("more CPUs than a node offers", "refused, by the site's profile or the cluster"),
    23: Line(
        "account, partition, QOS and the like with a blank, a newline, a quote, `$`, a backtick, `;`, `#`, a first `-`",
        "refused: each option has a list of allowed characters",
    ),
    24: Line("a raw directive that sets what Parlay sets: job-name, output, array, parsable, wrap, export", "refused"),
    25: Line("a raw directive without `--`, or `uid`, `gid`, `get-user-env`", "refused"),
    26: Line(
        "environment names no shell accepts, values of several lines or with NUL, `SLURM_*`, `SBATCH_*`, `MASTER_*`,"
        " `RANK`",
        "refused; `LD_PRELOAD` and `PATH` are allowed",
    ),
    27: Line("an apparent secret in a file or in `--set`", "refused, not repeated in the message"),
    28: Line("module names with shell characters", "refused"),
    29: Line("invalid node lists, or more than 100,000 hosts", "refused before they cost memory"),
    30: Line(
        "a container that is neither a list of words nor a runtime with an image, or with missing images or mounts, or"
        " with `:` or `,` in them",
        "refused",
    ),
    31: Line("a search name with `/`, `..`, over 41 characters, look-alikes, a leading dot", "refused"),
    32: Line(
        "a `work_dir` that is missing, not shared, not writable, world-writable, too long, or inside a search",
        "refused, or reported by `parlay doctor`",
    ),
    33: Line("SQLite on NFS, Lustre, GPFS and the like", "refused, with the local path to use instead"),
    34: Line("a database address with an unknown driver, or with a password", "refused, the password not repeated"),
    35: Line(
        "MLflow's `file:` or `./mlruns`, credentials in an http address, a typo in the scheme", "refused with the fix"
    ),
    36: Line("an MLflow experiment that is deleted or read-only", "reported before the first trial"),
    37: Line("metric or parameter names that MLflow refuses", "written under another name, with a message"),
    38: Line(
        "a training script that is missing or cannot be started, or whose version a layout depends on and is unknown",
        "refused before a trial",
    ),
    39: Line(
        "a template or argument with an unknown placeholder, one without a value in some layout, or without a searched"
        " axis",
        "refused",
    ),
    40: Line("arguments that contradict a searched axis, or a template that contradicts the model", "refused"),
    41: Line(
        "an outcome file of another schema or attempt, with NaN, text for numbers, too few steps, above the peak, a"
        " clock that went back",
        "the trial ends as `result_invalid`",
    ),
    42: Line(
        "a recipe of a newer version, edited, another user's, or for other hardware",
        "refused; an edited one with `--force`, another user's with `--trust`",
    ),
    43: Line(
        "an imported table with missing columns, bad cells, a trial twice",
        "every row that is left out is reported",
        "the verb `import`",
    ),
    44: Line(
        "resuming with another space, objective or world", "refused; a new search has a warm start from the old one"
    ),
    45: Line("an id that is unknown or ambiguous", "refused, with the candidates"),
    46: Line(
        "the service: a body too large, of a wrong type, a wrong token, a path in an id, an unknown method",
        "413, 415, 401, 400 or 404, 405, and no stack trace",
    ),
    47: Line(
        "a careless umask, an unsupported Python, a dependency below its floor", "corrected, refused or a warning"
    ),
    48: Line("a poll interval of zero or less, or below the floor", "refused; below the floor: raised, with a message"),
    49: Line("`--set` in a wrong form, or of an unknown key", "refused, with the most similar key"),
    50: Line("control and escape characters in displayed text", "refused in a file; otherwise escaped"),
    51: Line("a pipe, a terminal, a device, or a link to one, instead of a file", "refused without waiting"),
    52: Line(
        "70,000 unknown keys, names of 1 MiB, sizes at the ends of all ranges",
        "bounded: the first mistakes are reported, quotations are shortened, a plan ends",
    ),
    53: Line(
        "several engines on a CPU that emulates the GPU of one: an axis, a baseline, rows of a table, another trainer"
        " in a replay",
        "refused; trials on an emulated device have the flag `emulated_device`",
    ),
    54: Line(
        "a megatron-core that is missing or not of the verified versions, no Transformer Engine for flash attention or"
        " sequence parallelism, no flash-attn that it takes, a"
        " shape that megatron-core cannot build",
        "refused before the launch where ranks run on this machine, and by each rank; `parlay doctor` looks on the"
        " nodes",
    ),
}

SECURITY = {
    "no_shell": Line("Programs are started", "from argument lists; no text is passed to a shell or to `eval`"),
    "directive_values": Line("Every `#SBATCH` value", "is one word of allowed characters"),
    "setup_file": Line(
        "Free shell text",
        "is only in a file that the user names; `plan` shows it, and a copy is beside the job",
    ),
    "no_pickle": Line(
        "Deserialisation", "creates no objects: no `pickle`, no `torch.load`, no object collectives, no YAML tags"
    ),
    "paths": Line("Paths below a search's folder", "stay below it: links out of it are not followed"),
    "private_files": Line("Written files", "have mode 0600 in folders of 0700, whatever the umask"),
    "secrets": Line(
        "Secrets", "never reach a command line, a job's comment or script, a log, MLflow, the ledger or a recipe"
    ),
    "service": Line(
        "The service", "is off by default; a unix socket (0600) or loopback with a token, Host and Origin checked"
    ),
    "ray": Line("Ray", "listens on loopback, without dashboard, in a private folder; `ray stop` is never called"),
    "contents": Line(
        "Files of a search, a pilot and Parlay's home",
        "end no driver and no verb in a traceback, whatever they hold: types, absent keys, numbers, levels, bytes",
    ),
    "cancel": Line("A job is cancelled", "only if its id, name and user all match"),
    "environment": Line("`sbatch` is started", "without `SBATCH_*` and another job's `SLURM_*`"),
    "csv_cells": Line("Text in a CSV cell", "is never a formula to a spreadsheet"),
    "reports": Line("Reports", "run only their own scripts, make no requests, and escape everything"),
}
