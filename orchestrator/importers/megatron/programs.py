"""Programs of the two Megatrons: which one a training command starts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from orchestrator.importers.settings import CODE
from search_spaces.errors import Problem

_OTHER_PROGRAMS = {
    r"bert": "an encoder",
    r"t5": "an encoder and a decoder",
    r"ict|retro|biencoder|orqa": "a retriever",
    r"mamba|hybrid|ssm": "a model with state-space layers",
    r"vlm|vision|multimodal|mimo|dino|clip": "a model of images",
    r"_rl\b|grpo|rlhf|dpo": "by reinforcement learning",
    r"generat|inference|server|serve|text_generation|evaluat|mmlu": "nothing: it only runs a model",
    r"convert|checkpoint|merge|preprocess|quantiz|prune|export|interop|inspect|prepare|download": (
        "nothing: it converts data or a model"
    ),
    r"tasks/|detxoify|post_training|distill|race|glue|finetune\.py": "a task on a trained model",
    r"(^|/)tools/|analy[sz]e": "nothing: it is a tool",
    r"simple_mcore": "an example of megatron.core",
}
"""Purpose of other programs, by a pattern of their path."""
_GPT_PROGRAM = re.compile(r"(pretrain|finetune|train)_?(gpt|llama)\w{0,80}\.py$")
"""pretrain_gpt.py and programs named like it."""


def program_problems(words: Sequence[str]) -> Iterator[Problem]:
    """A problem if the command starts another program of Megatron's than a GPT's."""
    program = _program_of(words)
    if program is not None and (training := _other_training(program)):
        yield Problem(
            CODE,
            f"starts {program}, which trains {training}",
            rule="a search trains a decoder-only GPT, as pretrain_gpt.py does",
            fix="give a script that starts pretrain_gpt.py",
        )


def program_notes(words: Sequence[str]) -> Iterator[str]:
    """A note on a program that is not known."""
    program = _program_of(words)
    if program is not None and not _GPT_PROGRAM.search(program):
        yield f"{program} is taken for a program that trains a decoder-only GPT, as pretrain_gpt.py does."


def _program_of(words: Sequence[str]) -> str | None:
    """The Python program or module that the command starts; None where it cannot be seen."""
    for index, word in enumerate(words):
        if re.search(r"\.py$", word):
            return word
        if word == "-m" and index + 1 < len(words) and not words[index + 1].startswith("torch.distributed"):
            return words[index + 1]
    return None


def _other_training(program: str) -> str | None:
    """Purpose of a program that is known to train no GPT; None for a GPT's and for an unknown program."""
    path = program.replace(".", "/") if "/" not in program and not program.endswith(".py") else program
    if _GPT_PROGRAM.search(path) and not re.search(r"detxoify|tasks/", path):
        return None
    return next((what for pattern, what in _OTHER_PROGRAMS.items() if re.search(pattern, path)), None)
