"""A script as users of accelerate write it: it prints what accelerate made of its configuration, and every step."""

from __future__ import annotations

import argparse
import os
import time

import torch
from accelerate import Accelerator
from gpt import Gpt
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("batch-size", "accumulation", "steps", "vocabulary", "width", "heads", "depth", "length", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulation)
    model = Gpt(args.vocabulary, args.width, args.heads, args.depth, args.length)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    describe(accelerator, model)
    for step in range(1, args.steps + 1):
        started, total = time.perf_counter(), 0.0
        for _ in range(args.accumulation):
            batch = torch.randint(args.vocabulary, (args.batch_size, args.length + 1), device=accelerator.device)
            with accelerator.accumulate(model):
                loss = model(batch[:, :-1], batch[:, 1:])["loss"]
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            total += float(loss.detach())
        accelerator.print(
            f"step {step} took {time.perf_counter() - started:.6f} s loss {total / args.accumulation:.4f}"
        )
    accelerator.end_training()


def describe(accelerator: Accelerator, model: nn.Module) -> None:
    plugin = accelerator.state.fsdp_plugin if accelerator.is_fsdp2 else None
    first = next(model.parameters())
    accelerator.print(
        f"ranks {accelerator.num_processes}, {accelerator.distributed_type.value}, {accelerator.mixed_precision},"
        f" reshards {None if plugin is None else plugin.reshard_after_forward},"
        f" mesh {getattr(getattr(first, 'device_mesh', None), 'shape', None)},"
        f" recomputes {any('_checkpoint_wrapped_module' in name for name, _ in model.named_modules())},"
        f" threads {os.environ.get('OMP_NUM_THREADS')}"
    )


if __name__ == "__main__":
    main()
