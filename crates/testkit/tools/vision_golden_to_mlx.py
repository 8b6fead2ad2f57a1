#!/usr/bin/env python3
"""Convert vision goldens as mlx-vlm does, and record what it computes from quantized ones.

    vision_golden_to_mlx.py --goldens DIR --out DIR      (pip install mlx-cpu mlx-vlm transformers)

DIR is `goldens-vision`. OUT/<family>/ is converted only: transformers' results hold. OUT/<family>__<what>/ is
quantized; its golden.safetensors has what mlx-vlm computes from the files, with every floating parameter cast to fp32.
Only families for which mlx-vlm agrees with transformers before it quantizes are judged by it, which is checked.
"""

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path

os.environ.update(MLX_DISABLE_COMPILE="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_vlm.quant_utils import quantize_model
from mlx_vlm.utils import load_model, skip_multimodal_module

mx.set_default_device(mx.cpu)
AGREES = 1e-4
CASES = ("one", "two", "text")
KEPT = ("input_ids", "pixel_values", "image_grid_thw", "image_features", "deepstack_0", "deepstack_1", "deepstack_2")
# Modules outside of the tower, as `mlx_vlm.convert` does it, or all whose rows are whole groups.
TEXT = {"bits": 4, "predicate": lambda path, module: not skip_multimodal_module(path)}
ALL = {"bits": 8, "predicate": lambda path, module: module.weight.shape[-1] % 32 == 0}
CONVERTED = ("glm4v", "idefics3")
QUANTIZED = (("qwen3_vl", "affine4_text", TEXT), ("qwen2_5_vl", "affine8_all", ALL))


def loadable(config):
    """The config with fields that mlx-vlm 0.7.10 reads from other places than transformers 5 writes."""
    config = json.loads(json.dumps(config))
    text, vision = config["text_config"], config["vision_config"]
    for part in (text, vision):
        rope = part.get("rope_parameters") or {}
        part.setdefault("rope_theta", rope.get("rope_theta", 10000.0))
    if text.get("rope_parameters"):
        rope = text["rope_parameters"]
        text["rope_scaling"] = {**rope, "type": rope.get("rope_type", "default")}
    vision["model_type"] = config["model_type"]
    for field, value in text.items():
        config.setdefault(field, value)
    return config


def load(weights, config, exact):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        shutil.copy(weights, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(loadable(config)))
        model = load_model(folder)
    if exact:
        wide = lambda x: x.astype(mx.float32) if mx.issubdtype(x.dtype, mx.floating) else x
        model.update(tree_map(wide, model.parameters()))
    model.eval()
    return model


def logits(model, arrays, case, ids):
    pixels = arrays.get(f"{case}.pixel_values")
    more = {}
    if pixels is not None:
        more = {"image_grid_thw": arrays[f"{case}.image_grid_thw"]}
    # mlx-vlm keeps the positions of the last prompt.
    model.language_model._position_ids = model.language_model._rope_deltas = None
    out = model(ids, pixels, mx.ones_like(ids), **more).logits
    return out.astype(mx.float32).reshape(-1, out.shape[-1])


def results(model, arrays, case):
    ids = arrays[f"{case}.input_ids"].astype(mx.int32).reshape(1, -1)
    whole = logits(model, arrays, case, ids)
    greedy, greedy_logits = [], []
    for _ in arrays[f"{case}.greedy_ids"].tolist():
        last = logits(model, arrays, case, ids)[-1:]
        greedy_logits.append(last)
        greedy.append(mx.argmax(last, axis=-1).astype(mx.int32))
        ids = mx.concatenate([ids, greedy[-1].reshape(1, 1)], axis=1)
    return {"logits": whole, "greedy_ids": mx.concatenate(greedy), "greedy_logits": mx.concatenate(greedy_logits)}


def write(folder, model, config):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--goldens", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    for family in CONVERTED:
        source = args.goldens / family
        config = json.loads((source / "config.json").read_text())
        write(args.out / family, load(source / "model.safetensors", config, exact=False), config)
    for family, what, quant in QUANTIZED:
        source, folder = args.goldens / family, args.out / f"{family}__{what}"
        config = json.loads((source / "config.json").read_text())
        arrays = mx.load(str(source / "golden.safetensors"))
        plain = load(source / "model.safetensors", config, exact=True)
        for case in CASES:
            ids = arrays[f"{case}.input_ids"].astype(mx.int32).reshape(1, -1)
            off = mx.abs(logits(plain, arrays, case, ids) - arrays[f"{case}.logits"].reshape(-1, config["text_config"]["vocab_size"])).max().item()
            assert off < AGREES, (family, case, off)
        model = load(source / "model.safetensors", config, exact=False)

        def predicate(path, module):
            return hasattr(module, "to_quantized") and quant["predicate"](path, module)

        model, quantized = quantize_model(model, dict(config), 32, quant["bits"], mode="affine", quant_predicate=predicate)
        table = {key: quantized[key] for key in ("quantization", "quantization_config") if key in quantized}
        write(folder, model, {**config, **table})
        judge = load(folder / "model.safetensors", {**config, **table}, exact=True)
        kept = {}
        for case in CASES:
            own = {name: arrays[f"{case}.{name}"] for name in KEPT if f"{case}.{name}" in arrays}
            if quant is ALL and "pixel_values" in own:
                own["image_features"] = judge.vision_tower(own["pixel_values"], own["image_grid_thw"])
            own.update(results(judge, arrays, case))
            kept.update({f"{case}.{name}": mx.contiguous(value) for name, value in own.items()})
        mx.save_safetensors(str(folder / "golden.safetensors"), kept)
        info = json.loads((source / "golden.json").read_text())
        kept_info = {"model_type": info["model_type"], "placeholder_ids": info["placeholder_ids"]}
        (folder / "golden.json").write_text(json.dumps(kept_info, indent=1) + "\n")


if __name__ == "__main__":
    main()
