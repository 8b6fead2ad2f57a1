#!/usr/bin/env python3
"""Tiny random checkpoints with reference logits by Hugging Face transformers (CPU, fp32, eager attention).

    make_goldens.py --out DIR [--wide] [family ...]        (pip install torch transformers safetensors)

Writes DIR/<family>/ for the families of golden_families.py:
    config.json               in transformers 5 style
    config.hub_style.json     the same model in the older style of most hub files
    model.safetensors         bf16
    golden.safetensors        prompt_a [8]   logits_a [8, V]     one prefill
                              prompt_b [28]  logits_b [28, V]    longer than every window and chunk
                              greedy_ids [8] greedy_logits [8, V]  token by token with a cache, after prompt_a

The weights are exact in bf16 and the forward pass is fp32. Norms, biases, sinks and routers' corrections are moved away
from 1 and 0, so that a forgotten one shows. One line per family tells how far decoding with the cache, fp64, loading
again and the hub-style config are from the logits written; the script fails if one of them is far.
"""

import argparse
import copy
import json
import math
import os
import re
import shutil
import sys
import tempfile
import traceback
import warnings
import zlib
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", CUDA_VISIBLE_DEVICES="")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
warnings.filterwarnings("ignore")

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from golden_families import OPTIONAL, REQUIRED, V, fields

transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)

PROMPT_A = [1, 7, 31, 12, 12, 5, 38, 20]
PROMPT_B = [1] + [3 + (i * 17 + i * i % 11) % (V - 3) for i in range(27)]
STEPS = 8
TRIES = 16  # seeds, until greedy decoding is neither a tie nor a loop, and fp32 is close to fp64
CORRECTION = r"correction_bias|expert_bias"
NOISE = (
    "transformers_version",
    "use_cache",
    "initializer_range",
    "attention_dropout",
    "output_router_logits",
    "router_aux_loss_coef",
    "mtp_layers_block_type",
)


# --- weights ---


@torch.no_grad()
def randomize(model, seed):
    """Random weights that bf16 holds exactly; norms, biases and the like are only nudged."""
    g = torch.Generator().manual_seed(seed)
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    tied = model.config.get_text_config().tie_word_embeddings
    seen = set()
    for name, p in sorted(model.named_parameters()):
        if id(p) in seen or not p.dtype.is_floating_point:
            continue
        seen.add(id(p))
        r = torch.randn(p.shape, generator=g)
        if id(p) in embeddings:
            p.copy_((0.15 if tied else 0.6) * r)
        elif name.endswith("_bias") and p.dim() == 2:  # one bias per expert
            p.copy_(0.1 * r)
        elif name.endswith("sinks"):
            p.copy_(r)
        elif name.endswith("dt_bias"):  # time steps long enough for the state to matter
            p.copy_(0.5 * r - 1.0)
        elif p.dim() <= 1 or (p.dim() == 2 and min(p.shape) == 1):
            p.add_(0.1 * r)
        elif "conv" in name and p.dim() == 3:
            p.copy_(r / math.sqrt(p.shape[-1]))
        elif "gate_up_proj" in name and model.config.model_type == "gpt_oss":
            p.copy_(0.7 * r)  # large enough to reach the activation's limit
        elif p.dim() == 3:  # stacked experts
            p.copy_(r / 5.0)
        else:
            p.copy_(1.3 * r / math.sqrt(p.shape[-1]))
        p.copy_(p.to(torch.bfloat16))
    for name, b in sorted(model.named_buffers()):
        if re.search(CORRECTION, name) or name.endswith("layer_scalar"):
            b.add_(0.1 * torch.randn(b.shape, generator=g))
            b.copy_(b.to(torch.bfloat16))


@torch.no_grad()
def corrections_matter(model):
    """Whether without any one router's correction some token goes to other experts."""
    before = logits(model, PROMPT_B)
    for name, t in [*model.named_buffers(), *model.named_parameters()]:
        if re.search(CORRECTION, name):
            kept = t.clone()
            t.zero_()
            moved = distance(model, before)
            t.copy_(kept)
            if moved < 1e-2:
                return False
    return True


def make_config(family, wide):
    model_type, f = fields(family, wide)
    config = CONFIG_MAPPING[model_type](**f)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return config


# --- logits ---


@torch.no_grad()
def logits(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0].float()


@torch.no_grad()
def greedy(model):
    """Token by token after PROMPT_A. State space models have another name for their cache."""
    out = model(torch.tensor([PROMPT_A]), use_cache=True)
    kind = "past_key_values" if getattr(out, "past_key_values", None) is not None else "cache_params"
    cache, ids, rows = getattr(out, kind), [], []
    for _ in range(STEPS):
        rows.append(out.logits[0, -1].float())
        ids.append(int(rows[-1].argmax()))
        out = model(torch.tensor([[ids[-1]]]), use_cache=True, **{kind: cache})
    return ids, torch.stack(rows)


