#!/usr/bin/env python3
"""Let llama.cpp (PyPI xllamacpp, unpacked) run each GGUF and compare its log-probabilities with the golden's.

    judge_gguf.py --xllamacpp DIR --gguf DIR --goldens DIR [family ...]

Give it f32 files; fp32 KV cache, no flash attention. One process per model, for llama.cpp may abort.
llama.cpp's gelu is a table in half precision, so families with gelu agree to about 1e-3 only.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--xllamacpp", required=True)
parser.add_argument("--gguf", type=Path, required=True)
parser.add_argument("--goldens", type=Path, required=True)
parser.add_argument("--child", help=argparse.SUPPRESS)
parser.add_argument("family", nargs="*")
args = parser.parse_args()


def child(path):
    """Read {name: token ids} from stdin, print {name: {token id: log-probability}}."""
    sys.path.insert(0, args.xllamacpp)
    import xllamacpp as x

    p = x.CommonParams()
    p.model.path, p.warmup, p.n_ctx, p.n_parallel, p.cpuparams.n_threads = path, False, 512, 1, 1
    p.cache_type_k = p.cache_type_v = x.ggml_type.GGML_TYPE_F32
    p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server, out = x.Server(p), {}
    for name, ids in json.load(sys.stdin).items():
        for seed in range(20):  # an end-of-text token comes back without log-probabilities: draw again
            r = server.handle_completions(
                dict(
                    prompt=ids,
                    n_predict=1,
                    n_probs=100000,
                    temperature=1.0,
                    samplers=["temperature"],
                    seed=seed,
                    cache_prompt=False,
                )
            )
            content = (r["choices"][0].get("logprobs") or {}).get("content")
            if content:
                break
        out[name] = {t["id"]: t["logprob"] for t in content[0]["top_logprobs"]}
    print("\nRESULT " + json.dumps(out), flush=True)


def judge(path, golden):
    from safetensors.numpy import load_file

    g = load_file(golden / "golden.safetensors")
    command = [
        sys.executable,
        __file__,
        "--xllamacpp",
        args.xllamacpp,
        "--gguf",
        ".",
        "--goldens",
        ".",
        "--child",
        str(path),
    ]
    try:
        r = subprocess.run(
            command,
            input=json.dumps({k: g["prompt_" + k].tolist() for k in "ab"}),
            capture_output=True,
            text=True,
            timeout=60,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return "FAIL", "timeout"
    result = next((line for line in r.stdout.splitlines() if line.startswith("RESULT ")), None)
    if result is None:
        errors = [
            line
            for line in (r.stderr + r.stdout).splitlines()
            if " E " in line or "assert" in line.lower() or "error" in line.lower()
        ]
        return "FAIL", (errors or ["no result"])[0][-200:]
    got, far = json.loads(result[7:]), {}
    for k in "ab":
        logits = g["logits_" + k][-1].astype(np.float64)
        expected = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        far[k] = max(abs(got[k][str(i)] - v) for i, v in enumerate(expected))
    verdict = "OK  " if max(far.values()) < 5e-5 else "GELU" if max(far.values()) < 5e-3 else "DIFF"
    return verdict, f"a {far['a']:.0e} b {far['b']:.0e}"


if args.child:
    child(args.child)
    sys.exit()
for path in sorted(args.gguf.glob("*.gguf")):
    if not args.family or path.stem in args.family:
        verdict, note = judge(path, args.goldens / path.stem)
        print(f"{verdict} {path.stem:18s} {note}", flush=True)
