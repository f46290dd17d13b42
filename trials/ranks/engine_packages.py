"""Packages of the engines that others wrote: which versions were verified, and what is wrong with those installed.

Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from search_spaces.engines import ACCELERATE, ACCELERATE_LAUNCH, MEGATRON_CORE, TORCHTITAN
from search_spaces.hardware.cluster import BLACKWELL, HOPPER, chip_of
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.ranks.failures import TrialFailure
from trials.ranks.software import package_version
from trials.trial import FailureReason, TrialSpec

Installed = Mapping[str, str | None]
"""Version of each package of `PACKAGES`; None where it is not installed."""

TRANSFORMER_ENGINE = "transformer-engine"
FLASH_ATTENTION = "flash-attn"
FLASH_ATTENTION_3 = "flash-attn-3"
FLASH_ATTENTION_4 = "flash-attn-4"
APEX = "apex"
TORCH = "torch"
TORCHAO = "torchao"
TRANSFORMERS = "transformers"
PEFT, BITSANDBYTES = "peft", "bitsandbytes"
PACKAGES = (
    *(MEGATRON_CORE, TRANSFORMER_ENGINE, FLASH_ATTENTION, APEX),
    *(TORCHTITAN, TORCH, TORCHAO, FLASH_ATTENTION_3, FLASH_ATTENTION_4),
    *(ACCELERATE, TRANSFORMERS, PEFT, BITSANDBYTES),
)
PACKAGED_ENGINES = (MEGATRON_CORE, TORCHTITAN, ACCELERATE, ACCELERATE_LAUNCH)
"""Engines that are packages of others, of which some versions were verified."""

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
    TORCHTITAN: VersionRange("0.3.0", "0.4"),
    ACCELERATE: VersionRange("1.15.0", "1.16"),
    TRANSFORMERS: VersionRange("5.23.0", "5.24"),
    PEFT: VersionRange("0.21", "0.22"),
    BITSANDBYTES: VersionRange("0.50", "0.51"),
    # The range that megatron-core 0.16.1 names in its extra `dev`.
    TRANSFORMER_ENGINE: VersionRange("2.9", "2.12"),
    # The release with which torchtitan validates its own 0.3 (.github/workflows/validate_rc.yaml).
    TORCHAO: VersionRange("0.18", "0.19"),
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


def package_faults(layout: Layout, model: ModelShape, accelerator: str, installed: Installed) -> Iterator[PackageFault]:
    """Faults of these packages for the layout's engine on this accelerator: missing, or of an unverified version."""
    if layout.engine not in PACKAGED_ENGINES:
        return
    for package in (*packages_of(layout.engine), *_adapter_packages(layout.engine, model)):
        if fault := engine_fault(layout.engine, package, installed[package]):
            yield fault
    if accelerator == "cpu":
        return
    if layout.engine == TORCHTITAN:
        yield from _torchtitan_faults(layout, accelerator, installed)
    elif layout.engine == MEGATRON_CORE:
        yield from _megatron_faults(layout, model, installed)


def packages_of(engine: str) -> tuple[str, ...]:
    """Packages that an engine of `PACKAGED_ENGINES` is, of verified versions."""
    return {ACCELERATE: (ACCELERATE, TRANSFORMERS), ACCELERATE_LAUNCH: (ACCELERATE,)}.get(engine, (engine,))


def more_packages_of(layout: Layout, model: ModelShape) -> tuple[str, ...]:
    """Other packages that the layout's steps run on."""
    has_torchao = layout.engine == TORCHTITAN and layout.matmul_precision != "same"
    return (*([TORCHAO] if has_torchao else []), *_adapter_packages(layout.engine, model))


def _adapter_packages(engine: str, model: ModelShape) -> tuple[str, ...]:
    if engine != ACCELERATE or model.adapters is None:
        return ()
    return (PEFT, BITSANDBYTES) if model.adapters.kind == "qlora" else (PEFT,)


def _torchtitan_faults(layout: Layout, accelerator: str, installed: Installed) -> Iterator[PackageFault]:
    if layout.pipeline_parallel > 1 and (fault := _pipeline_fault(installed[TORCH])):
        yield fault
    if layout.matmul_precision != "same" and (fault := _fp8_fault(installed[TORCHAO])):
        yield fault
    if layout.attention_kernel == "flash" and (fault := _varlen_fault(accelerator, installed)):
        yield fault


def _megatron_faults(layout: Layout, model: ModelShape, installed: Installed) -> Iterator[PackageFault]:
    """Faults of what its layers and kernels on a GPU need."""
    if layout.attention_kernel == "flash" and (fault := _flash_fault(installed)):
        yield fault
    if layout.sequence_parallel and (fault := _norm_fault(model, installed)):
        yield fault


def takes_transformer_engine(layout: Layout, is_installed: bool) -> bool:
    """True where the layers on a GPU are Transformer Engine's, else they are megatron-core's local ones.

    Transformer Engine multiplies fp32 matrices as TF32 (transformer_engine/common/gemm/cublaslt_gemm.cu, 2.9 to 2.11).
    """
    return is_installed and layout.precision != "fp32"


def require_packages(spec: TrialSpec) -> None:
    """TrialFailure where this rank's interpreter lacks what the layout's engine needs."""
    faults = package_faults(spec.layout, spec.model, spec.accelerator, installed_packages())
    if fault := next(faults, None):
        raise TrialFailure(FailureReason.SCRIPT_ERROR, str(fault))


def require_imported(transformer_engine: str | None, is_imported: bool) -> None:
    """TrialFailure where this version of Transformer Engine is installed and megatron-core could not import it: the
    layers would be other ones than those that were promised."""
    if transformer_engine is not None and not is_imported:
        raise TrialFailure(
            FailureReason.SCRIPT_ERROR,
            f"{_format(TRANSFORMER_ENGINE, transformer_engine)}, but {MEGATRON_CORE} could not import it: python -c"
            " 'import transformer_engine.pytorch' says why; install it anew, or uninstall it",
        )


