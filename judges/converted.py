"""Converted models, checked with the programs that load them: `mlx-lm`, llama.cpp (`xllamacpp`), and
the quantizers of `mlx` and `gguf`.

SmolLM2 is converted to safetensors, then to MLX and GGUF in several types. Each result must contain
the bytes that the format's own quantizer makes of the same weights, load in the format's own engine,
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
# Plain and scaled rope, partial and by layer; latent attention; experts.
TINY = ["llama", "qwen2", "qwen3", "gemma3_text", "deepseek_v2", "qwen3_moe", "phi3", "glm4"]
# Relative to the largest logit. Sums in another order differ by some 1e-6 of it, Gemma's GELU in mlx
# by 4e-4; eight bits of a random model's weights by some hundredths.
NEAR = {"f32": 1e-3, "q8": 0.1}
REAL = loquat.ROOT.parent / "shared" / "goldens-real" / "smollm2-135m.json"
MLX = ["q4", "q8", "mxfp4"]
GGUF = ["q4_0", "q4_1", "q8_0", "q4_k"]
# How many of the real goldens' prompts are used, and how many tokens of each.
CASES = 6
LONGEST = 12
# mlx on a CPU computes only about seven tokens per second.
LONGEST_MLX = 4
# Fewer positions than this prove nothing: of nine prompts, some end in a tie or in the text's end.
LEAST = 3
# With a smaller lead, two engines may choose differently: llama.cpp rounds activations to 8 bits.
TIE = {"mlx": 0.02, "gguf": 0.25}
# Our own, for a machine without the real goldens.
PROMPTS = ["The capital of France is", "1, 2, 3, 4, 5,", "def add(a, b):\n    return"]
# Arguments of `mx.quantize`: type, group size, bits, mode.
MODES = [(f"q{bits}", group, bits, "affine") for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64)]
MODES += [("mxfp4", 32, 4, "mxfp4"), ("mxfp8", 32, 8, "mxfp8"), ("nvfp4", 16, 4, "nvfp4")]
BLOCKS = {name: gguf.GGMLQuantizationType[name.upper()] for name in ("q4_0", "q4_1", "q8_0")}


def convert(source, target, quant, out, *more):
    command = [loquat.command(), "convert", str(source), "--to", target, "--quant", quant]
    command += ["--output", str(out), "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, cwd=loquat.ROOT, timeout=300)
    if done.returncode:
        sys.exit(f"converted: {target} {quant}: {done.stderr}")
    return json.loads(done.stdout)


def bytes_of(array):
    return np.array(mx.view(mx.contiguous(array), mx.uint8)).tobytes()


def mlx_bytes(verdict, plain, folder, mode):
    """Every quantized tensor of the folder against `mx.quantize` of the same weights."""
    group, bits, kind = mode
    modules = [name.removesuffix(".scales") for name in folder if name.endswith(".scales")]
    if not modules:
        sys.exit(f"converted: {kind} {bits} g{group}: nothing was quantized")
    for module in modules:
        theirs = mx.quantize(plain[module + ".weight"], group_size=group, bits=bits, mode=kind)
        for array, name in zip(theirs, ("weight", "scales", "biases")):
            ours = folder[f"{module}.{name}"]
            same = bytes_of(ours) == bytes_of(array)
            verdict.expect(f"bytes of mx.quantize, {kind} {bits} g{group}", f"{module}.{name}", same, True)


def gguf_bytes(verdict, plain, path, quant):
    """Tensors that are not reordered against `gguf.quants.quantize` of the same weights."""
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for layer in range(2):
        for ours, theirs in (("attn_v", "self_attn.v_proj"), ("ffn_down", "mlp.down_proj")):
            values = plain[f"model.layers.{layer}.{theirs}.weight"].astype(mx.float32)
            wanted = gguf.quants.quantize(np.array(values), BLOCKS[quant])
            found = reader[f"blk.{layer}.{ours}.weight"].data
            same = wanted.tobytes() == found.tobytes()
            verdict.expect(f"bytes of gguf, {quant}", f"blk.{layer}.{ours}", same, True)


def prompts(folder):
    """Token ids: our own prompts', and the real goldens' if they are present."""
    tokenizer = load_tokenizer(folder)
    ids = [tokenizer.encode(text) for text in PROMPTS]
    if not REAL.is_file():
        print("  skipped: the prompts of ../shared/goldens-real are missing")
        return ids
    cases = json.loads(REAL.read_text(encoding="utf-8"))["cases"]
    for case in cases:
        if case["kind"] == "text" and tokenizer.encode(case["text"]) != case["ids"]:
            sys.exit(f"converted: the tokenizer splits {case['text']!r} differently than the golden")
    return ids + [case["ids"][:LONGEST] for case in cases[:CASES]]


def compare(verdict, subject, ours, theirs, tie):
    """`theirs` may omit positions (None); if our lead is small, either choice is right."""
    compared = 0
    for prompt, (our, their) in enumerate(zip(ours, theirs)):
        for at, (top, margin, found) in enumerate(zip(our["top"], our["margin"], their)):
            if found is not None and margin > tie:
                verdict.expect(subject, f"prompt {prompt}, position {at}", top, found)
                compared += 1
    verdict.expect(subject, f"{compared} positions compared, at least {LEAST}", compared >= LEAST, True)


def tops(model, ids):
    cases = [dict(model=str(model), ids=prompt) for prompt in ids]
    return loquat.ask("top", cases, seconds=300)


def mlx_model(folder):
    """In f32, so that a difference comes from the model and not from rounding."""
    model, _ = load_model(folder)
    wide = lambda p: p.astype(mx.float32) if mx.issubdtype(p.dtype, mx.floating) else p
    model.update(tree_map(wide, model.parameters()))
    return model


def mlx_logits(verdict, scratch):
    """Tiny models, converted, against the logits that transformers gave."""
    for name in TINY:
        golden = mx.load(str(GOLDENS / name / "golden.safetensors"))
        prompt, wanted = golden["prompt_b"].astype(mx.int32), golden["logits_b"]
        for quant, near in NEAR.items():
            out = scratch / f"{name}-{quant}"
            more = ["--group-size", "32"] if quant == "q8" else []
            convert(GOLDENS / name, "mlx", quant, out, *more)
            found = mlx_model(out)(prompt[None])[0]
            apart = mx.abs(found - wanted).max() / mx.abs(wanted).max()
            verdict.expect(f"logits in mlx-lm, {quant}", f"{name}: {apart.item():.2e}", apart.item() < near, True)


def mlx_tops(folder, ids):
    model = mlx_model(folder)
    return [mx.argmax(model(mx.array(prompt)[None])[0], axis=-1).tolist() for prompt in ids]


def llama_cpp_tops(path, ids):
    """Only after each prompt's last token. In a process of its own, because llama.cpp may abort."""
    done = subprocess.run(
        [sys.executable, __file__, "--llama-cpp", str(path)],
        input=json.dumps(ids), capture_output=True, text=True, errors="replace", timeout=300,
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("TOPS ")), None)
    if line is None:
        sys.exit(f"converted: llama.cpp does not load {path.name}:\n{done.stderr[-2000:]}")
    tops = json.loads(line.removeprefix("TOPS "))
    return [[None] * (len(prompt) - 1) + [top] for prompt, top in zip(ids, tops)]


def llama_cpp(path):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.warmup, params.n_ctx, params.n_parallel = path, False, 512, 1
    server, tops = xllamacpp.Server(params), []
    for prompt in json.load(sys.stdin):
        ask = dict(prompt=prompt, n_predict=1, n_probs=1, temperature=0.0, cache_prompt=False)
        # A token that ends the text has no id in the answer, and is not compared.
        answer = server.handle_completions(ask)
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
        short = [prompt[:LONGEST_MLX] for prompt in ids]
        for quant in MLX:
            out = scratch / quant
            convert(source, "mlx", quant, out)
            theirs = mlx_tops(out, short)
            compare(verdict, f"top-1 of mlx-lm, {quant}", tops(out, short), theirs, TIE["mlx"])
        for quant in GGUF:
            out = scratch / f"{quant}.gguf"
            convert(source, "gguf", quant, out)
            if quant in BLOCKS:
                gguf_bytes(verdict, plain, out, quant)
            theirs = llama_cpp_tops(out, ids)
            compare(verdict, f"top-1 of llama.cpp, {quant}", tops(out, ids), theirs, TIE["gguf"])
    verdict.end()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--llama-cpp"]:
        llama_cpp(sys.argv[2])
    else:
        main()
