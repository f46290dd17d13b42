"""Packages of engine megatron-core: which versions were verified, and what is wrong with those installed.

Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from search_spaces.engines import MEGATRON_CORE
from search_spaces.layouts.layout import Layout
from trials.ranks.failures import TrialFailure
from trials.ranks.software import package_version
from trials.trial import FailureReason

Installed = Mapping[str, str | None]
"""Version of each package of `PACKAGES`; None where it is not installed."""

TRANSFORMER_ENGINE = "transformer-engine"
PACKAGES = (MEGATRON_CORE, TRANSFORMER_ENGINE)

_VERSION = re.compile(r"(\d+(?:\.\d+)*)(?:\.post\d+)?(\.?(?:a|b|rc|dev)\d*)?")


@dataclass(frozen=True)
class VersionRange:
    """Releases from `at_least` on, before `below`."""

    at_least: str
    below: str

    def __contains__(self, version: str) -> bool:
        """False for a pre-release, and for what is no version."""
        found = _VERSION.fullmatch(version.partition("+")[0])
        if found is None or found[2]:
            return False
        return _numbers(self.at_least) <= _numbers(found[1]) < _numbers(self.below)

    def __str__(self) -> str:
        return f">={self.at_least},<{self.below}"


VERIFIED = {
    MEGATRON_CORE: VersionRange("0.16.1", "0.17"),
    # The range that megatron-core 0.16.1 names in its extra `dev`.
    TRANSFORMER_ENGINE: VersionRange("2.9", "2.12"),
}


@dataclass(frozen=True)
class PackageFault:
    """Reason why a layout cannot be trained with the installed packages."""

    package: str
    message: str
    rule: str
    fix: str

    def __str__(self) -> str:
        return f"{self.message}: {self.rule}; {self.fix}"


def installed_packages() -> dict[str, str | None]:
    """Versions installed for the running interpreter."""
    return {name: package_version(name) for name in PACKAGES}


def package_faults(layout: Layout, installed: Installed) -> Iterator[PackageFault]:
    """Faults of these packages for the layout's engine: missing, or of an unverified version."""
    if layout.engine != MEGATRON_CORE:
        return
    found, verified = installed[MEGATRON_CORE], VERIFIED[MEGATRON_CORE]
    if found is None or found not in verified:
        yield PackageFault(
            MEGATRON_CORE,
            f"{MEGATRON_CORE} is not installed" if found is None else f"{MEGATRON_CORE} {found} is installed",
            f"engine {MEGATRON_CORE} was verified with {MEGATRON_CORE}{verified}",
            f"pip install '{MEGATRON_CORE}{verified}'",
        )
    found, declared = installed[TRANSFORMER_ENGINE], VERIFIED[TRANSFORMER_ENGINE]
    if layout.attention_kernel == "flash" and (found is None or found not in declared):
        yield PackageFault(
            TRANSFORMER_ENGINE,
            f"{TRANSFORMER_ENGINE} is not installed" if found is None else f"{TRANSFORMER_ENGINE} {found} is installed",
            f"attention_kernel flash of engine {MEGATRON_CORE} is that of Transformer Engine{declared}",
            f"pip install '{TRANSFORMER_ENGINE}[pytorch]{VERIFIED[TRANSFORMER_ENGINE]}', or set attention_kernel to"
            " math",
        )


def require_packages(layout: Layout) -> None:
    """TrialFailure where this rank's interpreter lacks what the layout's engine needs."""
    if fault := next(package_faults(layout, installed_packages()), None):
        raise TrialFailure(FailureReason.SCRIPT_ERROR, str(fault))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
