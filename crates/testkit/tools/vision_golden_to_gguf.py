#!/usr/bin/env python3
"""GGUF of golden checkpoints that read pictures, by llama.cpp's own converter (its `conversion` package, unmodified).

    vision_golden_to_gguf.py --llama-cpp DIR --goldens DIR --out DIR [family ...]

OUT/<family>/<family>.gguf is the text model, OUT/<family>/mmproj-<family>.gguf the tower; matrices are bf16 where the
converter allows, and f32 where bf16 or f16 would round. The vocabulary is the golden's: bytes, and the family's own
tokens. LLaVA's tower has no converter any more; it is written with the keys and names of the one that made the
published files.
"""

import argparse
import json
import logging
import os
import sys
import tempfile
import traceback
import types
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--llama-cpp", type=Path, required=True, help="a llama.cpp source tree")
parser.add_argument("--goldens", type=Path, required=True)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("family", nargs="*")
args = parser.parse_args()
os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1", CUDA_VISIBLE_DEVICES="", NO_LOCAL_GGUF="1")
sys.path[:0] = [str(args.llama_cpp), str(args.llama_cpp / "gguf-py")]

import gguf
import numpy as np
import torch
from conversion import get_model_class
from conversion.base import MmprojModel
from safetensors.torch import load_file, save_file

logging.basicConfig(level=logging.ERROR)
torch.set_num_threads(1)
FILE_TYPES = dict(bf16=gguf.LlamaFileType.MOSTLY_BF16, f32=gguf.LlamaFileType.ALL_F32)

SKIP = {
    "paligemma": "llama.cpp has no such projector",
    "llama4": "the text model: chunk 8192, temperature scale and every fourth layer full are fixed in llama.cpp",
    "llava_onevision": "no converter writes its tiles and rows' ends as the model has them",
}

# The classes of text models under their own names.
TEXT = {
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "glm4v_text": "Glm4vForConditionalGeneration",
    "lfm2": "Lfm2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_vl_text": "Qwen2VLForConditionalGeneration",
    "qwen2_5_vl_text": "Qwen2_5_VLForConditionalGeneration",
    "qwen3_vl_text": "Qwen3VLForConditionalGeneration",
    "qwen3_vl_moe_text": "Qwen3VLMoeForConditionalGeneration",
    "qwen3_5_text": "Qwen3_5ForConditionalGeneration",
}

# Where the converter looks for a tower's tensors, if transformers 5 saves them elsewhere.
TOWER = {
    "gemma3": {"vision_tower.": "vision_tower.vision_model."},
    "internvl": {"vision_tower.": "model.vision_tower.", "multi_modal_projector.": "model.multi_modal_projector."},
    "lfm2_vl": {"model.vision_tower.": "model.vision_tower.vision_model."},
}
TOWER_CLASS = {"internvl": "InternVisionModel"}

ROOTS = ("model.language_model.", "model.text_model.", "language_model.model.")


def text_name(name):
    for root in ROOTS:
        if name.startswith(root):
            return "model." + name[len(root) :]
    if name.startswith("language_model."):
        return name.removeprefix("language_model.")
    return name if name.startswith(("lm_head.", "model.embed_tokens.", "model.layers.", "model.norm.")) else None


def vocabulary(tokenizer, count):
    ids = {i: t for t, i in tokenizer["model"]["vocab"].items()}
    added = {t["id"]: t["content"] for t in tokenizer["added_tokens"]}
    tokens = [added.get(i, ids.get(i, f"<|unused_{i}|>")) for i in range(count)]
    control = gguf.TokenType.CONTROL
    kinds = [gguf.TokenType.NORMAL if i in ids and i not in added else control for i in range(count)]
    if count - 1 not in ids and count - 1 not in added:  # without a merge, files do not load
        tokens[-1], kinds[-1] = "ĠĠ", gguf.TokenType.NORMAL
    return tokens, kinds


def set_vocab(tokenizer):
    def write(self):
        tokens, kinds = vocabulary(tokenizer, self.hparams["vocab_size"])
        w = self.gguf_writer
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("default")
        w.add_token_list(tokens)
        w.add_token_types(kinds)
        w.add_token_merges(["Ġ Ġ"] if tokens[-1] == "ĠĠ" else [])
        if self.hparams["model_type"] == "gemma3_text":  # llama.cpp fixes every sixth layer
            w.add_sliding_window_pattern([kind == "sliding_attention" for kind in self.hparams["layer_types"]])
        by_text = {t: i for i, t in enumerate(tokens)}
        # Gemma 4 takes the per-layer inputs of media from this token.
        w.add_pad_token_id(self.hparams.get("pad_token_id", by_text["<|pad|>"]))
        w.add_bos_token_id(by_text["<|bos|>"])
        w.add_eos_token_id(by_text["<|eos|>"])

    return write


