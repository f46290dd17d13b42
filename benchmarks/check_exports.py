"""Oracle of a recipe's exports: what the trainers' own parsers understand of them, compared with the layout.

    PARLAY_DOWNLOADS=FOLDER python -m benchmarks.check_exports [--project NAME]

FOLDER has checkouts named Megatron-LM, Megatron-DeepSpeed, gpt-neox, nanotron and DeepSpeed; those that are not there
are left out. Megatron-LM is asked twice: as of the tag core_v0.16.1, and as it is checked out, with the options that a
recipe advises for newer versions. torchtitan and accelerate are the installed packages, and need no FOLDER. nanotron's
parser is the package dacite: `pip install --target SITE dacite`, and PYTHONPATH=SITE.

Layouts that cover the axes are exported by the recipe's own functions (export_cases.py). Each trainer's parser reads
its files in a process of its own, makes its configurations of them, and checks them (real_parsers.py). Every field that
it then has is compared with the layout (export_meanings.py). The exit code is 1 if one differs or was not loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from benchmarks.export_cases import TOKENS, Case, export_cases
from benchmarks.export_meanings import MEANINGS, differences
from benchmarks.parser_process import DOWNLOADS, ask
from search_spaces.engines import ACCELERATE, TORCHTITAN
from search_spaces.layouts.layout import Layout
from trials.trainers.common.megatron_options import environment_of, newer_megatron_lm, oldest_megatron_lm

CORE_TAG = "core_v0.16.1"
Question = dict[str, Any]


@dataclass(frozen=True)
class Project:
    """A trainer's checkout, `version` of it, or as it is checked out where that is empty; or an installed package.

    `advised` are the options that the recipe advises for this version in a comment; layouts that it does not `know`
    are left out.
    """

    trainer: str
    checkout: str
    version: str = ""
    advised: Callable[[Layout], Sequence[Sequence[str]]] = lambda layout: ()
    knows: Callable[[Layout], bool] = lambda layout: True
    is_installed: bool = False

    def source(self, downloads: str | None) -> Path | None:
        """Folder of the checkout or package; None if it is not there."""
        if self.is_installed:
            found = find_spec(self.checkout)
            return Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None
        folder = None if downloads is None else Path(downloads) / self.checkout
        return folder if folder is not None and folder.is_dir() else None


PROJECTS = (
    Project("megatron-lm", "Megatron-LM", CORE_TAG, knows=lambda layout: oldest_megatron_lm(layout) is None),
    Project("megatron-lm", "Megatron-LM", advised=newer_megatron_lm),
    Project("megatron-deepspeed", "Megatron-DeepSpeed"),
    Project("gpt-neox", "gpt-neox"),
    Project("nanotron", "nanotron"),
    Project("deepspeed", "DeepSpeed"),
    Project(TORCHTITAN, "torchtitan", is_installed=True),
    Project(ACCELERATE, "accelerate", is_installed=True),
)


@dataclass(frozen=True)
class Checked:
    """A layout by what its export's trainer understood: `compared` fields, and sentences on those that differ."""

    layout: str
    compared: int
    differing: tuple[str, ...]
    is_loaded: bool


def main() -> None:
    arguments = _arguments()
    downloads = os.environ.get(DOWNLOADS)
    if downloads is None:
        print(f"{DOWNLOADS} names no folder with checkouts: none of them was checked.")
    is_good, lines = True, ["| trainer | version | layouts | loaded | fields compared | differences |"]
    lines.append("|---|---|---|---|---|---|")
    for project in PROJECTS:
        checkout = project.source(downloads)
        if checkout is None or arguments.project not in ("", project.checkout):
            continue
        found = check(project, checkout)
        for one in found:
            for sentence in one.differing:
                print(f"{project.checkout} {project.version} {one.layout}: {sentence}")
        lines.append(_line(project, checkout, found))
        is_good &= all(one.is_loaded and not one.differing for one in found)
    print("\n".join(lines))
    sys.exit(int(not is_good))


def check(project: Project, checkout: Path) -> list[Checked]:
    """All layouts of a project, as its parser understood them."""
    with tempfile.TemporaryDirectory(prefix="parlay-exports-") as folder:
        scratch = Path(folder)
        source = at_version(checkout, project.version, scratch / "source") if project.version else checkout
        cases = export_cases(project.trainer, _section(project.trainer, source))
        cases = [case for case in cases if project.knows(case.spec.layout)]
        questions = [question(project.trainer, case, scratch / f"{n}") for n, case in enumerate(cases)]
        for asked, case in zip(questions, cases, strict=True):
            asked["words"] += [word for option in project.advised(case.spec.layout) for word in option]
        answers = ask(project.trainer, source.resolve(), questions, scratch)
    return [checked(project.trainer, case, answer) for case, answer in zip(cases, answers, strict=True)]


