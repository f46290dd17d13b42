"""A user's script around plain torch, DeepSpeed, accelerate or transformers' Trainer: a small GPT on tokens of chance.

`--fault NAME` makes it train something else than it was told. Nothing of Parlay's.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Collection
from contextlib import nullcontext
from typing import Any

if "looks for torch first" in sys.argv:
    from importlib.util import find_spec

    assert find_spec("torch").origin

import torch
import torch.utils.checkpoint
from torch import nn

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Gpt(nn.Module):
    """A small GPT as people write one."""

    _no_split_modules = ("TransformerEncoderLayer",)

    def __init__(self, vocabulary: int, width: int, heads: int, depth: int, length: int):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """The loss of tokens (sequences, length), each its own label where there are none."""
        x = self.embedding(input_ids) + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.embedding.weight.T
        labels = input_ids if labels is None else labels
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("batch", "accumulation", "steps", "vocabulary", "width", "heads", "depth", "length", "zero"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--by", choices=("torch", "compile", "deepspeed", "trainer", "accelerate"), default="torch")
    parser.add_argument("--fault", default="")
    args = parser.parse_args()
    if args.fault == "one layer less":
        args.depth -= 1
    if args.fault == "fixed batch":
        args.batch = 1
    if args.fault == "rank 1 trains less" and RANK == 1:
        args.batch //= 2
    torch.manual_seed(0 if args.fault in ("no reduction of one batch", "splits nothing") else RANK)
    model = Gpt(args.vocabulary, args.width, args.heads, args.depth, args.length)
    if args.fault == "frozen":
        model.blocks.requires_grad_(False)
    programs = {"deepspeed": by_deepspeed, "trainer": by_trainer, "accelerate": by_accelerate}
    programs.get(args.by, by_torch)(args, model)


def tokens(args: argparse.Namespace) -> torch.Tensor:
    return torch.randint(args.vocabulary, (args.batch, args.length))


def by_torch(args: argparse.Namespace, model: nn.Module) -> None:
    if WORLD > 1 and args.fault != "every rank alone":
        torch.distributed.init_process_group("gloo")
        wrapped = nn.parallel.DistributedDataParallel(model)
        model = model if "reduces" in args.fault else wrapped
    if args.by == "compile":
        model = torch.compile(model, backend="eager")
    trained = model.embedding.parameters() if args.fault == "optimizer of the embedding" else model.parameters()
    optimizer = (Averaging if "reduces" in args.fault else torch.optim.AdamW)(trained, lr=1e-3)
    if args.fault == "reduces all but a block":
        optimizer.left_out = set(map(id, model.blocks[0].parameters()))
    if args.fault == "tried before":
        model(torch.zeros(5, args.length, dtype=torch.long))["loss"].backward()
        optimizer.zero_grad()
    for step in range(1, args.steps + 1):
        started = time.perf_counter()
        for micro in range(args.accumulation):
            is_last = micro == args.accumulation - 1 and "no reduction" not in args.fault
            if is_last and args.fault == "steps by a closure":
                optimizer.step(lambda: loss_of(args, model).backward())
                break
            with nullcontext() if is_last or not hasattr(model, "no_sync") else model.no_sync():
                loss_of(args, model).backward()
        if args.fault != "steps by a closure":
            optimizer.step()
        optimizer.zero_grad()
        if args.fault == "milliseconds":
            time.sleep(0.3)  # steps at an even pace, whatever else the machine does
        report(step, (time.perf_counter() - started) * (1e3 if args.fault == "milliseconds" else 1))


class Averaging(torch.optim.AdamW):
    """AdamW whose step averages the gradients of all ranks first, as Horovod's does."""

    left_out: Collection[int] = ()

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in self.left_out:
                    torch.distributed.all_reduce(parameter.grad)
                    parameter.grad /= WORLD
        return super().step(closure)


def loss_of(args: argparse.Namespace, model: nn.Module) -> torch.Tensor:
    if args.fault == "recomputes all":
        return torch.utils.checkpoint.checkpoint(model, tokens(args), use_reentrant=False)["loss"]
    return model(tokens(args))["loss"]


def by_deepspeed(args: argparse.Namespace, model: nn.Module) -> None:
    import deepspeed

    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # compiles for a minute
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    config = {
        "train_micro_batch_size_per_gpu": args.batch,
        "gradient_accumulation_steps": args.accumulation,
        "zero_optimization": {"stage": args.zero},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": False},
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
    for step in range(1, args.steps + 1):
        started = time.perf_counter()
        for _ in range(args.accumulation):
            engine.backward(engine(tokens(args))["loss"])
            engine.step()
        report(step, time.perf_counter() - started)


def by_trainer(args: argparse.Namespace, model: nn.Module) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Lines(TrainerCallback):
        def on_step_begin(self, *_: object, **__: object) -> None:
            self.started = time.perf_counter()

        def on_step_end(self, _: object, state: object, *__: object, **___: object) -> None:
            report(state.global_step, time.perf_counter() - self.started)

    given = TrainingArguments(
        "out",
        max_steps=args.steps,
        per_device_train_batch_size=args.batch,
        gradient_accumulation_steps=args.accumulation,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        dataloader_pin_memory=False,
    )
    data = [{"input_ids": row, "labels": row} for row in torch.randint(args.vocabulary, (256, args.length))]
    Trainer(model, given, train_dataset=data, callbacks=[Lines()]).train()


def by_accelerate(args: argparse.Namespace, model: nn.Module) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=args.accumulation)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    describe(accelerator, model)
    for step in range(1, args.steps + 1):
        started = time.perf_counter()
        for _ in range(args.accumulation):
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(args, model))
                optimizer.step()
                optimizer.zero_grad()
        report(step, time.perf_counter() - started)
    accelerator.end_training()


def describe(accelerator: Any, model: nn.Module) -> None:
    """Print what accelerate made of its configuration."""
    plugin = accelerator.state.fsdp_plugin if accelerator.is_fsdp2 else None
    first = next(model.parameters())
    accelerator.print(
        f"ranks {accelerator.num_processes}, {accelerator.distributed_type.value}, {accelerator.mixed_precision},"
        f" reshards {None if plugin is None else plugin.reshard_after_forward},"
        f" mesh {getattr(getattr(first, 'device_mesh', None), 'shape', None)},"
        f" recomputes {any('_checkpoint_wrapped_module' in name for name, _ in model.named_modules())},"
        f" threads {os.environ.get('OMP_NUM_THREADS')}"
    )


def report(step: int, seconds: float) -> None:
    if RANK == 0:
        print(f"step {step} took {seconds:.6f} s", flush=True)


if __name__ == "__main__":
    main()