def convert_text(golden, folder, out, outtype):
    config = json.loads((golden / "config.json").read_text())
    text = config.pop("text_config")
    text.setdefault("tie_word_embeddings", config.get("tie_word_embeddings", False))
    text["architectures"] = [TEXT[text["model_type"]]]
    text["vision_config"] = config["vision_config"]
    if text["model_type"] == "qwen3_5_text":
        text["model_type"] = "qwen3_5"
    tensors = {text_name(k): v for k, v in load_file(golden / "model.safetensors").items() if text_name(k)}
    tokenizer = json.loads((golden / "tokenizer.json").read_text())
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(text))
    tokens, _ = vocabulary(tokenizer, text["vocab_size"])  # Gemma's converter counts them
    everything = dict(model=dict(type="BPE", vocab={t: i for i, t in enumerate(tokens)}, merges=[]), added_tokens=[])
    (folder / "tokenizer.json").write_text(json.dumps(everything))
    if text["model_type"] == "qwen3_vl_moe_text":  # published files have experts transposed
        tensors = {k: v.permute(0, 2, 1).contiguous() if ".experts." in k else v for k, v in tensors.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    kind = get_model_class(text["architectures"][0], mmproj=False)
    if kind.supports_mtp_export:
        kind.no_mtp = True  # the goldens have no draft layers
    model = kind(folder, FILE_TYPES[outtype], out, hparams=text, model_name=golden.name)
    for m in (model, getattr(model, "impl", model)):
        m.set_vocab = types.MethodType(set_vocab(tokenizer), m)
    with torch.inference_mode():
        model.write()


def convert_tower(golden, folder, out, outtype):
    if golden.name == "llava":
        return write_llava(golden, out)
    config = json.loads((golden / "config.json").read_text())
    tensors = load_file(golden / "model.safetensors")
    for before, after in TOWER.get(golden.name, {}).items():
        tensors = {after + k.removeprefix(before) if k.startswith(before) else k: v for k, v in tensors.items()}
    vision = config["vision_config"]
    if golden.name.startswith("gemma4"):  # the key that the converter asks for
        vision["layer_norm_eps"] = vision["rms_norm_eps"]
    if golden.name == "llama4":
        vision.setdefault("norm_eps", 1e-5)
    if golden.name == "internvl":  # hub configs have it
        config["max_dynamic_patch"] = json.loads((golden / "preprocessor_config.json").read_text())["max_patches"]
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json", "processor_config.json"):
        if (golden / name).exists():
            (folder / name).write_text((golden / name).read_text())
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    kind = get_model_class(TOWER_CLASS.get(golden.name, config["architectures"][0]), mmproj=True)
    if golden.name == "lfm2_vl":
        kind = lfm2_tower(kind, vision["patch_size"])
    model = kind(folder, FILE_TYPES[outtype], out, hparams=config, model_name=golden.name)
    # A projector's matrices are numbered like layers, of which the goldens have too few.
    model.tensor_map = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, max(model.block_count, 8))
    if golden.name == "llama4":  # Gemma 4's norm of the same name took its place in the converter's table
        norm = "vision_model.model.layers.{}.post_attention_layernorm"
        for layer in range(model.block_count):
            named = (gguf.MODEL_TENSOR.V_ENC_POST_ATTN_NORM, f"v.blk.{layer}.ln2")
            model.tensor_map.mapping[norm.format(layer)] = named
    if golden.name == "qwen2_5_vl":  # llama.cpp fixes 112
        model.gguf_writer.add_uint32("clip.vision.window_size", vision["window_size"])
    with torch.inference_mode():
        model.write()


def lfm2_tower(kind, side):
    """The converter's class with another patch than its 16 × 16 pixels."""

    class Tower(kind):
        def modify_tensors(self, data_torch, name, bid):
            if "patch_embedding.weight" not in name:
                yield from super().modify_tensors(data_torch, name, bid)
                return
            data_torch = data_torch.view(data_torch.shape[0], side, side, 3).permute(0, 3, 1, 2)
            yield from MmprojModel.modify_tensors(self, data_torch, name, bid)

    return Tower


