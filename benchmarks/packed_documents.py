"""Time of attention by document over that of attention to whole sequences, forward and backward, on this device.

    python -m benchmarks.packed_documents

Prints the kernel, the mean length of a token's document, and the ratios of time and of attention's FLOPs, all in one
run: the shortest of several repeats, whole sequences and documents in turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from trials.train.model.attention import attention, attention_by_document
from trials.train.model.documents import Documents
from trials.train.parallel.device import select_attention_kernel

_REPEATS = 9


def main() -> None:
    arguments = _arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, {arguments.heads} heads of 128, {arguments.tokens} tokens")
    types = (torch.bfloat16, torch.float32) if device.type == "cuda" else (torch.float32,)
    for dtype in types:
        shape = (1, arguments.heads, arguments.tokens, 128)
        heads = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
        for kernel in ("flash", "math"):
            for length in arguments.lengths:
                print(f"{str(dtype).removeprefix('torch.'):9} {kernel:5} {_row(heads, kernel, length)}", flush=True)


def _row(heads: list[torch.Tensor], kernel: str, length: int) -> str:
    query, key, value = heads
    tokens = query.shape[2]
    select_attention_kernel(kernel)
    documents = Documents.of([_lengths(tokens, length)], query.device)
    has_flash = not query.is_cuda or torch.cuda.get_device_capability() >= (8, 0)
    runs = (
        lambda: attention(query, key, value, True),
        lambda: attention_by_document(query, key, value, has_flash, None, None, documents),
    )
    whole_s, documents_s = _fastest(runs, heads)
    mean = sum(n**2 for n in documents.lengths[0]) / tokens
    time = f"time {documents_s / whole_s:6.3f} ({documents_s * 1e3:8.3f} ms)"
    return f"document {mean:7.1f}: {time}, FLOPs {mean / tokens:6.3f}"


def _lengths(tokens: int, mean: int) -> list[int]:
    """Lengths from half to one and a half times the mean, and the rest."""
    lengths: list[int] = []
    while sum(lengths) < tokens:
        lengths.append(mean // 2 + len(lengths) * 7919 % (mean + 1))
    return [*lengths[:-1], tokens - sum(lengths[:-1])]


def _fastest(runs: tuple[Callable[[], torch.Tensor], ...], heads: list[torch.Tensor]) -> list[float]:
    times_s = [[_time_s(run, heads) for run in runs] for _ in range(_REPEATS)]
    return [min(of_one) for of_one in zip(*times_s[1:], strict=True)]


def _time_s(run: Callable[[], torch.Tensor], heads: list[torch.Tensor]) -> float:
    _synchronize(heads[0])
    started = time.perf_counter()
    torch.autograd.grad(run().sum(), heads)
    _synchronize(heads[0])
    return time.perf_counter() - started


def _synchronize(tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 256, 64], help="mean length of the documents")
    return parser.parse_args()


if __name__ == "__main__":
    main()
