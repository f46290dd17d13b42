"""Rows of adapters, by the options that a trainer has for them. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from search_spaces.adapters import Adapters
from search_spaces.errors import InputError
from trials.trainers.table import Keys, Row, Values


def adapter_rows(
    options: Mapping[str, str],
    words: Mapping[str, str],
    read_kind: Callable[[Keys], str | None],
    write_kind: Callable[[Adapters], Values] = lambda adapters: {},
    defaults: Values | None = None,
) -> tuple[Row, ...]:
    """Rows of the fields of `adapters`: `options` and `defaults` of the trainer for rank, alpha and target_modules.

    `words` are our names of modules by the trainer's; `read_kind` gives None for a training without adapters.
    """
    theirs = {ours: word for word, ours in words.items()}

    def written(adapters: Adapters) -> Values:
        modules = [theirs[module] for module in adapters.target_modules]
        alpha = adapters.alpha or adapters.rank
        values = {"rank": adapters.rank, "alpha": int(alpha) if alpha % 1 == 0 else alpha, "target_modules": modules}
        return write_kind(adapters) | {options[name]: value for name, value in values.items()}  # type: ignore[operator]

    def read(field: str, keys: Keys) -> Any:
        name, default = options[field], (defaults or {}).get(field)
        if read_kind(keys) is None:
            return None
        found = _modules(keys, name, words) if field == "target_modules" else keys.count(name)
        return found or keys.default(name, default)

    return (
        Row("kind", lambda spec: written(spec.model.adapters) if spec.model.adapters else {}, read_kind),
        *(Row(field, read=partial(read, field)) for field in options),
    )


def _modules(keys: Keys, name: str, words: Mapping[str, str]) -> list[str]:
    given = re.findall(r"[^\s,\[\]'\"]+", " ".join(map(str, keys.listed(name))))
    if {*given} - words.keys():
        rule = f"adapters are beside linear modules of every layer: {', '.join(words)}"
        raise InputError(keys.problem(name, rule, "name these in a copy of the file"))
    return [words[each] for each in given]
