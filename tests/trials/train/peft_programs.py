"""Programs of ranks that train adapters: by an engine, and by transformers, peft and bitsandbytes in one process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.pytorch_utils import Conv1D

from search_spaces.adapters import LINEAR_MODULES, adapted_modules
from search_spaces.decoding import decode
from search_spaces.model_shape import ModelShape
from tests.trials.train.rank_programs import CPU, train_layout
from trials.diagnostics.selftest import SEED, Case
from trials.train.engines import accelerate_engine
from trials.train.model.initial_weights import InitialMatrices, WeightSource
from trials.train.selftest import training

SOURCE = WeightSource(SEED, CPU.torch_device)


def train_adapters(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Some steps of a layout by its engine: what each rank trained, and all adapters then. `updates_all`: all weights
    train, whatever is asked for. `without_fsdp`: accelerate has a CPU of its own."""
    engines, build = [], training.build_engine
    training.build_engine = lambda *given: engines.append(build(*given)) or engines[-1]
    if arguments.get("updates_all"):
        _update_all()
    if arguments.get("without_fsdp"):
        original = accelerate_engine.Accelerator
        accelerate_engine.Accelerator = lambda **options: original(**options | {"cpu": True})
    trained = train_layout(arguments, folder)
    found: dict[str, Any] = {}
    for chunk in engines[0].chunks:
        found |= _adapters(dict(chunk.named_parameters()), chunk.plan.first_layer if hasattr(chunk, "plan") else 0)
    return {"trained": trained, "adapters": found}


def _update_all() -> None:
    requires_grad, parameter_requires = nn.Module.requires_grad_, torch.Tensor.requires_grad_
    nn.Module.requires_grad_ = lambda module, wanted=True: requires_grad(module, True)
    torch.Tensor.requires_grad_ = lambda tensor, wanted=True: parameter_requires(tensor, True)


def _adapters(parameters: Mapping[str, torch.Tensor], first_layer: int = 0) -> dict[str, Any]:
    """Adapters, whole, by their layer, module and matrix."""
    keys = {name: key for name in parameters if (key := _key(name, first_layer))}
    return {key: _whole(parameters[name]).tolist() for name, key in keys.items()}


def _key(name: str, first_layer: int = 0) -> str | None:
    found = re.search(r"\.(\d+)\.(.*)\.(?:lora_)?([abAB])(\.default)?(\.weight)?$", name)
    if found is None:
        return None
    path = f".{found[2].replace('attn_c_proj', 'attn.c_proj').replace('mlp_c_proj', 'mlp.c_proj')}"
    module = next(name for name in LINEAR_MODULES if path.endswith(f".{name}"))
    return f"{int(found[1]) + first_layer}.{module}.{found[3].lower()}"


