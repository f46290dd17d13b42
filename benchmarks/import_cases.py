"""Scripts and configurations of public training frameworks, as cases of an import."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

import yaml

_LAUNCHERS = ("torchrun", "python", "deepspeed", "accelerate", "srun", "ft_launcher", "mpirun")
_OTHER_FOLDERS = frozenset({".git", ".github", ".gitlab", ".devcontainer", "docker", "docs", "node_modules"})
_LARGEST_CONFIG = 2**20


class Form(Enum):
    """Kind of a file, and with that what it is compared with."""

    SCRIPT = auto()
    """Launch script, compared with the commands that bash starts."""
    CONFIG = auto()
    """YAML or JSON, compared with its keys."""


@dataclass(frozen=True)
class Case:
    """One file of a checkout. `text` is imported in place of the file where a framework makes a command of it."""

    path: Path
    form: Form
    text: str | None = None


def cases(checkout: Path) -> Iterator[Case]:
    """All cases of a checkout, in the order of their paths."""
    for path in sorted(checkout.rglob("*")):
        relative = path.relative_to(checkout)
        if _OTHER_FOLDERS & set(relative.parts) or path.is_symlink() or not path.is_file():
            continue
        if path.suffix in (".sh", ".sbatch", ".slurm") and _starts_programs(path):
            yield Case(relative, Form.SCRIPT)
        elif (found := _CONFIGS.get(checkout.name)) and is_config(relative, found):
            yield from found.cases(path, relative)


def _starts_programs(path: Path) -> bool:
    text = path.read_text(errors="replace")
    return any(launcher in text for launcher in _LAUNCHERS)


@dataclass(frozen=True)
class Configs:
    """Folder in which a framework keeps its configurations."""

    folder: str
    suffixes: tuple[str, ...]
    name: str = ""
    """Part that the file's name has."""
    cases: Callable[[Path, Path], Iterator[Case]] = lambda path, relative: iter([Case(relative, Form.CONFIG)])


def is_config(relative: Path, where: Configs) -> bool:
    """True for a file at the place where the framework keeps its configurations."""
    return relative.suffix in where.suffixes and str(relative).startswith(where.folder) and where.name in relative.name


def _functional_test(path: Path, relative: Path) -> Iterator[Case]:
    """The training command that Megatron-LM's test runner makes of a model_config.yaml."""
    if path.name != "model_config.yaml":
        return
    config = yaml.safe_load(path.read_text()) or {}
    options = config.get("MODEL_ARGS")
    if isinstance(options, dict) and all(str(name).startswith("--") for name in options):
        model = relative.relative_to(_FUNCTIONAL_TESTS).parts[0]
        program = _MODES.get(config.get("MODE")) or _PROGRAMS.get(model, "pretrain_gpt.py")
        yield Case(relative, Form.SCRIPT, launch_script(program, options))


_FUNCTIONAL_TESTS = "tests/functional_tests/test_cases"
_MODES = {"inference": "examples/inference/advanced/gpt_dynamic_inference.py", "rl": "train_rl.py"}
_PROGRAMS = {
    "bert": "examples/bert/pretrain_bert.py",
    "hybrid": "pretrain_hybrid.py",
    "mimo": "examples/mimo/train.py",
    "multimodal-llava": "pretrain_vlm.py",
    "nemotron": "pretrain_hybrid.py",
    "t5": "examples/t5/pretrain_t5.py",
}
"""By tests/test_utils/recipes, where a test has its program."""


def launch_script(program: str, options: dict[str, Any]) -> str:
    """A launch script with these options; true stands for an option without a value."""
    words = (name if value is True else f"{name} {_quoted(value)}" for name, value in options.items())
    lines = [f"torchrun --nproc_per_node 8 --nnodes 1 {program}", *words]
    return "#!/bin/bash\n" + " \\\n    ".join(lines) + "\n"


def _quoted(value: Any) -> str:
    text = str(value).strip()
    if text.startswith("[") and text.endswith("]"):
        return text[1:-1]
    return f'"{text}"' if any(mark in text for mark in " |()*") else text


_CONFIGS = {
    "Megatron-LM": Configs(_FUNCTIONAL_TESTS, (".yaml",), "model_config", _functional_test),
    "gpt-neox": Configs("configs", (".yml",)),
    "nanotron": Configs("examples", (".yaml",), "config"),
    "accelerate": Configs("examples", (".yaml", ".yml", ".json"), "config"),
    "Megatron-DeepSpeed": Configs("examples_deepspeed", (".json",), "ds_"),
    "DeepSpeedExamples": Configs("", (".json",), "config"),
}
PROJECTS = (
    "Megatron-LM",
    "Megatron-Bridge",
    "gpt-neox",
    "nanotron",
    "Megatron-DeepSpeed",
    "DeepSpeedExamples",
    "accelerate",
)
"""Names of the checkouts' folders."""
