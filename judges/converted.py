"""Checks converted models with the programs that load them: `mlx-lm`, llama.cpp (`xllamacpp`), and
the quantizers of `mlx` and `gguf`.

SmolLM2 is converted to safetensors, then to MLX and GGUF in several types. Each result must contain
the bytes that the reference quantizer of the format produces from the same weights, load in its engine,
and give the same next tokens there as in Loquat. Tiny models of several families are converted to MLX
and must give transformers' logits in mlx-lm.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.update(MLX_DISABLE_COMPILE="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

import gguf
import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.utils import load_model, load_tokenizer

import loquat

MODEL = "smollm2:135m"
GOLDENS = loquat.ROOT / "crates/testkit/goldens"
GOLDEN = GOLDENS / "llama"
# Plain, scaled, partial and per-layer RoPE; latent attention; experts.
TINY = ["llama", "qwen2", "qwen3", "gemma3_text", "deepseek_v2", "qwen3_moe", "phi3", "glm4"]
# Tolerances relative to the largest logit. Another order of summation gives about 1e-6, Gemma's GELU
# in mlx 4e-4, and 8-bit weights of a random model a few hundredths.
TOLERANCE = {"f32": 1e-3, "q8": 0.1}
REAL = loquat.ROOT.parent / "shared" / "goldens-real" / "smollm2-135m.json"
MLX = ["q4", "q8", "mxfp4"]
GGUF = ["q4_0", "q4_1", "q8_0", "q4_k"]
# How many prompts of the real goldens are used, and how many tokens of each.
CASES = 6
MAX_TOKENS = 12
# mlx on a CPU computes only about seven tokens per second.
MAX_TOKENS_MLX = 4
# The minimum number of compared positions: of nine prompts, some end in a tie or at the end of text.
MIN_POSITIONS = 3
# With a smaller margin two engines may choose different tokens: llama.cpp rounds activations to 8 bits.
TIE = {"mlx": 0.02, "gguf": 0.25}
# Used in addition to the real goldens, which may be missing.
PROMPTS = ["The capital of France is", "1, 2, 3, 4, 5,", "def add(a, b):\n    return"]
# Arguments of `mx.quantize`: type, group size, bits, mode.
MODES = [(f"q{bits}", group, bits, "affine") for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64)]
MODES += [("mxfp4", 32, 4, "mxfp4"), ("mxfp8", 32, 8, "mxfp8"), ("nvfp4", 16, 4, "nvfp4")]
BLOCKS = {name: gguf.GGMLQuantizationType[name.upper()] for name in ("q4_0", "q4_1", "q8_0")}


def convert(source, target, quant, out, *more):
    command = [loquat.binary(), "convert", str(source), "--to", target, "--quant", quant]
    command += ["--output", str(out), "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, cwd=loquat.ROOT, timeout=300)
    if done.returncode:
        sys.exit(f"converted: {target} {quant}: {done.stderr}")
    return json.loads(done.stdout)


def to_bytes(array):
    return np.array(mx.view(mx.contiguous(array), mx.uint8)).tobytes()


def mlx_bytes(verdict, plain, folder, mode):
    """Compares every quantized tensor of the folder with `mx.quantize` of the same weights."""
    group, bits, kind = mode
    modules = [name.removesuffix(".scales") for name in folder if name.endswith(".scales")]
    if not modules:
        sys.exit(f"converted: {kind} {bits} g{group}: no tensor was quantized")
    for module in modules:
        expected = mx.quantize(plain[module + ".weight"], group_size=group, bits=bits, mode=kind)
        for array, name in zip(expected, ("weight", "scales", "biases")):
            found = folder[f"{module}.{name}"]
            same = to_bytes(found) == to_bytes(array)
            verdict.expect(f"bytes of mx.quantize, {kind} {bits} g{group}", f"{module}.{name}", same, True)


def gguf_bytes(verdict, plain, path, quant):
    """Compares tensors that are not reordered with `gguf.quants.quantize` of the same weights."""
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for layer in range(2):
        for gguf_name, hf_name in (("attn_v", "self_attn.v_proj"), ("ffn_down", "mlp.down_proj")):
            values = plain[f"model.layers.{layer}.{hf_name}.weight"].astype(mx.float32)
            expected = gguf.quants.quantize(np.array(values), BLOCKS[quant])
            found = reader[f"blk.{layer}.{gguf_name}.weight"].data
            same = expected.tobytes() == found.tobytes()
            verdict.expect(f"bytes of gguf, {quant}", f"blk.{layer}.{gguf_name}", same, True)


def prompts(folder):
    """Token IDs of the fixed prompts, and of the real goldens if they are present."""
    tokenizer = load_tokenizer(folder)
    ids = [tokenizer.encode(text) for text in PROMPTS]
    if not REAL.is_file():
        print("  skipped: the prompts of ../shared/goldens-real are missing")
        return ids
    cases = json.loads(REAL.read_text(encoding="utf-8"))["cases"]
    for case in cases:
        if case["kind"] == "text" and tokenizer.encode(case["text"]) != case["ids"]:
            sys.exit(f"converted: the tokenizer splits {case['text']!r} differently than the golden")
    return ids + [case["ids"][:MAX_TOKENS] for case in cases[:CASES]]


def compare(verdict, subject, loquat_tops, reference_tops, tie):
    """Skips positions that the reference omits (None) and those with a small margin."""
    compared = 0
    for prompt, (answer, reference) in enumerate(zip(loquat_tops, reference_tops)):
        for at, (top, margin, found) in enumerate(zip(answer["top"], answer["margin"], reference)):
            if found is not None and margin > tie:
                verdict.expect(subject, f"prompt {prompt}, position {at}", top, found)
                compared += 1
    verdict.expect(subject, f"{compared} positions compared, at least {MIN_POSITIONS}", compared >= MIN_POSITIONS, True)


def tops(model, ids):
    cases = [dict(model=str(model), ids=prompt) for prompt in ids]
    return loquat.run_example("top", cases, seconds=300)


def mlx_model(folder):
    """In f32, so that a difference comes from the model and not from rounding."""
    model, _ = load_model(folder)
    wide = lambda p: p.astype(mx.float32) if mx.issubdtype(p.dtype, mx.floating) else p
    model.update(tree_map(wide, model.parameters()))
    return model


def mlx_logits(verdict, scratch):
    """Compares converted tiny models in mlx-lm with the logits of transformers."""
    for name in TINY:
        golden = mx.load(str(GOLDENS / name / "golden.safetensors"))
        prompt, expected = golden["prompt_b"].astype(mx.int32), golden["logits_b"]
        for quant, tolerance in TOLERANCE.items():
            out = scratch / f"{name}-{quant}"
            more = ["--group-size", "32"] if quant == "q8" else []
            convert(GOLDENS / name, "mlx", quant, out, *more)
            found = mlx_model(out)(prompt[None])[0]
            difference = mx.abs(found - expected).max() / mx.abs(expected).max()
            verdict.expect(f"logits in mlx-lm, {quant}", f"{name}: {difference.item():.2e}", difference.item() < tolerance, True)


def mlx_tops(folder, ids):
    model = mlx_model(folder)
    return [mx.argmax(model(mx.array(prompt)[None])[0], axis=-1).tolist() for prompt in ids]


def llama_cpp_tops(path, ids):
    """The token after each prompt. Runs in a separate process, because llama.cpp may abort."""
    done = subprocess.run(
        [sys.executable, __file__, "--llama-cpp", str(path)],
        input=json.dumps(ids), capture_output=True, text=True, errors="replace", timeout=300,
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("TOPS ")), None)
    if line is None:
        sys.exit(f"converted: llama.cpp cannot load {path.name}:\n{done.stderr[-2000:]}")
    tops = json.loads(line.removeprefix("TOPS "))
    return [[None] * (len(prompt) - 1) + [top] for prompt, top in zip(ids, tops)]


def llama_cpp(path):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.warmup, params.n_ctx, params.n_parallel = path, False, 512, 1
    server, tops = xllamacpp.Server(params), []
    for prompt in json.load(sys.stdin):
        request = dict(prompt=prompt, n_predict=1, n_probs=1, temperature=0.0, cache_prompt=False)
        # A token that ends the text has no id in the answer, and is not compared.
        answer = server.handle_completions(request)
        content = (answer["choices"][0].get("logprobs") or {}).get("content")
        tops.append(content[0]["id"] if content else None)
    print("\nTOPS " + json.dumps(tops), flush=True)


def main():
    verdict = loquat.Verdict("converted")
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        tiny = mx.load(str(GOLDEN / "model.safetensors"))
        for name, group, bits, kind in MODES:
            out = scratch / f"tiny-{name}-{group}"
            more = ["--group-size", str(group)] if kind == "affine" else []
            convert(GOLDEN, "mlx", name, out, *more)
            mlx_bytes(verdict, tiny, mx.load(str(out / "model.safetensors")), (group, bits, kind))
        mlx_logits(verdict, scratch)
        source = scratch / "source"
        convert(MODEL, "safetensors", "bf16", source)
        plain = mx.load(str(source / "model.safetensors"))
        ids = prompts(source)
        short = [prompt[:MAX_TOKENS_MLX] for prompt in ids]
        for quant in MLX:
            out = scratch / quant
            convert(source, "mlx", quant, out)
            reference = mlx_tops(out, short)
            compare(verdict, f"top-1 of mlx-lm, {quant}", tops(out, short), reference, TIE["mlx"])
        for quant in GGUF:
            out = scratch / f"{quant}.gguf"
            convert(source, "gguf", quant, out)
            if quant in BLOCKS:
                gguf_bytes(verdict, plain, out, quant)
            reference = llama_cpp_tops(out, ids)
            compare(verdict, f"top-1 of llama.cpp, {quant}", tops(out, ids), reference, TIE["gguf"])
    verdict.end()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--llama-cpp"]:
        llama_cpp(sys.argv[2])
    else:
        main()
