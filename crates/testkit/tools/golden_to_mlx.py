#!/usr/bin/env python3
"""Quantize golden checkpoints the way `mlx_lm.convert` does and record the logits of what was written.

    golden_to_mlx.py --goldens DIR --out DIR --modes affine4_g32,mxfp4 [--as NAME] [family ...]
                                            (pip install mlx-cpu mlx-lm torch transformers safetensors)

DIR must come from `make_goldens.py --wide`. Writes OUT/<family>__<mode>/: config.json, model.safetensors and
golden.safetensors (prompt_a, prompt_b, logits_a_f32, logits_b_f32). Where mlx-lm agrees with transformers on the
unquantized weights, it is the judge: it loads what was written, with every floating parameter cast to fp32. Else
transformers is, on the dequantized weights.
"""

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

os.environ.update(MLX_DISABLE_COMPILE="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", CUDA_VISIBLE_DEVICES="")

import mlx.core as mx
import numpy as np
import torch
from mlx.utils import tree_map, tree_map_with_path
from mlx_lm.utils import load_model, quantize_model, save_config, save_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from make_goldens import write_json

mx.set_default_device(mx.cpu)
torch.set_num_threads(1)
AGREES = 2e-4


def mixed(path, module):
    """Different bits for different layers, as mixed conversions on the hub have; one layer stays as it is."""
    if re.search(r"embed_tokens|lm_head", path):
        return dict(group_size=32, bits=6)
    if re.search(r"layers\.0\..*(v_proj|down_proj)$", path):
        return dict(group_size=32, bits=8)
    if path.endswith("layers.1.self_attn.k_proj"):
        return False
    if path.endswith("layers.1.mlp.gate_proj"):
        return dict(group_size=32, bits=3)
    return True


def mode(name):
    """(group size, bits, mode, predicate) from affine4_g32, mxfp4, mixed ..."""
    if m := re.fullmatch(r"affine(\d)_g(\d+)", name):
        return int(m[2]), int(m[1]), "affine", None
    return {
        "mxfp4": (32, 4, "mxfp4", None),
        "mxfp8": (32, 8, "mxfp8", None),
        "nvfp4": (16, 4, "nvfp4", None),
        "mixed": (32, 4, "affine", mixed),
    }[name]


# --- the unquantized model in the form that mlx-lm reads ---


def gpt_oss(w):
    """mlx-lm reads only the hub's MXFP4. Bring transformers' form ([E, in, out], gate and up interleaved) into its own."""
    out = {}
    for k, v in w.items():
        if k.endswith("experts.gate_up_proj"):
            for i, name in enumerate(("gate_proj", "up_proj")):
                out[k.replace("gate_up_proj", name + ".weight")] = mx.contiguous(v.swapaxes(-1, -2)[:, i::2])
        elif k.endswith("experts.gate_up_proj_bias"):
            for i, name in enumerate(("gate_proj", "up_proj")):
                out[k.replace("gate_up_proj_bias", name + ".bias")] = mx.contiguous(v[:, i::2])
        elif k.endswith("experts.down_proj"):
            out[k + ".weight"] = mx.contiguous(v.swapaxes(-1, -2))
        elif k.endswith("experts.down_proj_bias"):
            out[k.replace("down_proj_bias", "down_proj.bias")] = v
        else:
            out[k] = v
    return out


def stage(golden, folder, dtype=mx.bfloat16):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    w = mx.load(str(golden / "model.safetensors"))
    if golden.name == "kimi_linear":  # transformers saves dense layers under the experts' name
        w = {re.sub(r"block_sparse_moe\.(gate|up|down)_proj", r"mlp.\1_proj", k): v for k, v in w.items()}
    if golden.name == "gpt_oss":
        w = gpt_oss(w)
    w = {k: v.astype(dtype) if mx.issubdtype(v.dtype, mx.floating) else v for k, v in w.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), w, metadata={"format": "pt"})
    shutil.copyfile(golden / "config.hub_style.json", folder / "config.json")


# --- judges ---


def mlx_logits(folder, prompts):
    model, _ = load_model(folder)
    model.update(
        tree_map(lambda p: p.astype(mx.float32) if mx.issubdtype(p.dtype, mx.floating) else p, model.parameters())
    )
    model.eval()
    return [np.array(model(mx.array(p)[None])[0].astype(mx.float32)) for p in prompts]


def dequantized(folder):
    """The checkpoint's tensors in fp32, still under mlx-lm's names."""
    table = json.loads((folder / "config.json").read_text())["quantization"]
    w, out = mx.load(str(folder / "model.safetensors")), {}
    for k, v in w.items():
        if k.endswith((".scales", ".biases")):
            continue
        path = k.removesuffix(".weight")
        if path + ".scales" in w:
            q, scales, biases = table.get(path, table), w[path + ".scales"], w.get(path + ".biases")
            if biases is not None:
                scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
            v = mx.dequantize(
                v, scales, biases, group_size=q["group_size"], bits=q["bits"], mode=q.get("mode", "affine")
            )
        out[k] = torch.tensor(np.array(v.astype(mx.float32)))
    return out


