"""torchtitan's own configurations as it saves them, for comparison with the importer's.

    python -m tests.orchestrator.config.importers.torchtitan.package ANSWER.json

A process of its own: it patches torch for a CPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.oracles.configs import prepare_torchtitan, products_of


def main() -> None:
    prepare_torchtitan()
    from torchtitan.experiments import _supported_experiments
    from torchtitan.models import _supported_models
    from torchtitan.models.llama3 import config_registry

    functions = [name for name in dir(config_registry) if name.startswith(("llama3_", "sft_"))]
    modules = sorted(_supported_models | _supported_experiments)
    configs = {name: {"saved": config.to_dict(), **_of(config)} for name, config in _made(config_registry, functions)}
    Path(sys.argv[1]).write_text(json.dumps({"functions": functions, "modules": modules, "configs": configs}))


def _made(registry: Any, functions: list[str]) -> Iterator[tuple[str, Any]]:
    """Configurations that need no package for 8-bit arithmetic."""
    for name in functions:
        with suppress(ImportError):
            yield name, getattr(registry, name)()


def _of(config: Any) -> dict[str, Any]:
    """Kinds of parts that are not saved."""
    projection = config.model_spec.model.layers[0].attention.wo
    return {"products": products_of(config.model_spec.model), "projection": type(projection).__qualname__}


if __name__ == "__main__":
    main()