def at_version(checkout: Path, version: str, folder: Path) -> Path:
    """The files of a checkout as of a tag or commit, in `folder`."""
    folder.mkdir()
    files = subprocess.run(["git", "-C", checkout, "archive", version], check=True, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", folder], input=files.stdout, check=True)
    return folder


def _section(trainer: str, source: Path) -> Mapping[str, Any] | None:
    """The search file's section on a trainer that starts from a configuration: its own small example."""
    if trainer == "nanotron":
        template = yaml.safe_load((source / "examples" / "config_tiny_llama.yaml").read_text())
        return {"kind": trainer, "script": "run_train.py", "template": template}
    return None


def question(trainer: str, case: Case, folder: Path) -> Question:
    """The question on an export, whose files are written into `folder`."""
    folder.mkdir()
    for name, text in case.files.items():
        (folder / name).write_text(text)
    layout = case.spec.layout
    shared = {
        "world": case.spec.num_gpus,
        "tokens": TOKENS,
        "environment": environment_of(layout, case.spec.accelerator),
        "data_parallel": layout.data_parallel,
        "has_pipeline": layout.pipeline_parallel > 1,
    }
    return {**shared, **_QUESTIONS[trainer](folder)}


def _of_megatron_lm(folder: Path) -> Question:
    return {"words": _words(folder / "megatron_args.txt") + _OWN_OPTIONS}


def _of_megatron_deepspeed(folder: Path) -> Question:
    config = folder / "megatron_deepspeed_config.json"
    words = [*_words(folder / "megatron_deepspeed_args.txt"), "--deepspeed_config", str(config)]
    return {"words": words + _OWN_OPTIONS, "deepspeed": json.loads(config.read_text())}


def _of_gpt_neox(folder: Path) -> Question:
    others = folder / "others.yml"
    others.write_text(json.dumps(_OWN_KEYS))
    return {"words": [str(folder / "gpt_neox.yml"), str(others)]}


def _of_nanotron(folder: Path) -> Question:
    return {"words": [str(folder / "nanotron.yaml")]}


def _of_deepspeed(folder: Path) -> Question:
    return {"words": [], "deepspeed": json.loads((folder / "ds_config.json").read_text())}


def _of_torchtitan(folder: Path) -> Question:
    """The words that the recipe's command line has, with the folder in place of recipe/."""
    return {
        "words": ["--module", f"{folder.name}.torchtitan_config", "--config", "parlay"],
        "folder": str(folder.parent),
    }


def _of_accelerate(folder: Path) -> Question:
    return {"words": [str(folder / "accelerate.yaml")]}


_QUESTIONS: Mapping[str, Callable[[Path], Question]] = {
    "megatron-lm": _of_megatron_lm,
    "megatron-deepspeed": _of_megatron_deepspeed,
    "gpt-neox": _of_gpt_neox,
    "nanotron": _of_nanotron,
    "deepspeed": _of_deepspeed,
    TORCHTITAN: _of_torchtitan,
    ACCELERATE: _of_accelerate,
}
_OWN_OPTIONS = ["--train-iters", "100", "--lr", "1e-4"]
"""Options that a recipe leaves to the user, besides the data."""
_OWN_KEYS = {"train_iters": 100, "lr_decay_iters": 100, "optimizer": {"type": "Adam", "params": {"lr": 1e-4}}}


def _words(file: Path) -> list[str]:
    """The words that the recipe's command line takes from a file: `$(grep -v '^#' FILE)`."""
    return [word for line in file.read_text().splitlines() if not line.startswith("#") for word in line.split()]


def checked(trainer: str, case: Case, answer: Mapping[str, Any]) -> Checked:
    """The parser's answer on an export, compared with the layout."""
    failure = answer.get("error") or answer.get("failed_check")
    unknown = answer.get("unknown") or ()
    if failure or unknown:
        sentence = f"not loaded, {failure}" if failure else f"it does not know {' '.join(unknown)}"
        return Checked(case.spec.layout.key, 0, (sentence,), False)
    understood = MEANINGS[trainer](answer["values"], answer.get("configs", {}))
    if "vocabulary" in answer:
        understood["vocab_size"] = answer["vocabulary"]
    return Checked(case.spec.layout.key, len(understood), tuple(differences(case.spec, understood)), True)


def _line(project: Project, checkout: Path, found: Sequence[Checked]) -> str:
    loaded, compared = sum(one.is_loaded for one in found), sum(one.compared for one in found)
    differing = sum(len(one.differing) for one in found)
    return (
        f"| {project.checkout} | {_version(project, checkout)} | {len(found)} | {loaded} | {compared:,} | {differing} |"
    )


def _version(project: Project, checkout: Path) -> str:
    if project.is_installed:
        return version(project.checkout)
    commit = _git(checkout, "rev-parse", "--short=8", f"{project.version or 'HEAD'}^{{commit}}")
    return f"{project.version} ({commit})" if project.version else commit


def _git(checkout: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", checkout, *words], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--project", default="", help="one checkout", choices=("", *{p.checkout for p in PROJECTS}))
    return parser.parse_args()


if __name__ == "__main__":
    main()
