"""Compares Loquat's MLX backend with mlx-lm on one machine, in one run: prompt and decode speed of
random-weight models at several batch sizes.

    python compare_mlx_lm.py LOQUAT SHAPE:FORMAT... [--prompt 512] [--decode 128] [--batch 1 8]

LOQUAT is the program, built with the feature `mlx`. Formats are bf16, mlx8 and mlx4. Both run
greedily; mlx-lm generates its own random weights of the same shape. The engines alternate, model by
model; each number is the median of the rounds after a warm-up round. Needs mlx, mlx-lm and
their dependencies.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import BatchGenerator, generate_step
from mlx_lm.models import llama

LLAMA_3 = {
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "vocab_size": 128256,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
}
SHAPES = {
    "llama-1b": LLAMA_3
    | {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "llama-8b": LLAMA_3
    | {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
}
BITS = {"bf16": None, "mlx8": 8, "mlx4": 4}


def build(shape, form):
    model = llama.Model(llama.ModelArgs.from_dict(SHAPES[shape]))
    model.set_dtype(mx.bfloat16)
    if BITS[form]:
        nn.quantize(model, group_size=64, bits=BITS[form])
    mx.eval(model.parameters())
    return model


def prompts(shape, batch, length):
    vocab = SHAPES[shape]["vocab_size"]
    return [[(7 * i + 13 * row) % vocab for i in range(length)] for row in range(batch)]


def one(model, prompt, decode):
    """Prompt and decode speed, in tokens a second, of a single sequence."""
    start = time.perf_counter()
    tokens = generate_step(mx.array(prompt), model, max_tokens=decode + 1)
    next(tokens)
    first = time.perf_counter()
    count = sum(1 for _ in tokens)
    end = time.perf_counter()
    return len(prompt) / (first - start), count / (end - first)


def many(model, rows, decode):
    """The same of a batch, as mlx-lm counts them itself."""
    generator = BatchGenerator(
        model,
        max_tokens=decode + 1,
        completion_batch_size=len(rows),
        prefill_batch_size=len(rows),
    )
    alive = set(generator.insert(rows))
    started = None
    count = 0
    begun = time.perf_counter()
    while alive:
        responses = generator.next_generated()
        now = time.perf_counter()
        if responses and started is None:
            started = now
        elif responses:
            count += len(responses)
        alive -= {r.uid for r in responses if r.finish_reason is not None}
    generator.close()
    prompt = sum(len(row) for row in rows)
    return prompt / (started - begun), count / (now - started)


def mlx_lm(shape, form, args):
    model = build(shape, form)
    speeds = {}
    for batch in args.batch:
        rows = prompts(shape, batch, args.prompt)
        rounds = []
        for _ in range(args.rounds + 1):
            if batch == 1:
                rounds.append(one(model, rows[0], args.decode))
            else:
                rounds.append(many(model, rows, args.decode))
        speeds[batch] = [statistics.median(part) for part in zip(*rounds[1:])]
    del model
    mx.clear_cache()
    return speeds


def loquat(shape, form, args):
    """Prompt speed at batch one, decode speed at every batch, through the engine and bare."""
    command = [args.loquat, "bench", "--synthetic", f"{shape}:{form}", "--backend", "mlx"]
    command += ["--json", "--rounds", str(args.rounds), "--depth", str(args.prompt)]
    command += ["--prompt-tokens", str(args.prompt), "--decode-tokens", str(args.decode)]
    command += ["--batch", ",".join(map(str, args.batch))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    speeds = {}
    for result in json.loads(done.stdout)["results"]:
        key = "prompt" if result["work"] == "prompt" else result["batch"]
        speeds[key] = (result["engine_tokens_per_second"], result["session_tokens_per_second"])
    return speeds


def rows(model, theirs, ours, args):
    """The table's lines: their speed, ours through the engine, the ratio, ours bare."""
    works = [("prompt", theirs[1][0], ours["prompt"])] if 1 in args.batch else []
    works += [(f"decode, batch {b}", theirs[b][1], ours[b]) for b in args.batch]
    for name, their, (engine, session) in works:
        yield f"| {model} | {name} | {their:.0f} | {engine:.0f} | {engine / their:.2f} | {session:.0f} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loquat")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=128)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print("| model | work | mlx-lm | loquat | ratio | bare session |")
    print("|---|---|---|---|---|---|", flush=True)
    for model in args.models:
        shape, form = model.split(":")
        theirs = mlx_lm(shape, form, args)
        ours = loquat(shape, form, args)
        print("\n".join(rows(model, theirs, ours, args)), flush=True)


if __name__ == "__main__":
    main()
