#!/usr/bin/env python3
"""A tiny gpt-oss in the hub's MXFP4 form, with reference logits.

    make_gpt_oss_mxfp4.py --out DIR       (pip install torch transformers accelerate safetensors)

DIR/gpt_oss_mxfp4/ has the four files make_goldens.py writes. The experts are gate_up_proj and down_proj as
*_blocks, U8 [E, rows, in/32, 16], low nibble first, and *_scales, U8 [E, rows, in/32], powers of two with bias 127.
Rows of gate_up are gate, up, gate, up ... The logits come from transformers with the experts unpacked to fp32.
"""

import argparse
from pathlib import Path

import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from make_goldens import check, make_config, save, search

NAME = "gpt_oss_mxfp4"
QUANTIZATION = dict(
    quant_method="mxfp4",
    modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
)


@torch.no_grad()
def pack(model, seed):
    """Random packed experts; the model gets their values."""
    g = torch.Generator().manual_seed(seed)
    packed = {}
    for i, layer in enumerate(model.model.layers):
        experts = layer.mlp.experts
        for name in ("gate_up_proj", "down_proj"):
            p = getattr(experts, name)  # [E, in, rows]
            shape = (p.shape[0], p.shape[2], p.shape[1] // 32)
            blocks = torch.randint(0, 256, (*shape, 16), generator=g, dtype=torch.uint8)
            least = 124 if name == "gate_up_proj" else 121  # gates large enough to reach the activation's limit
            scales = torch.randint(least, least + 3, shape, generator=g, dtype=torch.uint8)
            scales[0, 0, 0] = 0  # the smallest: 2^-127, still a number
            p.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
            path = f"model.layers.{i}.mlp.experts.{name}"
            packed[path + "_blocks"], packed[path + "_scales"] = blocks, scales
    return packed


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--out", type=Path, required=True)
out = parser.parse_args().out / NAME
found = search(NAME, make_config("gpt_oss", wide=True), pack)
_, _, model, ids, rows, packed = found


def replace(tensors):
    return {k: v for k, v in tensors.items() if not k.endswith(("experts.gate_up_proj", "experts.down_proj"))} | packed


check(out, found, save(out, model, ids, rows, replace, dict(quantization_config=QUANTIZATION)))
