#!/bin/sh
# Makes goldens, goldens-gguf and goldens-mlx again, in about a minute.
#
#   remake_goldens.sh OUT LLAMA_CPP XLLAMACPP
#
# OUT        where to put the three folders, and a fourth, work, with logs and what is not kept
# LLAMA_CPP  a llama.cpp source tree (the PyPI source archive of llama-cpp-python has one under vendor)
# XLLAMACPP  the unpacked wheel of PyPI's xllamacpp
# python3 must find torch, transformers, accelerate, safetensors, gguf, mlx, mlx-cpu and mlx-lm.
set -eu
out=$1 llama_cpp=$2 xllamacpp=$3
tools=$(dirname "$0")
work=$out/work
required=$(PYTHONPATH=$tools python3 -c 'from golden_families import REQUIRED; print(*REQUIRED)')
mkdir -p "$work"

python3 "$tools/make_goldens.py" --out "$out/goldens" > "$work/goldens.log"
python3 "$tools/make_gpt_oss_mxfp4.py" --out "$out/goldens" >> "$work/goldens.log"

python3 "$tools/golden_to_gguf.py" --llama-cpp "$llama_cpp" --goldens "$out/goldens" \
    --out "$out/goldens-gguf" --f32 "$work/f32" > "$work/gguf.log"
python3 "$tools/judge_gguf.py" --xllamacpp "$xllamacpp" --gguf "$work/f32" --goldens "$out/goldens" > "$work/judge.log"

# shellcheck disable=SC2086  # a list of families
python3 "$tools/make_goldens.py" --wide --out "$work/wide" $required llama llama_64 > "$work/wide.log"
mlx() { python3 "$tools/golden_to_mlx.py" --goldens "$work/wide" --out "$out/goldens-mlx" "$@" >> "$work/mlx.log"; }
# shellcheck disable=SC2086
mlx --modes affine4_g32 $required
mlx --modes mxfp4 gpt_oss qwen3_moe
mlx --modes affine2_g32,affine4_g32,affine8_g32,mxfp4,mxfp8,nvfp4,mixed llama
mlx --modes affine3_g64,affine4_g64,affine6_g64,affine8_g64 --as llama llama_64

find "$out/goldens" "$out/goldens-gguf" "$out/goldens-mlx" -type f -exec wc -c {} + | tail -n 1
