"""Times a vision tower in llama.cpp and in Loquat, alternating, on the same random weights.

    cargo xtask compare MODEL.gguf --quick     # builds llama.cpp into target/compare
    loquat bench --synthetic gemma3-270m:q4_0 --save text.gguf
    target/compare/python/bin/python -m pip install gguf==0.19.0
    target/compare/python/bin/python judges/speed/vision_tower.py target/release/loquat text.gguf

The tower has the shape of Gemma 3's: SigLIP-400M (27 layers of 1,152, 16 heads, 4,304) at 896 × 896
pixels, 4,096 patches, with weights in bf16 and random values. It is written as an mmproj file next to a
text model of any size. Each round times one picture in each engine, after one that is not counted; both
count the tower and the projector, not reading or resizing a file.
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gguf
import llama_cpp as llama
import numpy as np
from llama_cpp import mtmd_cpp as mtmd

HIDDEN, FEED_FORWARD, LAYERS, HEADS, PATCH, SIDE = 1152, 4304, 27, 16, 14, 896


def write_tower(path, text_width):
    """An mmproj file as llama.cpp's converter writes Gemma 3's."""
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("gemma3")
    writer.add_vision_projection_dim(text_width)
    writer.add_vision_image_size(SIDE)
    writer.add_vision_patch_size(PATCH)
    writer.add_vision_embedding_length(HIDDEN)
    writer.add_vision_feed_forward_length(FEED_FORWARD)
    writer.add_vision_block_count(LAYERS)
    writer.add_vision_head_count(HEADS)
    writer.add_vision_image_mean([0.5] * 3)
    writer.add_vision_image_std([0.5] * 3)
    writer.add_vision_attention_layernorm_eps(1e-6)
    writer.add_vision_use_gelu(True)
    writer.add_vision_projector_scale_factor(4)

    def plain(name, *shape, base=0.0):
        values = base + 0.02 * random.standard_normal(shape, dtype=np.float32)
        writer.add_tensor(name, values)

    def matrix(name, rows, cols):
        values = random.standard_normal((rows, cols), dtype=np.float32) / np.float32(cols**0.5)
        bf16 = gguf.quantize(values, gguf.GGMLQuantizationType.BF16)
        writer.add_tensor(name, bf16, raw_dtype=gguf.GGMLQuantizationType.BF16)

    plain("v.patch_embd.weight", HIDDEN, 3, PATCH, PATCH)
    plain("v.patch_embd.bias", HIDDEN)
    plain("v.position_embd.weight", (SIDE // PATCH) ** 2, HIDDEN)
    plain("v.post_ln.weight", HIDDEN, base=1.0)
    plain("v.post_ln.bias", HIDDEN)
    plain("mm.soft_emb_norm.weight", HIDDEN, base=1.0)
    projection = random.standard_normal((HIDDEN, text_width), dtype=np.float32) / np.float32(HIDDEN**0.5)
    writer.add_tensor("mm.input_projection.weight", projection.astype(np.float16))
    for layer in range(LAYERS):
        block = f"v.blk.{layer}"
        for norm in ["ln1", "ln2"]:
            plain(f"{block}.{norm}.weight", HIDDEN, base=1.0)
            plain(f"{block}.{norm}.bias", HIDDEN)
        shapes = {name: (HIDDEN, HIDDEN) for name in ["attn_q", "attn_k", "attn_v", "attn_out"]}
        shapes |= {"ffn_up": (FEED_FORWARD, HIDDEN), "ffn_down": (HIDDEN, FEED_FORWARD)}
        for name, (rows, cols) in shapes.items():
            matrix(f"{block}.{name}.weight", rows, cols)
            plain(f"{block}.{name}.bias", rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def text_width(path):
    fields = gguf.GGUFReader(path).fields
    architecture = fields["general.architecture"].contents()
    return fields[f"{architecture}.embedding_length"].contents()


def llama_seconds(text, tower, threads, images):
    """Seconds of each image after the first."""
    llama.llama_backend_init()
    model_options = llama.llama_model_default_params()
    model = llama.llama_load_model_from_file(str(text).encode(), model_options)
    options = mtmd.mtmd_context_params_default()
    options.use_gpu = False
    options.print_timings = False
    options.n_threads = threads
    options.warmup = False
    context = mtmd.mtmd_init_from_file(str(tower).encode(), model, options)
    if not context:
        sys.exit("llama.cpp cannot load the tower")
    pixels = np.random.default_rng(1).integers(0, 256, SIDE * SIDE * 3, dtype=np.uint8).tobytes()
    buffer = (ctypes.c_uint8 * len(pixels)).from_buffer_copy(pixels)
    bitmap = mtmd.mtmd_bitmap_init(SIDE, SIDE, buffer)
    bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
    marker = mtmd.mtmd_default_marker()
    prompt = mtmd.mtmd_input_text(marker, len(marker), True, True)
    chunks = mtmd.mtmd_input_chunks_init()
    if mtmd.mtmd_tokenize(context, chunks, ctypes.byref(prompt), bitmaps, 1) != 0:
        sys.exit("llama.cpp cannot preprocess the picture")
    all_chunks = [mtmd.mtmd_input_chunks_get(chunks, i) for i in range(mtmd.mtmd_input_chunks_size(chunks))]
    [image] = [chunk for chunk in all_chunks if mtmd.mtmd_input_chunk_get_type(chunk) == 1]
    seconds = []
    for _ in range(images + 1):
        started = time.perf_counter()
        if mtmd.mtmd_encode_chunk(context, image) != 0:
            sys.exit("llama.cpp cannot encode the picture")
        seconds.append(time.perf_counter() - started)
    return seconds[1:]


def loquat_seconds(loquat, text, tower, threads, images):
    command = [loquat, "bench", text, "--mmproj", tower, "--encode", SIDE, "--rounds", images]
    command += ["--threads", threads, "--json"]
    output = subprocess.run([str(word) for word in command], check=True, capture_output=True).stdout
    return json.loads(output)["seconds_rounds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("loquat", type=Path)
    parser.add_argument("text", type=Path, help="a text model in GGUF")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tower", type=Path, help="used by the processes that this one starts")
    arguments = parser.parse_args()
    if arguments.tower:
        print(json.dumps(llama_seconds(arguments.text, arguments.tower, arguments.threads, 1)))
        return
    with tempfile.TemporaryDirectory() as folder:
        tower = Path(folder, "mmproj.gguf")
        write_tower(tower, text_width(arguments.text))
        again = [sys.executable, __file__, arguments.loquat, arguments.text, "--tower", tower]
        again += ["--threads", str(arguments.threads)]
        rounds = []
        for _ in range(arguments.rounds):
            output = subprocess.run(again, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
            [theirs] = json.loads(output.splitlines()[-1])
            [ours] = loquat_seconds(arguments.loquat, arguments.text, tower, arguments.threads, 1)
            rounds.append((theirs, ours))
            print(f"llama.cpp {theirs:.2f} s, loquat {ours:.2f} s, {theirs / ours:.2f} x", flush=True)
    ratios = [theirs / ours for theirs, ours in rounds]
    print(f"median ratio: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