def falcon_h1_unfolded(w, c):
    """mlx-lm multiplied these weights while converting; undo it, and transpose the convolution."""
    sizes = [c["mamba_d_ssm"]] * 2 + [c["mamba_n_groups"] * c["mamba_d_state"]] * 2 + [c["mamba_n_heads"]]
    rows = torch.cat([torch.full((n, 1), m) for n, m in zip(sizes, c["ssm_multipliers"])]) * c["ssm_in_multiplier"]
    folded = {
        "embed_tokens.weight": c["embedding_multiplier"],
        "lm_head.weight": c["lm_head_multiplier"],
        "q_proj.weight": c["attention_in_multiplier"],
        "k_proj.weight": c["attention_in_multiplier"],
        "o_proj.weight": c["attention_out_multiplier"],
        "out_proj.weight": c["ssm_out_multiplier"],
        "gate_proj.weight": c["mlp_multipliers"][0],
        "down_proj.weight": c["mlp_multipliers"][1],
        "in_proj.weight": rows,
    }
    out = {}
    for k, v in w.items():
        by = next((m for end, m in folded.items() if k.endswith("." + end) or k == end), 1.0)
        out[k] = v.transpose(1, 2).contiguous() if k.endswith("conv1d.weight") else v / by
    return out


def transformers_logits(folder, golden, prompts):
    """For families whose tensors have the hub's names in MLX too."""
    weights = dequantized(folder)
    if golden.name == "falcon_h1":
        weights = falcon_h1_unfolded(weights, json.loads((golden / "config.json").read_text()))
    with tempfile.TemporaryDirectory() as tmp:
        save_file(weights, Path(tmp) / "model.safetensors", {"format": "pt"})
        shutil.copyfile(golden / "config.json", Path(tmp) / "config.json")
        model, info = AutoModelForCausalLM.from_pretrained(
            tmp, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    missing = [k for k in info["missing_keys"] if k != "lm_head.weight"]
    assert not missing and not info["unexpected_keys"], info
    with torch.no_grad():
        return [model.eval()(torch.tensor(p).long()[None], use_cache=False).logits[0].float().numpy() for p in prompts]


def far(one, other):
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other))


# --- conversion ---


def quantize(source, folder, name):
    group, bits, kind, predicate = mode(name)
    model, config = load_model(source, lazy=True)
    cast = getattr(model, "cast_predicate", lambda _: True)
    model.update(
        tree_map_with_path(
            lambda k, v: v.astype(mx.bfloat16) if cast(k) and mx.issubdtype(v.dtype, mx.floating) else v,
            model.parameters(),
        )
    )
    own = predicate or getattr(model, "quant_predicate", None)

    def fitting(path, module):
        """Some families require groups of 64; rows here may be shorter."""
        want = own(path, module)
        return (
            dict(want, group_size=32)
            if isinstance(want, dict) and module.weight.shape[-1] % want.get("group_size", group)
            else want
        )

    model, config = quantize_model(model, config, group, bits, mode=kind, quant_predicate=fitting if own else None)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_model(folder, model)
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    save_config(config, folder / "config.json")
    write_json(folder / "config.json", json.loads((folder / "config.json").read_text()))


def run(golden, out, modes, tmp):
    g = {k: np.array(v) for k, v in mx.load(str(golden / "golden.safetensors")).items()}
    prompts = [g["prompt_a"].astype(np.int32), g["prompt_b"].astype(np.int32)]
    stage(golden, tmp / "fp32", mx.float32)  # fp32, so that the +1 some families add to norms does not round
    plain = far(mlx_logits(tmp / "fp32", prompts), [g["logits_a"], g["logits_b"]])
    stage(golden, tmp / "bf16")
    for name in modes:
        folder = out / f"{args.name or golden.name}__{name}"
        quantize(tmp / "bf16", folder, name)
        judge = "mlx-lm" if plain < AGREES else "transformers"
        logits = mlx_logits(folder, prompts) if plain < AGREES else transformers_logits(folder, golden, prompts)
        assert all(np.isfinite(x).all() for x in logits)
        tensors = dict(prompt_a=prompts[0], prompt_b=prompts[1], logits_a_f32=logits[0], logits_b_f32=logits[1])
        mx.save_safetensors(str(folder / "golden.safetensors"), {k: mx.array(v) for k, v in tensors.items()})
        w = mx.load(str(folder / "model.safetensors"))
        left = sorted(
            {
                re.sub(r"\.\d+\.", ".N.", k)
                for k, v in w.items()
                if v.ndim > 1 and mx.issubdtype(v.dtype, mx.floating) and not k.endswith((".scales", ".biases"))
            }
        )
        size = sum(f.stat().st_size for f in folder.iterdir())
        moved = far(logits, [g["logits_a"], g["logits_b"]])
        print(
            f"OK   {folder.name:30s} {size / 1000:5.1f} KB  judge {judge:12s}  mlx-lm from transformers {plain:.0e},"
            f" quantized from not {moved:.1f}, left as they were: {', '.join(left) or 'none'}",
            flush=True,
        )


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--goldens", type=Path, required=True)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--modes", required=True)
parser.add_argument("--as", dest="name", help="another name than the golden's for the folders written")
parser.add_argument("family", nargs="*")
args = parser.parse_args()
failed = 0
for family in args.family or sorted(p.name for p in args.goldens.iterdir() if (p / "model.safetensors").exists()):
    with tempfile.TemporaryDirectory() as tmp:
        try:
            run(args.goldens / family, args.out, args.modes.split(","), Path(tmp))
        except Exception as e:
            failed += 1
            print(f"FAIL {family:30s} {type(e).__name__}: {e!s:.300}", flush=True)
            if os.environ.get("TRACE"):
                traceback.print_exc()
sys.exit(failed > 0)
