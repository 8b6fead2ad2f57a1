"""Checks adapters that mlx-lm and peft have trained: each trains five steps on a tiny model, and the
files it writes must give the same logits in Loquat as in the program that wrote them.

mlx-lm trains by its own command, LoRA and DoRA. With the argument `peft`, peft trains instead. It needs
torch, which is large, so that only `cargo xtask test --full` does so, in an environment of its own
(`judges/peft.txt`).
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.update(MLX_DISABLE_COMPILE="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

import numpy as np

import loquat

BASES = loquat.ROOT / "crates/testkit/goldens-lora/base"
STEPS = 5
# Prompts of the tiny models, as token ids.
PROMPTS = [[5, 40, 77, 12, 9, 130, 64, 201], [33] * 12, list(range(60, 100))]
# The largest difference, relative to the largest logit. Another order of summation gives about 1e-6.
TOLERANCE = 1e-4
# Training must have changed the answer by more, or nothing is compared.
CHANGE = 100 * TOLERANCE


def run(words, **options):
    done = subprocess.run(words, capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{words}: failed ({done.returncode}):\n{done.stdout}\n{done.stderr}")
    return done.stdout


def compare(verdict, name, base, adapter, expected):
    """Compares Loquat's logits with the trainer's, for each prompt."""
    cases = [{"model": str(base), "ids": ids, "logits": True} for ids in PROMPTS]
    adapted = [case | {"adapter": str(adapter)} for case in cases]
    answers = loquat.run_example("top", cases + adapted)
    plain, found = answers[: len(cases)], answers[len(cases) :]
    for ids, plain, found, expected in zip(PROMPTS, plain, found, expected, strict=True):
        plain, found = np.array(plain["logits"]), np.array(found["logits"])
        largest = np.abs(expected).max()
        difference = np.abs(found - expected).max() / largest
        case = f"{name}, {len(ids)} tokens, difference {difference:.1e}"
        verdict.expect("the trainer's logits", case, bool(difference < TOLERANCE), True)
        change = np.abs(plain - expected).max() / largest
        case = f"{name}, {len(ids)} tokens, change {change:.1e}"
        verdict.expect("training changed them", case, bool(change > CHANGE), True)


def write_f32(base, folder):
    """A copy of the model in f32, so that rounding does not hide differences."""
    out = folder / "f32"
    if not out.exists():
        words = [loquat.binary(), "convert", str(base), "--to", "safetensors", "--quant", "f32"]
        run([*words, "--dtype", "f32", "--output", str(out)])
        for name in ["tokenizer.json", "tokenizer_config.json"]:
            # Only models that mlx-lm trains have them.
            if (base / name).exists():
                (out / name).write_bytes((base / name).read_bytes())
    return out


def write_older_config(folder):
    """Writes the config as transformers 4 does: mlx-lm ignores `rope_parameters`."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = scaling
    path.write_text(json.dumps(config))


def train_mlx(base, folder, kind):
    """Trains by mlx-lm's command, which also writes the files."""
    data, out = folder / "data", folder / kind
    data.mkdir(exist_ok=True)
    lines = [json.dumps({"text": f"The song number {n} is about the sea."}) for n in range(8)]
    for name in ["train", "valid", "test"]:
        (data / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    config = folder / f"{kind}.json"
    # JSON is YAML.
    config.write_text(json.dumps({"lora_parameters": {"rank": 4, "scale": 8.0, "dropout": 0.0}}))
    words = [sys.executable, "-m", "mlx_lm", "lora", "--train", "--model", str(base)]
    words += ["--data", str(data), "--adapter-path", str(out), "--config", str(config)]
    words += ["--fine-tune-type", kind, "--iters", str(STEPS), "--batch-size", "2"]
    words += ["--num-layers", "2", "--learning-rate", "1e-2", "--max-seq-length", "64"]
    words += ["--val-batches", "1", "--steps-per-report", "5", "--seed", "7"]
    run(words, cwd=folder)
    return out


def judge_mlx(verdict, folder):
    import mlx.core as mx
    from mlx_lm.utils import load_adapters, load_model

    base = write_f32(BASES / "llama", folder)
    write_older_config(base)
    for kind in ["lora", "dora"]:
        adapter = train_mlx(base, folder, kind)
        model, _ = load_model(base)
        model = load_adapters(model, str(adapter))
        model.eval()
        logits = [np.array(model(mx.array([ids]))[0, -1].astype(mx.float32)) for ids in PROMPTS]
        compare(verdict, f"mlx-lm {kind}", base, adapter, logits)


PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# What peft trains: base, and the fields of its config.
PEFT = {
    "LoRA": ("llama", {"target_modules": PROJECTIONS}),
    "rsLoRA of two matrices": ("qwen3", {"target_modules": ["q_proj", "v_proj"], "use_rslora": True}),
    "DoRA": ("llama", {"target_modules": PROJECTIONS, "use_dora": True}),
    "embedding and head": ("llama", {"target_modules": ["embed_tokens", "lm_head", "v_proj"]}),
    "DoRA of embedding and head": (
        "llama",
        {"target_modules": ["embed_tokens", "lm_head", "down_proj"], "use_dora": True},
    ),
    "norms": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["norm"]}),
}


def train_peft(base, out, fields):
    """Trains with peft, and returns its logits."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    vocabulary = model.config.vocab_size
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **fields))
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    for _ in range(STEPS):
        ids = torch.randint(vocabulary, (2, 24))
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    model.save_pretrained(out)
    with torch.no_grad():
        return [model(input_ids=torch.tensor([ids])).logits[0, -1].numpy() for ids in PROMPTS]


def judge_peft(verdict, folder):
    for name, (model, fields) in PEFT.items():
        own = folder / model
        own.mkdir(exist_ok=True)
        base = write_f32(BASES / model, own)
        out = own / name.replace(" ", "_")
        compare(verdict, f"peft {name}", base, out, train_peft(base, out, fields))


def main():
    judge = judge_peft if sys.argv[1:] == ["peft"] else judge_mlx
    verdict = loquat.Verdict("adapters")
    with tempfile.TemporaryDirectory() as folder:
        judge(verdict, Path(folder))
    verdict.end()


if __name__ == "__main__":
    main()