def engine_fault(engine: str, package: str, found: str | None) -> PackageFault | None:
    """Fault of the installed version of a package that this engine is."""
    return _unless_in(VERIFIED[package], package, found, f"engine {engine} was verified with {package}")


def _unless_in(
    verified: VersionRange, package: str, found: str | None, rule: str, fix: str | None = None, or_else: str = ""
) -> PackageFault | None:
    """Fault of an installed version that is not among these; `rule` is followed by them."""
    if found is not None and found in verified:
        return None
    fix = fix or f"pip install '{package}{verified}'"
    return PackageFault(package, _format(package, found), f"{rule}{verified}", fix + or_else)


def _pipeline_fault(torch: str | None) -> PackageFault | None:
    """Fault of a torch whose pipelines do not take micro-batches as torchtitan 0.3 hands them over (torchtitan/
    trainer.py, pp_forward_backward_step)."""
    if torch is None or torch in VersionRange("2.14", "3"):
        return None
    return PackageFault(
        TORCH,
        f"pipeline_parallel is more than 1, and {_format(TORCH, torch)}",
        f"pipelines of engine {TORCHTITAN} need torch>=2.14",
        "pip install 'torch>=2.14', or set pipeline_parallel to 1",
    )


def _fp8_fault(found: str | None) -> PackageFault | None:
    """Fault of the package whose linear layers torchtitan takes for 8 bits (components/quantization)."""
    rule = f"8-bit products of engine {TORCHTITAN} are those of {TORCHAO}"
    return _unless_in(VERIFIED[TORCHAO], TORCHAO, found, rule, or_else=", or set matmul_precision to same")


def _varlen_fault(accelerator: str, installed: Installed) -> PackageFault | None:
    """Fault of torchtitan's variable-length attention: FlashAttention 3 on Hopper, 4 on Blackwell, else torch's own
    (torchtitan/tools/utils.py, get_cuda_flash_attention_impl; torch/nn/attention/_fa3.py and _fa4.py)."""
    package = _VARLEN_PACKAGES.get(chip_of(accelerator))
    if package is None or installed[package] is not None:
        return None
    return PackageFault(
        package,
        _format(package, None),
        f"attention_kernel flash of engine {TORCHTITAN} is that of {package} on {accelerator}",
        f"install {package} (Dao-AILab/flash-attention), or set attention_kernel to flex",
    )


_VARLEN_PACKAGES = {**dict.fromkeys(HOPPER, FLASH_ATTENTION_3), **dict.fromkeys(BLACKWELL, FLASH_ATTENTION_4)}


def _flash_fault(installed: Installed) -> PackageFault | None:
    """Fault of flash attention: with AttnBackend.flash megatron-core switches cuDNN's attention off in Transformer
    Engine (megatron/core/models/common/language_module/language_module.py), so that it needs the package flash-attn."""
    found, declared = installed[TRANSFORMER_ENGINE], VERIFIED[TRANSFORMER_ENGINE]
    words, or_else = f"attention_kernel flash of engine {MEGATRON_CORE}", ", or set attention_kernel to math"
    rule = f"{words} is that of Transformer Engine"
    fault = _unless_in(declared, TRANSFORMER_ENGINE, found, rule, _INSTALL_TRANSFORMER_ENGINE, or_else)
    if fault is not None or found is None:
        return fault
    supported = flash_attention_range(found)
    rule = f"{words} with Transformer Engine {found} is that of {FLASH_ATTENTION}"
    fix = f"pip install --no-build-isolation '{FLASH_ATTENTION}{supported}'"
    return _unless_in(supported, FLASH_ATTENTION, installed[FLASH_ATTENTION], rule, fix, or_else)


def flash_attention_range(transformer_engine: str) -> VersionRange:
    """Releases of flash-attn that this release of Transformer Engine takes on every GPU.

    transformer_engine/pytorch/attention/dot_product_attention/utils.py, FlashAttentionUtils, of 2.9 to 2.11. It takes
    2.1.1 to 2.7.2 too, on GPUs before Blackwell.
    """
    is_oldest = transformer_engine in VersionRange("2.9", "2.10")
    return VersionRange("2.7.3", "2.8.2" if is_oldest else "2.8.4")


def _norm_fault(model: ModelShape, installed: Installed) -> PackageFault | None:
    """Fault of the local layers' norm in 16 bits: torch's, which refuses sequence parallelism (megatron-core 0.16.1,
    megatron/core/transformer/torch_norm.py), unless Apex is installed, which has no RMS norm there
    (megatron/core/models/backends.py)."""
    found = installed[TRANSFORMER_ENGINE]
    has_apex_norm = installed[APEX] is not None and model.norm == "layernorm"
    if found is not None or has_apex_norm:
        return None
    return PackageFault(
        TRANSFORMER_ENGINE,
        f"sequence_parallel is true with norm {model.norm}, and {_format(TRANSFORMER_ENGINE, found)}",
        f"engine {MEGATRON_CORE} needs Transformer Engine's layers for sequence_parallel, or Apex's norm for layernorm",
        f"{_INSTALL_TRANSFORMER_ENGINE}, or set sequence_parallel to false",
    )


_INSTALL_TRANSFORMER_ENGINE = f"pip install '{TRANSFORMER_ENGINE}[pytorch]{VERIFIED[TRANSFORMER_ENGINE]}'"


def _format(package: str, version: str | None) -> str:
    return f"{package} is not installed" if version is None else f"{package} {version} is installed"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
