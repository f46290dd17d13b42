"""Engine megatron-core: megatron.core's GPTModel, gradient buffers, distributed optimizer and schedules.

Written for megatron-core 0.16.1. The steps are those of Megatron-LM megatron/training/training.py at core_v0.16.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.extensions.transformer_engine import HAVE_TE, TENorm
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import (
    model_parallel_cuda_manual_seed,
    param_is_not_tensor_parallel_duplicate,
    set_defaults_if_not_set_tensor_model_parallel_attributes,
)
from megatron.core.transformer.module import Float16Module, param_is_not_shared
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from torch import nn

from search_spaces.layouts.layout import Layout
from search_spaces.layouts.pipeline_split import chunk_layers
from search_spaces.model_shape import ModelShape
from search_spaces.routing import SKEWED, Routing
from trials.ranks.engine_packages import TRANSFORMER_ENGINE, require_imported, takes_transformer_engine
from trials.ranks.software import package_version
from trials.train.data import Batch
from trials.train.engines.engine import Engine, GroupSizes, StepResult, TrainingConfig
from trials.train.engines.megatron_core_config import ddp_config, optimizer_config, transformer_config
from trials.train.engines.named_weights import MEGATRON_CORE_WEIGHTS, ModelPart, NamedWeights
from trials.train.model.mlp import forced_choice
from trials.train.parallel.process_groups import COLLECTIVE_LIMIT, World
from trials.train.parallel.tensor_parallel import TensorParallelRanks

ORDERS = {"tp-dp-pp": "tp-cp-ep-dp-pp", "tp-pp-dp": "tp-cp-ep-pp-dp"}
"""Megatron's names of the rank orders."""

MicroBatch = tuple[torch.Tensor, torch.Tensor]
"""Token ids, and the ids that follow them."""