def load(folder):
    packed = "quantization_config" in json.loads((Path(folder) / "config.json").read_text())
    dtype = torch.bfloat16 if packed else torch.float32  # transformers unpacks MXFP4 to bf16, without loss
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", output_loading_info=True
    )
    missing = [k for k in info["missing_keys"] if k != "lm_head.weight"]
    assert not missing and not info["unexpected_keys"], info
    return model.float().eval()


def distance(model, expected):
    return float((logits(model, PROMPT_B) - expected).abs().max())


def fp64_distance(model, expected):
    try:
        return distance(copy.deepcopy(model).double(), expected)
    except (RuntimeError, TypeError):
        return float("nan")  # some models fix a dtype inside


# --- configs ---


def hub_style(config):
    """The older form most hub files have: rope_theta, rope_scaling, torch_dtype instead of rope_parameters, dtype.
    Only fields that real hub files of the family have are added."""
    h = copy.deepcopy(config)
    kind, types = h["model_type"], h.get("layer_types")
    if "dtype" in h:
        h["torch_dtype"] = h.pop("dtype")
    rope = h.get("rope_parameters")
    if isinstance(rope, dict) and (("full_attention" in rope) or ("sliding_attention" in rope)):
        if kind == "olmo3":
            h.pop("rope_parameters")
            h["rope_theta"], h["rope_scaling"] = rope["full_attention"]["rope_theta"], None
        elif kind == "mimo_v2_flash":
            h.pop("rope_parameters")
            h.update(
                rope_theta=rope["full_attention"]["rope_theta"],
                swa_rope_theta=rope["sliding_attention"]["rope_theta"],
                partial_rotary_factor=rope["full_attention"]["partial_rotary_factor"],
            )
            h.update(
                hybrid_layer_pattern=[int(t == "sliding_attention") for t in types],
                moe_layer_freq=[int(t == "sparse") for t in h["mlp_layer_types"]],
                sliding_window=h["sliding_window"] - 1,
                sliding_window_size=h["sliding_window"] - 1,  # the positions before the query
                swa_num_attention_heads=h["num_attention_heads"],
                swa_num_key_value_heads=2 * h["num_key_value_heads"],
                swa_head_dim=h["head_dim"],
                swa_v_head_dim=h["v_head_dim"],
                add_swa_attention_sink_bias=True,
                add_full_attention_sink_bias=False,
                layernorm_epsilon=h["rms_norm_eps"],
                scoring_func="sigmoid",
                topk_method="noaux_tc",
                n_shared_experts=None,
            )
            for ours in ("layer_types", "mlp_layer_types"):  # published configs have only the lists above
                del h[ours]
    elif isinstance(rope, dict) and not kind.startswith("qwen3_5"):
        h.pop("rope_parameters")
        for k in ("rope_theta", "partial_rotary_factor"):
            if k in rope:
                h[k] = rope[k]
        scaling = {k: v for k, v in rope.items() if k not in ("rope_theta", "partial_rotary_factor")}
        h["rope_scaling"] = None if scaling["rope_type"] == "default" else {**scaling, "type": scaling["rope_type"]}
    if kind.startswith("qwen3_5"):  # nested, and with rope_parameters
        return dict(model_type=kind.removesuffix("_text"), tie_word_embeddings=h["tie_word_embeddings"], text_config=h)
    if kind == "lfm2":
        h.update(
            full_attn_idxs=[i for i, t in enumerate(types) if t == "full_attention"],
            block_dim=h["hidden_size"],
            conv_dim=h["hidden_size"],
            block_ff_dim=h["intermediate_size"],
        )
    if kind == "granitemoehybrid":
        h["layer_types"] = ["attention" if t in ("attention", "full_attention") else "mamba" for t in types]
    if kind == "gemma4_text":
        full = next(iter((h.pop("per_layer_config", None) or {}).values()), {})
        for theirs, ours in (("head_dim", "global_head_dim"), ("num_key_value_heads", "num_global_key_value_heads")):
            if theirs in full:
                h[ours] = full[theirs]
    if kind == "kimi_linear":
        dense = h["mlp_layer_types"].index("sparse")
        h["linear_attn_config"] = dict(
            kda_layers=[i + 1 for i, t in enumerate(types) if t != "full_attention"],
            full_attn_layers=[i + 1 for i, t in enumerate(types) if t == "full_attention"],
            num_heads=h["linear_num_heads"],
            head_dim=h["linear_head_dim"],
            short_conv_kernel_size=h.get("linear_conv_kernel_dim", 4),
        )
        h.update(
            first_k_dense_replace=dense,
            moe_layer_freq=1,
            use_grouped_topk=True,
            moe_router_activation_func="sigmoid",
            mla_use_nope=True,
            rope_theta=10000.0,
            rope_scaling=None,
            num_experts_per_tok=h["num_experts_per_token"],
        )
    if kind == "qwen3_moe" and "num_local_experts" in h:
        h["num_experts"] = h.pop("num_local_experts")
    if kind == "minimax_m2":
        h.update(scoring_func="sigmoid", shared_intermediate_size=0)
    if kind == "deepseek_v3":
        h.update(scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1)
    if kind == "glm4_moe_lite":
        h["first_k_dense_replace"] = h["mlp_layer_types"].index("sparse")
    if kind == "gpt_neox":
        h["rotary_pct"], h["rotary_emb_base"] = h.pop("partial_rotary_factor"), h.pop("rope_theta")
    if kind == "afmoe":
        h.update(route_norm=True, score_func="sigmoid")
    if kind == "exaone4":
        h["sliding_window_pattern"] = "".join("L" if t == "sliding_attention" else "G" for t in types)
    return h


