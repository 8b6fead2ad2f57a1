"""Writes ggml.txt and mlx.txt: encoded rows and the f32 values that the reference
implementations of the formats decode from them. Needs `gguf`, `mlx` and `numpy`;
the committed files were made with gguf 0.19.0 and mlx 0.32.4 on the CPU.

Usage: python make.py, in this folder.
"""

import gguf
import mlx.core as mx
import numpy as np

rng = np.random.default_rng(20)
HEADER = "# Made by make.py; do not edit.\n"


def halves(count):
    return rng.uniform(-0.1, 0.1, count).astype(np.float16)


def ggml_row(qtype):
    """Two blocks of random codes, with finite half-precision fields."""
    length, size = gguf.GGML_QUANT_SIZES[qtype]
    blocks = rng.integers(0, 256, (2, size), dtype=np.uint8)
    fields = {"Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [size - 2]}
    for at in fields.get(qtype.name, [0]):
        blocks[:, at : at + 2] = halves(2).view(np.uint8).reshape(2, 2)
    return blocks, gguf.quants.dequantize(blocks, qtype)


def mxfp4_row():
    """Two blocks of random codes, one with a scale too small for a normal `f32`.
    No code is negative zero, which gguf does not have."""
    low, high = np.random.default_rng(4).choice([*range(8), *range(9, 16)], (2, 2, 17))
    blocks = (low | high << 4).astype(np.uint8)
    blocks[:, 0] = [121, 0]
    return blocks, gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.MXFP4)


def to_hex(values):
    return np.ascontiguousarray(values).tobytes().hex()


with open("ggml.txt", "w") as out:
    out.write(HEADER + "# type, row bytes, little-endian f32 values\n")
    for name in ["BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]:
        row, values = ggml_row(gguf.GGMLQuantizationType[name])
        out.write(f"{name} {to_hex(row)} {to_hex(values)}\n")
    row, values = mxfp4_row()
    out.write(f"MXFP4 {to_hex(row)} {to_hex(values)}\n")

with open("mlx.txt", "w") as out:
    out.write(HEADER + "# mode, bits, group, scales' type, packed, scales, biases, little-endian f32 values\n")
    floats = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
    affine = [(b, g) for b in [2, 3, 4, 5, 6, 8] for g in [32, 64, 128]]
    for i, (bits, group) in enumerate(affine):
        dtype = list(floats)[i % 3]
        weights = mx.array(rng.normal(0, 0.05, (1, 128)).astype(np.float32)).astype(floats[dtype])
        packed, scales, biases = mx.quantize(weights, group_size=group, bits=bits)
        # In f32, so that the values are not rounded to the scales' type.
        wide = [scales.astype(mx.float32), biases.astype(mx.float32)]
        values = mx.dequantize(packed, *wide, group_size=group, bits=bits)
        raw = [s.view(mx.uint16) if dtype == "BF16" else s for s in (scales, biases)]
        columns = [np.array(a) for a in (packed, *raw, values)]
        out.write(f"affine {bits} {group} {dtype} {' '.join(map(to_hex, columns))}\n")
    for mode, bits, group in [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]:
        weights = mx.array(rng.normal(0, 0.05, (1, 64)).astype(np.float32))
        packed, scales = mx.quantize(weights, mode=mode)
        values = mx.dequantize(packed, scales, mode=mode, dtype=mx.float32)
        row = " ".join([to_hex(np.array(packed)), to_hex(np.array(scales)), "-", to_hex(np.array(values))])
        out.write(f"{mode} {bits} {group} U8 {row}\n")
