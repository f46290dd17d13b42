"""Imports of the engine torchtitan on a CPU, for a process from which ranks are forked."""

from trials.train.engines.imports import import_torchtitan

import_torchtitan(on_cpu=True)