def write_llava(golden, out):
    """As tools/mtmd/legacy-models/convert_image_encoder_to_gguf.py of llama.cpp does."""
    config = json.loads((golden / "config.json").read_text())
    vision = config["vision_config"]
    processor = json.loads((golden / "preprocessor_config.json").read_text())
    tensors = load_file(golden / "model.safetensors")
    used = vision["num_hidden_layers"] + 1 + config["vision_feature_layer"]
    w = gguf.GGUFWriter(out, "clip")
    for key, value in {"has_text_encoder": False, "has_vision_encoder": True, "has_llava_projector": True}.items():
        w.add_bool(f"clip.{key}", value)
    w.add_string("clip.projector_type", "mlp")
    numbers = dict(image_size="image_size", patch_size="patch_size", embedding_length="hidden_size")
    for key, field in (numbers | dict(feed_forward_length="intermediate_size")).items():
        w.add_uint32(f"clip.vision.{key}", vision[field])
    w.add_uint32("clip.vision.projection_dim", vision["projection_dim"])
    w.add_uint32("clip.vision.attention.head_count", vision["num_attention_heads"])
    w.add_float32("clip.vision.attention.layer_norm_epsilon", vision["layer_norm_eps"])
    w.add_uint32("clip.vision.block_count", used)
    w.add_array("clip.vision.feature_layer", [used])
    w.add_array("clip.vision.image_mean", processor["image_mean"])
    w.add_array("clip.vision.image_std", processor["image_std"])
    w.add_bool("clip.use_gelu", vision["hidden_act"] == "gelu")
    names = {
        "vision_tower.embeddings.class_embedding": "v.class_embd",
        "vision_tower.embeddings.patch_embedding": "v.patch_embd",
        "vision_tower.embeddings.position_embedding": "v.position_embd",
        "vision_tower.pre_layrnorm": "v.pre_ln",
        "vision_tower.post_layernorm": "v.post_ln",
        "multi_modal_projector.linear_1": "mm.0",
        "multi_modal_projector.linear_2": "mm.2",
    }
    # It has fc1 as ffn_down and fc2 as ffn_up.
    layer = {"layer_norm1": "ln1", "layer_norm2": "ln2", "mlp.fc1": "ffn_down", "mlp.fc2": "ffn_up"}
    layer |= {f"self_attn.{k}_proj": f"attn_{k}" for k in ("q", "k", "v", "out")}
    for index in range(vision["num_hidden_layers"]):
        for theirs, ours in layer.items():
            names[f"vision_tower.encoder.layers.{index}.{theirs}"] = f"v.blk.{index}.{ours}"
    for name, tensor in tensors.items():
        for theirs, ours in names.items():
            if name == theirs or name in (f"{theirs}.weight", f"{theirs}.bias"):
                w.add_tensor(ours + name.removeprefix(theirs), tensor.float().numpy())
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def values(path):
    return {t.name: gguf.quants.dequantize(t.data, t.tensor_type).reshape(-1) for t in gguf.GGUFReader(path).tensors}


def exact(convert, golden, tmp, out):
    """`out` in bf16, or in f32 if that would round something."""
    f32 = tmp / "f32.gguf"
    convert(golden, tmp / "a", f32, "f32")
    convert(golden, tmp / "b", out, "bf16")
    a, b = values(f32), values(out)
    rounded = [k for k in a if not np.array_equal(a[k], b[k])]
    if rounded:
        out.write_bytes(f32.read_bytes())
    return f"{out.stat().st_size / 1000:6.1f} KB" + (f" (f32: bf16 would round {len(rounded)})" if rounded else "")


failed = 0
folders = sorted(p.name for p in args.goldens.iterdir() if (p / "model.safetensors").exists())
for family in args.family or folders:
    if family in SKIP and not args.family:
        print(f"SKIP {family:18s} {SKIP[family]}", flush=True)
        continue
    out = args.out / family
    out.mkdir(parents=True, exist_ok=True)
    golden = args.goldens / family
    try:
        with tempfile.TemporaryDirectory() as tmp:
            tower = exact(convert_tower, golden, Path(tmp), out / f"mmproj-{family}.gguf")
        with tempfile.TemporaryDirectory() as tmp:
            text = exact(convert_text, golden, Path(tmp), out / f"{family}.gguf")
        print(f"OK   {family:18s} text {text}, tower {tower}", flush=True)
    except Exception as e:
        failed += 1
        print(f"FAIL {family:18s} {type(e).__name__}: {e!s:.300}", flush=True)
        if os.environ.get("TRACE"):
            traceback.print_exc()
sys.exit(failed > 0)
