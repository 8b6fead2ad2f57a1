#!/usr/bin/env python3
"""GGUF of golden checkpoints by llama.cpp's own converter (its `conversion` package, unmodified).

    golden_to_gguf.py --llama-cpp DIR --goldens DIR --out DIR --f32 DIR [family ...]

Only the vocabulary is ours, since the goldens have no tokenizer: as many short tokens as the model has rows, and one
merge, without which llama.cpp refuses to load. OUT/<family>.gguf has bf16 tensors where the converter allows (and MXFP4
experts where the golden has them). F32/<family>.gguf is the same in f32, for judge_gguf.py, since llama.cpp rounds
activations beside other weights. The two must hold equal values; where bf16 rounds something, OUT gets the f32 file.
"""

import argparse
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import traceback
import types
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--llama-cpp", type=Path, required=True, help="a llama.cpp source tree")
parser.add_argument("--goldens", type=Path, required=True)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--f32", type=Path, required=True)
parser.add_argument("family", nargs="*")
args = parser.parse_args()
os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", NO_LOCAL_GGUF="1")
sys.path[:0] = [str(args.llama_cpp), str(args.llama_cpp / "gguf-py")]

import gguf
import numpy as np
import torch
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

logging.basicConfig(level=logging.ERROR)
torch.set_num_threads(1)
FILE_TYPES = dict(bf16=gguf.LlamaFileType.MOSTLY_BF16, f32=gguf.LlamaFileType.ALL_F32)

# What GGUF or llama.cpp cannot say, so that no file could match the golden.
SKIP = {
    "mistral_swa": "architecture llama has no sliding window",
    "deepseek_v2": "llama.cpp ranks groups of experts by their best two, the model by the best one",
    "deepseek_v3": "mscale differs from mscale_all_dim, which GGUF has no key for; deepseek_v3_yarn has it",
    "llama4_text": "chunk 8192, temperature scale and every fourth layer full are fixed in llama.cpp",
    "nemotron_h": "with experts, the converter knows no plain MLP layers",
    "helium": "no such architecture",
}


def hub_fields(family, config):
    """Fields that hub configs have, the converter asks for, and transformers does not write."""
    if family == "cohere2":
        config["rotary_pct"] = 1.0
    if family == "gpt_neox":
        config["rotary_pct"] = config["rope_parameters"]["partial_rotary_factor"]
    if family == "afmoe":
        config.update(route_norm=True, score_func="sigmoid")
    if family == "gpt2":
        config["n_ctx"] = config["n_positions"]
    if family in ("minimax_m2", "glm4_moe_lite"):
        config["scoring_func"] = "sigmoid"
    if family == "mimo_v2_flash":
        config["rope_parameters"]["partial_rotary_factor"] = config["rope_parameters"]["full_attention"][
            "partial_rotary_factor"
        ]
    if family == "granitemoehybrid":
        config["layer_types"] = [
            "attention" if t in ("attention", "full_attention") else "mamba" for t in config["layer_types"]
        ]
    return config


def unpacked(tensors):
    """MXFP4 experts as plain ones."""
    out = {k: v for k, v in tensors.items() if not k.endswith(("_blocks", "_scales"))}
    for k, v in tensors.items():
        if k.endswith("_blocks"):
            out[k.removesuffix("_blocks")] = convert_moe_packed_tensors(
                v, tensors[k.replace("_blocks", "_scales")], dtype=torch.bfloat16
            ).contiguous()
    return out


def stage(golden, folder, plain):
    """A folder as on the hub: one config, and the names of tensors that hub files have. `plain` unpacks MXFP4."""
    family = golden.name
    folder.mkdir(parents=True)
    hub = family in ("kimi_linear", "mimo_v2_flash", "glm4_moe_lite")
    config = json.loads((golden / ("config.hub_style.json" if hub else "config.json")).read_text())
    if family == "mimo_v2_flash":  # llama.cpp counts the query too, unlike the hub's config
        config["sliding_window"] = config.pop("sliding_window_size") + 1
    tokens, _ = vocabulary(config["vocab_size"])  # gemma's converter counts them
    (folder / "tokenizer.json").write_text(
        json.dumps(dict(model=dict(type="BPE", vocab={t: i for i, t in enumerate(tokens)}, merges=[]), added_tokens=[]))
    )
    tensors = load_file(golden / "model.safetensors")
    if family == "kimi_linear":  # transformers saves dense layers under the experts' name
        tensors = {re.sub(r"block_sparse_moe\.(gate|up|down)_proj", r"mlp.\1_proj", k): v for k, v in tensors.items()}
    if plain and config.pop("quantization_config", None):
        tensors = unpacked(tensors)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def vocabulary(n):
    special = ["<pad>", "<s>", "</s>"]
    tokens = (special + ["Ċ", "Ġ"] + [chr(c) for c in range(ord("!"), ord("~"))])[: n - 1] + ["ĠĠ"]
    return tokens, [gguf.TokenType.CONTROL] * len(special) + [gguf.TokenType.NORMAL] * (n - len(special))


def set_vocab(self):
    tokens, kinds = vocabulary(self.hparams["vocab_size"])
    w = self.gguf_writer
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_types(kinds)
    w.add_token_merges(["Ġ Ġ"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)


def convert(folder, out, outtype):
    config = hub_fields(folder.name, ModelBase.load_hparams(folder, False))
    kind = get_model_class(get_model_architecture(config, ModelType.TEXT), mmproj=False)
    if kind.supports_mtp_export:
        kind.no_mtp = True  # the goldens have no draft layers
    # llama.cpp looks for special tokens where the name says phi3
    model = kind(folder, FILE_TYPES[outtype], out, hparams=config, model_name="tiny")
    for m in (model, getattr(model, "impl", model)):
        m.set_vocab = types.MethodType(set_vocab, m)
    with torch.inference_mode():
        model.write()


def values(path):
    return {t.name: gguf.quants.dequantize(t.data, t.tensor_type).reshape(-1) for t in gguf.GGUFReader(path).tensors}


def run(family, tmp):
    golden, out, f32 = args.goldens / family, args.out / f"{family}.gguf", args.f32 / f"{family}.gguf"
    stage(golden, tmp / "f32" / family, plain=True)
    stage(golden, tmp / "bf16" / family, plain=False)
    convert(tmp / "f32" / family, f32, "f32")
    convert(tmp / "bf16" / family, out, "bf16")
    a, b = values(f32), values(out)
    rounded = [k for k in a if not np.array_equal(a[k], b[k])]
    if rounded:
        shutil.copyfile(f32, out)
    print(
        f"OK   {family:18s} {out.stat().st_size / 1000:5.1f} KB"
        + (f"  f32: bf16 would round {', '.join(rounded)}" if rounded else ""),
        flush=True,
    )


args.out.mkdir(parents=True, exist_ok=True)
args.f32.mkdir(parents=True, exist_ok=True)
failed = 0
for family in args.family or sorted(p.name for p in args.goldens.iterdir() if (p / "model.safetensors").exists()):
    if family in SKIP and not args.family:
        print(f"SKIP {family:18s} {SKIP[family]}", flush=True)
        continue
    with tempfile.TemporaryDirectory() as tmp:
        try:
            run(family, Path(tmp))
        except Exception as e:
            failed += 1
            print(f"FAIL {family:18s} {type(e).__name__}: {e!s:.300}", flush=True)
            if os.environ.get("TRACE"):
                traceback.print_exc()
sys.exit(failed > 0)
