"""Programs of the two Megatrons: which one a training command starts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from orchestrator.importers.settings import CODE
from search_spaces.errors import Problem

_OTHERS = re.compile(
    r"bert|t5|ict|retro|biencoder|orqa|mamba|hybrid|ssm|vlm|vision|multimodal|mimo|dino|clip|_rl\b|grpo|rlhf|dpo|sft"
    r"|generat|inference|serv|evaluat|mmlu|convert|checkpoint|merge|preprocess|quantiz|prune|export|interop|inspect"
    r"|prepare|download|tasks/|detxoify|post_training|distill|race|glue|finetune|(^|/)tools/|analy[sz]e|simple_mcore"
)
"""Programs that pretrain no GPT, by their path."""
_GPT_PROGRAM = re.compile(r"(pretrain|train)_?(gpt|llama)\w{0,80}\.py$")
"""pretrain_gpt.py and programs named like it."""


def program_problems(words: Sequence[str]) -> Iterator[Problem]:
    """A problem if the command starts another program of Megatron's than a GPT's."""
    program = _program_of(words)
    if program is not None and not _GPT_PROGRAM.search(program) and _OTHERS.search(program.replace(".", "/")):
        yield Problem(
            CODE,
            f"starts {program}, which pretrains no GPT",
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