def _whole(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def train_by_peft(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The same steps by peft in this process: losses, gradient norms, and all adapters then."""
    case = decode(Case, arguments["case"])
    model, settings = case.model, training.optimizer_config("fp32")
    plain = _llama(model) if model.position_embedding == "rotary" else _gpt2(model)
    assert model.adapters is not None
    if model.adapters.kind == "qlora":
        _quantize(plain)
    adapted = _with_adapters(plain, model)
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    adamw = torch.optim.AdamW(
        trained, lr=settings.learning_rate, betas=(0.9, 0.95), eps=settings.epsilon, weight_decay=0.01, foreach=False
    )
    losses, norms = [], []
    for step in range(arguments["steps"]):
        micro_batches = training._micro_batches(case, CPU, step)
        adamw.zero_grad()
        losses.append(0.0)
        for ids, targets, _ in micro_batches:
            loss = F.cross_entropy(adapted(input_ids=ids).logits.flatten(0, 1), targets.flatten())
            (loss / len(micro_batches)).backward()
            losses[-1] += loss.item() / len(micro_batches)
        norms.append(nn.utils.clip_grad_norm_(trained, settings.max_grad_norm).item())
        adamw.step()
    found = dict(adapted.get_base_model().named_parameters())
    counts = {"trainable": sum(parameter.numel() for parameter in trained)}
    return {"losses": losses, "grad_norms": norms, "adapters": _adapters(found), **counts}


_OF_TORCHTITAN = {
    "wqkv": ("q_proj", "k_proj", "v_proj"),
    "wo": ("o_proj",),
    "w1": ("gate_proj",),
    "w2": ("down_proj",),
    "w3": ("up_proj",),
}


def _with_adapters(plain: nn.Module, model: ModelShape) -> PeftModel:
    """The model with adapters of the trial program's initial values. Modules that are one in torchtitan share an A."""
    adapters = model.adapters
    names = [part for name in adapted_modules(model) for part in _OF_TORCHTITAN.get(name, (name,))]
    assert adapters is not None
    alpha = adapters.alpha or adapters.rank
    adapted = get_peft_model(plain, LoraConfig(r=adapters.rank, lora_alpha=alpha, target_modules=names))
    with torch.no_grad():
        for name, parameter in adapted.get_base_model().named_parameters():
            if key := _key(name):
                layer, module, matrix = re.fullmatch(r"(\d+)\.(.*)\.([ab])", key).groups()
                parameter.copy_(_drawn(InitialMatrices(model, SOURCE, int(layer)), module, matrix))
            elif _is_whole(name, model.trainable or ()):
                parameter.requires_grad_(True)
    if "wqkv" in adapted_modules(model):
        for layer in adapted.get_base_model().model.layers:
            attention = layer.self_attn
            for part in (attention.k_proj, attention.v_proj):
                part.lora_A["default"].weight = attention.q_proj.lora_A["default"].weight
    return adapted


def _drawn(matrices: InitialMatrices, module: str, matrix: str) -> torch.Tensor:
    model, draw = matrices.model, getattr(matrices, f"adapter_{matrix}")
    names = (name for name in adapted_modules(model) if module in _OF_TORCHTITAN.get(name, (name,)))
    whole = draw(name := next(names))
    if matrix == "a" or name != "wqkv":
        return whole
    sizes = (model.query_size, model.key_value_size, model.key_value_size)
    return whole.split(sizes)[_OF_TORCHTITAN[name].index(module)]


def _is_whole(name: str, modules: tuple[str, ...]) -> bool:
    """True for a parameter of a Llama's module that trains whole."""
    return any(f".{module}." in f".{name}" or (module == "norms" and "norm." in name) for module in modules)


def _llama(model: ModelShape) -> nn.Module:
    plain = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=model.vocab_size,
            hidden_size=model.hidden_size,
            intermediate_size=model.ffn_hidden_size,
            num_hidden_layers=model.num_layers,
            num_attention_heads=model.num_attention_heads,
            num_key_value_heads=model.num_key_value_heads,
            rms_norm_eps=1e-5,
            attn_implementation="eager",
        )
    )
    key = model.num_key_value_heads * model.head_size
    state = {
        "model.embed_tokens": InitialMatrices(model, SOURCE).tokens(),
        "lm_head": InitialMatrices(model, SOURCE).head(),
    }
    for layer in range(model.num_layers):
        matrices = InitialMatrices(model, SOURCE, layer)
        query, k, v = matrices.qkv().split([model.hidden_size, key, key])
        gate, up = matrices.mlp_in().chunk(2)
        of_layer = {"self_attn.q_proj": query, "self_attn.k_proj": k, "self_attn.v_proj": v, "mlp.gate_proj": gate}
        of_layer |= {
            "self_attn.o_proj": matrices.attention_out(),
            "mlp.up_proj": up,
            "mlp.down_proj": matrices.mlp_out(),
        }
        state |= {f"model.layers.{layer}.{name}": matrix for name, matrix in of_layer.items()}
    return _loaded(plain, state)


def _gpt2(model: ModelShape) -> nn.Module:
    plain = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=model.vocab_size,
            n_positions=model.seq_length,
            n_embd=model.hidden_size,
            n_inner=model.ffn_hidden_size,
            n_layer=model.num_layers,
            n_head=model.num_attention_heads,
            tie_word_embeddings=False,
            attn_implementation="eager",
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        )
    )
    ends = InitialMatrices(model, SOURCE)
    state = {"transformer.wte": ends.tokens(), "transformer.wpe": ends.positions(), "lm_head": ends.head()}
    for layer in range(model.num_layers):
        matrices = InitialMatrices(model, SOURCE, layer)
        of_layer = {"attn.c_attn": matrices.qkv(), "attn.c_proj": matrices.attention_out()}
        of_layer |= {"mlp.c_fc": matrices.mlp_in(), "mlp.c_proj": matrices.mlp_out()}
        state |= {f"transformer.h.{layer}.{name}": matrix.T for name, matrix in of_layer.items()}
    return _loaded(plain, state)


def _loaded(plain: nn.Module, matrices: Mapping[str, torch.Tensor]) -> nn.Module:
    """The model with these matrices, biases of 0 and gains of 1, which transformers gives them."""
    missing, unexpected = plain.load_state_dict({f"{name}.weight": m for name, m in matrices.items()}, strict=False)
    assert not unexpected
    assert all(name.endswith("bias") or "norm" in name or ".ln_" in name for name in missing)
    return plain


def _quantize(plain: nn.Module) -> None:
    from bitsandbytes.nn import Linear4bit, Params4bit

    for path, linear in list(plain.base_model.named_modules()):
        if isinstance(linear, nn.Linear | Conv1D):
            weight = linear.weight.data.T.contiguous() if isinstance(linear, Conv1D) else linear.weight.data
            made = Linear4bit(weight.shape[1], weight.shape[0], bias=False, quant_type="nf4")
            made.weight, made.bias = Params4bit(weight, requires_grad=False, quant_type="nf4"), linear.bias
            parent, _, name = path.rpartition(".")
            setattr(plain.base_model.get_submodule(parent), name, made.to("cpu"))