def write_json(path, value):
    """One field per line: short, and still readable in a diff."""
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def hub_distance(folder, expected):
    """How far the logits are when transformers reads config.hub_style.json instead."""
    with tempfile.TemporaryDirectory() as tmp:
        shutil.copyfile(folder / "config.hub_style.json", Path(tmp) / "config.json")
        shutil.copyfile(folder / "model.safetensors", Path(tmp) / "model.safetensors")
        return distance(load(tmp), expected)


# --- one family ---


def attempt(config, seed, change=None):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    randomize(model, seed)
    extra = change(model, seed) if change else None
    ids, rows = greedy(model)
    top = rows.topk(2, -1).values
    margin = float((top[:, 0] - top[:, 1]).min())
    steady = not fp64_distance(model, logits(model, PROMPT_B)) > 2e-5
    return (steady and corrections_matter(model), min(margin, 0.02), len(set(ids))), seed, model, ids, rows, extra


def search(family, config, change=None):
    """The first of a few seeds with which everything shows and greedy tokens win clearly; else the best one."""
    first = 1000 + zlib.crc32(family.encode()) % 9000
    best = None
    for seed in range(first, first + TRIES):
        found = attempt(config, seed, change)
        if best is None or found[0] > best[0]:
            best = found
        if best[0] >= (True, 0.02, STEPS - 3):
            break
    return best


def save(folder, model, ids, rows, replace=None, add=None):
    """Write the four files. `replace` gives other tensors for some names, `add` goes into the configs."""
    a, b = logits(model, PROMPT_A), logits(model, PROMPT_B)
    assert a.isfinite().all() and b.isfinite().all(), "logits are not finite"
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as tmp:
        copy.deepcopy(model).to(torch.bfloat16).save_pretrained(tmp)
        config = json.loads((Path(tmp) / "config.json").read_text())
        tensors = load_file(Path(tmp) / "model.safetensors")
    config = {k: v for k, v in config.items() if k not in NOISE} | (add or {})
    if replace:
        tensors = replace(tensors)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config)
    write_json(folder / "config.hub_style.json", hub_style(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    save_file(
        {
            "prompt_a": torch.tensor(PROMPT_A, dtype=torch.int32),
            "logits_a": a.contiguous(),
            "prompt_b": torch.tensor(PROMPT_B, dtype=torch.int32),
            "logits_b": b.contiguous(),
            "greedy_ids": torch.tensor(ids, dtype=torch.int32),
            "greedy_logits": rows.contiguous(),
        },
        folder / "golden.safetensors",
    )
    return b


def check(folder, found, b):
    """Print how far other ways to the same logits end up; fail if one is far."""
    (_, _, distinct), seed, model, ids, rows, _ = found
    cache = float((logits(model, PROMPT_A + ids)[len(PROMPT_A) - 1 : -1] - rows).abs().max())
    far = dict(cache=cache, fp64=fp64_distance(model, b), reload=distance(load(folder), b), hub=hub_distance(folder, b))
    size = sum(f.stat().st_size for f in folder.iterdir())
    note = " ".join(f"{k} {v:.0e}" for k, v in far.items())
    found = f"seed {seed}  std {float(b.std()):.2f}  distinct {distinct}"
    print(f"OK   {folder.name:18s} {size / 1000:5.1f} KB  {found}  {note}", flush=True)
    assert not any(v > 1e-4 for v in far.values()), far


def build(family, out, wide=False):
    found = search(family + ("_wide" if wide else ""), make_config(family, wide))
    _, _, model, ids, rows, _ = found
    check(out / family, found, save(out / family, model, ids, rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--wide", action="store_true", help="rows of at least 32, for MLX")
    parser.add_argument("family", nargs="*")
    args = parser.parse_args()
    failed = 0
    for name in args.family or [*REQUIRED, *OPTIONAL]:
        try:
            build(name, args.out, args.wide)
        except Exception as e:
            failed += 1
            print(f"FAIL {name:18s} {e!r:.300}", flush=True)
            if os.environ.get("TRACE"):
                traceback.print_exc()
    sys.exit(failed > 0)
