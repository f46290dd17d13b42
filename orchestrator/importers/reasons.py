"""Reasons for the handling of options that the tables of several trainers share."""

from __future__ import annotations

from search_spaces.layouts.layout import AXES

# without effect
LOGGING = "it only changes what is logged"
CHECKPOINTS = "it only changes checkpoints, and a trial writes none"
EVALUATION = "it only changes evaluation, which is not measured"
TOKENS = "it only changes which tokens are trained on"
LEARNING = "it changes what is learned, not the work of a step"
START = "it only changes the start of the program or its initial weights"
DURATION = "it only changes how long the training is; a trial trains a few steps"
FAILURES = "it only changes how failures are handled"
FORCED_ROUTING = "measure.routing decides which experts tokens are sent to"
BESIDE_A_REFUSED_KEY = "it has an effect only together with a key that is refused"
BESIDE_A_REFUSED_OPTION = "it has an effect only together with an option that is refused"
OTHER_PROGRAMS = "pretrain_gpt.py trains the same with it: it is for other programs, or for inference"

# left out with a note
KERNELS = "it changes which kernels run"
COMMUNICATION = "it changes how ranks communicate"
ARITHMETIC = "it changes the arithmetic or memory of a layer"
OPTIMIZER_STATES = "it changes the precision or memory of gradients or of the optimizer"
HOST = "it changes the work of the host beside the GPUs"
WATCHED = "it adds work to the steps that it watches"
DOCUMENTS = "tokens then attend to their own document: trainer.data.attention_mask block_causal, with a token file"

# refused
NO_MODEL_FIELD = "no field of the model section expresses it"
EXPERTS = "experts are not read from this trainer"
EXPERT_LAYERS = "experts are in each expert_layer_every-th layer after the first num_dense_layers"
WINDOW = "sliding_window is a number of positions up to one's own: --window-size N,0"
NO_AUXILIARY_LOSS = "trials balance experts by no loss and no bias"
NO_CAPACITY = "experts of trials take all tokens that are sent to them"
ROUTING = "a token's experts are weighted by the softmax of their logits"
CONTEXT_PARALLELISM = "context parallelism is no axis of a layout with this trainer, or in this form"
DISPATCHER = "expert_dispatcher is alltoall, allgather, deepep or hybridep"
CONTEXT_TRANSPORT = "context_transport is p2p, all_gather, a2a or a2a+p2p, of all layers"
CONTEXT_INNER = "a2a_p2p has groups of two sizes, the inner one first"
ULYSSES = "sequences split over ranks (Ulysses) are no axis of a layout"
UNEVEN_STAGES = "uneven pipeline stages are no axis of a layout with this trainer"
SHARDING = "this sharding is no value of zero_stage"
PARTIAL_RECOMPUTATION = "partial recomputation is no value of activation_checkpointing"
OFFLOADED_ACTIVATIONS = "activations in host memory are no value of offload"
OFFLOADED_MODULES = "offloaded_layers has all activations of a layer in host memory"
OFFLOADED_PARAMETERS = "parameters in host memory or on NVMe are no value of offload"
LOW_PRECISION = "8-bit and 4-bit arithmetic are no values of precision"
RECIPE = "matmul_precision has the recipes delayed, tensorwise, blockwise, mxfp8 and nvfp4"
LAYERS_IN_BF16 = "layers_in_16_bits is the same number at both ends of the model"
OTHER_MOMENTS = "trials with this trainer have moments and sums in fp32"
MOMENTS = "moment_dtype is the type of both moments: fp32, bf16 or fp8"
FIXED_BATCH = "the global batch of a search is fixed"
WHOLE_GPT = "a search trains every layer of a GPT on tokens in sequences of one length"

# values that trials would train otherwise
EACH_LAYER = "trials recompute one layer at a time"

# values that are refused
NORM = "a model's norm is layernorm or rmsnorm"
POSITION_EMBEDDING = "a model's position_embedding is learned or rotary"
MEGATRON_POSITIONS = f"{POSITION_EMBEDDING}, which are learned_absolute and rope in Megatron"
ATTENTION_KERNEL = "attention_kernel is math or flash"
CHECKPOINTING = "activation_checkpointing is none, selective or full"
_MODULES = AXES["recompute_modules"]
MODULES = f"recompute_modules is {_MODULES.choice_of(_MODULES.values_of('megatron-lm') or _MODULES.words)}"
CUDA_GRAPHS = f"cuda_graphs is {AXES['cuda_graphs'].choice_of(AXES['cuda_graphs'].words)}"
WHOLE_STAGES = "Megatron-DeepSpeed's partial recomputation is no layout: activation_checkpointing full is every layer"
ZERO_STAGE = "zero_stage is 0 to 3"
WHOLE_OPTIMIZER = "offload moves the whole optimizer"
NO_NVME = "offload moves the optimizer to host memory; NVMe is no value of it"
PRECISION = "precision is fp32, bf16 or fp16"
