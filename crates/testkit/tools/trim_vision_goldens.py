#!/usr/bin/env python3
"""Copies the output of make_vision_goldens.py without the tensors that no test reads.

usage: trim_vision_goldens.py --goldens DIR --out DIR
"""
import argparse, json, os, shutil, struct

# Token types and positions follow from the ids; `video_bare` differs from `video` in its prompt alone.
DROPPED = ("mm_token_type_ids", "token_type_ids", "position_ids", "batch_num_images")
DROPPED_OF_VIDEO_BARE = ("logits", "greedy_logits", "greedy_ids", "image_features", "deepstack_0", "deepstack_1")

def is_kept(name):
    case, tensor = name.split(".", 1)
    return tensor not in DROPPED and not (case == "video_bare" and tensor in DROPPED_OF_VIDEO_BARE)

def trim(source, target):
    with open(source, "rb") as file: data = file.read()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    kept, body = {}, b""
    for name, entry in header.items():
        if name == "__metadata__": kept[name] = entry; continue
        if not is_kept(name): continue
        start, end = entry["data_offsets"]
        kept[name] = dict(entry, data_offsets=[len(body), len(body) + end - start])
        body += data[8 + length + start:8 + length + end]
    text = json.dumps(kept, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(target, "wb") as file: file.write(struct.pack("<Q", len(text)) + text + body)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(); parser.add_argument("--goldens", required=True); parser.add_argument("--out", required=True)
    args = parser.parse_args()
    for folder in sorted(os.listdir(args.goldens)):
        source = os.path.join(args.goldens, folder)
        if not os.path.isdir(source): continue
        target = os.path.join(args.out, folder); os.makedirs(target, exist_ok=True)
        for file in sorted(os.listdir(source)):
            copy = trim if file == "golden.safetensors" else shutil.copyfile
            copy(os.path.join(source, file), os.path.join(target, file))