class MegatronChunk(GPTModel):
    """GPTModel of a model chunk, which counts the micro-batches and samples that pass through."""

    micro_batches = 0
    samples = 0

    def forward(self, input_ids: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        self.micro_batches += 1
        # Hidden states between stages are (S, B, H).
        self.samples += input_ids.shape[0] if self.pre_process else self.decoder.input_tensor.shape[1]
        return super().forward(input_ids, *arguments, **options)


class MegatronCoreEngine(Engine):
    chunks: tuple[MegatronChunk, ...]

    def __init__(self, training: TrainingConfig, world: World):
        self._training = training
        layout = training.layout
        _initialize_groups(layout, training.model.num_experts is not None, training.weights.seed)
        on_gpu = training.device.type == "cuda"
        if on_gpu:
            require_imported(package_version(TRANSFORMER_ENGINE), HAVE_TE)
        has_te_layers = on_gpu and takes_transformer_engine(layout, HAVE_TE)
        self._config = transformer_config(training, has_te_layers)
        chunks = range(layout.virtual_pipeline_stages)
        self.chunks = tuple(_build_chunk(self._config, has_te_layers, training, world, index) for index in chunks)
        self._expert_tokens = _watch_experts(self.chunks)
        _force_routing(self.chunks, training.routing)
        wrapped = [self._in_its_precision(chunk) for chunk in self.chunks]
        # Later chunks have one bucket each, since the backward pass of the others overlaps with their reduction.
        self._models = [
            DistributedDataParallel(self._config, ddp_config(training), model, disable_bucketing=index > 0)
            for index, model in enumerate(wrapped)
        ]
        self._optimizer = get_megatron_optimizer(
            optimizer_config(training), self._models, use_gloo_process_groups=False
        )
        self._config.grad_scale_func = self._optimizer.scale_loss
        self._config.finalize_model_grads_func = finalize_model_grads
        if layout.overlap_comm:
            no_sync, start = zip(*((model.no_sync, model.start_grad_sync) for model in self._models), strict=True)
            is_one = len(self._models) == 1
            self._config.no_sync_func = no_sync[0] if is_one else list(no_sync)
            self._config.grad_sync_func = start[0] if is_one else list(start)
        self._run = get_forward_backward_func()

    def train_step(self, batch: Batch) -> StepResult:
        size, length = self._training.layout.micro_batch_size, self._training.model.seq_length
        micro_batches = list(zip(batch.ids.split(size), batch.targets.split(size), strict=True))
        for model in self._models:
            model.zero_grad_buffer()
        self._optimizer.zero_grad()
        iterators = [iter(micro_batches) for _ in self._models]
        losses = self._run(
            forward_step_func=_forward_step,
            data_iterator=iterators if len(iterators) > 1 else iterators[0],
            model=self._models if len(self._models) > 1 else self._models[0],
            num_microbatches=len(micro_batches),
            seq_length=length,
            micro_batch_size=size,
            decoder_seq_length=length,
            forward_only=False,
        )
        is_updated, grad_norm, _ = self._optimizer.step()
        loss = torch.stack([loss["loss"] for loss in losses]).mean() if losses else None
        # Megatron gives no norm for a step that fp16 skipped for overflow.
        return StepResult(loss, torch.as_tensor(float(grad_norm) if is_updated else torch.inf))

    def parameter_counts(self) -> tuple[int, int]:
        counted = [p for chunk in self.chunks for p in chunk.parameters() if _is_counted(p)]
        return sum(parameter.numel() for parameter in counted), sum(map(self._updated_elements, counted))

    def expert_tokens(self) -> dict[int, torch.Tensor]:
        return {layer: tokens.clone() for layer, tokens in self._expert_tokens.items()}

    def group_sizes(self) -> GroupSizes:
        return GroupSizes(
            parallel_state.get_tensor_model_parallel_group().size(),
            parallel_state.get_pipeline_model_parallel_group().size(),
            parallel_state.get_data_parallel_group().size(),
            parallel_state.get_expert_model_parallel_group().size(),
            parallel_state.get_expert_tensor_parallel_group().size(),
        )

    def _in_its_precision(self, chunk: MegatronChunk) -> nn.Module:
        return chunk if self._training.layout.precision == "fp32" else Float16Module(self._config, chunk)

    def _updated_elements(self, parameter: nn.Parameter) -> int:
        """Number of the parameter's elements that this rank's optimizer updates."""
        optimizers = self._optimizer.chained_optimizers  # one for experts, which are reduced over other ranks
        if not isinstance(optimizers[0], DistributedOptimizer):
            return parameter.numel()
        holding = (optimizer for optimizer in optimizers if parameter in optimizer.model_param_gbuf_map)
        return sum(optimizer._get_model_param_range_map(parameter)["param"].size for optimizer in holding)


def _initialize_groups(layout: Layout, has_experts: bool, seed: int) -> None:
    """Form Megatron's own groups; collective over the world.

    Without experts their groups are those of other layers: in an order that does not end in pp, Megatron has no others.
    """
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor_parallel,
        pipeline_model_parallel_size=layout.pipeline_parallel,
        virtual_pipeline_model_parallel_size=_virtual_stages(layout),
        expert_model_parallel_size=layout.expert_parallel,
        expert_tensor_parallel_size=layout.expert_tensor_parallel if has_experts else None,
        order=ORDERS[layout.rank_order],
        distributed_timeout_minutes=int(COLLECTIVE_LIMIT.total_seconds() // 60),
        create_gloo_process_groups=False,
    )
    model_parallel_cuda_manual_seed(seed)


def _virtual_stages(layout: Layout) -> int | None:
    return layout.virtual_pipeline_stages if layout.virtual_pipeline_stages > 1 else None


def _build_chunk(config: Any, has_te_layers: bool, training: TrainingConfig, world: World, index: int) -> MegatronChunk:
    """The rank's chunk of this index, with its initial weights, on the device."""
    model, layout = training.model, training.layout
    in_pipeline = index * layout.pipeline_parallel + world.coordinates["pp"]
    counts = chunk_layers(model, layout)
    num_layers, first_layer = counts[in_pipeline], sum(counts[:in_pipeline])
    layers = _layers(config, has_te_layers, [model.has_experts(first_layer + layer) for layer in range(num_layers)])
    chunk = MegatronChunk(
        config,
        layers,
        vocab_size=model.vocab_size,
        max_sequence_length=model.seq_length,
        pre_process=in_pipeline == 0,
        post_process=in_pipeline == training.num_chunks - 1,
        share_embeddings_and_output_weights=model.tied_embeddings,
        position_embedding_type="rope" if model.position_embedding == "rotary" else "learned_absolute",
        rotary_base=model.rotary_base,
        vp_stage=None if _virtual_stages(layout) is None else index,
    )
    for parameter in chunk.parameters():
        set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
    part = part_of_this_rank(model, first_layer)
    NamedWeights(MEGATRON_CORE_WEIGHTS, model, training.weights, part).set(chunk)
    return chunk.to(training.device)


def part_of_this_rank(model: ModelShape, first_layer: int) -> ModelPart:
    """The part of the model that megatron-core's groups give this rank, of a chunk that begins with this layer."""
    experts = parallel_state.get_expert_model_parallel_group()
    return ModelPart(
        first_layer,
        experts.rank() * (model.num_experts or 0) // experts.size(),
        _ranks_of(parallel_state.get_tensor_model_parallel_group()),
        _ranks_of(parallel_state.get_expert_tensor_parallel_group()),
    )


def _ranks_of(group: dist.ProcessGroup) -> TensorParallelRanks:
    return TensorParallelRanks(group.rank(), group.size())


def _moe_layers(chunks: Iterable[MegatronChunk]) -> Iterator[MoELayer]:
    return (module for chunk in chunks for module in chunk.modules() if isinstance(module, MoELayer))


def _watch_experts(chunks: Iterable[MegatronChunk]) -> dict[int, torch.Tensor]:
    """Counts of the tokens that this rank's experts are given, by layer, which grow with every forward pass."""
    counts = {}
    for layer in _moe_layers(chunks):
        device = next(layer.parameters()).device
        total = torch.zeros(layer.config.num_moe_experts, dtype=torch.int64, device=device)
        layer.experts.register_forward_pre_hook(partial(_count_tokens, total, layer.local_expert_indices))
        counts[layer.layer_number - 1] = total
    return counts


def _count_tokens(total: torch.Tensor, experts: Sequence[int], _: nn.Module, inputs: tuple[Any, ...]) -> None:
    tokens_of_experts = inputs[1]
    total[experts[0] : experts[-1] + 1] += tokens_of_experts.to(total.device)


def _force_routing(chunks: Iterable[MegatronChunk], routing: Routing) -> None:
    """Skew the choice of experts; megatron-core's own option balances it."""
    if routing.kind == SKEWED:
        for layer in _moe_layers(chunks):
            layer.router.routing = partial(_forced_map, routing, layer.config.moe_router_topk)


def _forced_map(routing: Routing, top_k: int, logits: torch.Tensor, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and choice of experts for each token, (N, E) both, as of topk_routing_with_score_function
    (megatron/core/transformer/moe/moe_utils.py)."""
    logits = logits.flatten(0, -2)
    chosen = forced_choice(routing, len(logits), logits.shape[1], top_k, logits.device)
    weights = torch.zeros_like(logits).scatter(1, chosen, logits.gather(1, chosen).softmax(-1))
    return weights, torch.zeros_like(logits, dtype=torch.bool).scatter(1, chosen, True)


def _layers(config: Any, has_te_layers: bool, has_experts: Sequence[bool]) -> TransformerBlockSubmodules:
    """Specification of a chunk's layers, which have experts or an MLP, and of the final norm."""
    layers = {kind: _layer(config, has_te_layers, config.num_moe_experts if kind else None) for kind in {*has_experts}}
    # The final norm of local layers would be Transformer Engine's or Apex's where installed, and Apex's is no RMS norm.
    norm = TENorm if has_te_layers else next(iter(layers.values())).submodules.input_layernorm
    return TransformerBlockSubmodules([layers[kind] for kind in has_experts], norm)


def _layer(config: Any, has_te_layers: bool, num_experts: int | None) -> ModuleSpec:
    shared = {"num_experts": num_experts, "moe_grouped_gemm": has_te_layers, "qk_layernorm": config.qk_layernorm}
    if has_te_layers:
        return get_gpt_layer_with_transformer_engine_spec(**shared)
    return get_gpt_layer_local_spec(normalization=config.normalization, **shared)


def _forward_step(batches: Iterator[MicroBatch], model: nn.Module) -> tuple[torch.Tensor, Any]:
    """One micro-batch through a chunk; the mask is None, since the layers' own is causal."""
    ids, targets = next(batches)
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    return model(ids, positions, None, labels=targets), _mean_loss


def _mean_loss(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Mean over a micro-batch's tokens, for the backward pass and for the report."""
    loss = losses.float().mean()
    # The schedule divides `loss` in place.
    return loss, {"loss": loss.detach().clone()}


def _is_counted(parameter: nn.Parameter) -> bool:
    """True for a parameter that this rank counts in Megatron's gradient norm, and for all of its experts."""
    is_expert = not getattr(parameter, "allreduce", True)
    return is_expert or (param_is_not_shared(parameter) and param_is_not_tensor_parallel_duplicate(parameter))
