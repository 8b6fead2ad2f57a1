"""Measures torch.compile on the workloads of `backends/cuda/examples/h200_table` and prints the same rows.

    python torch_decode.py [--models llama-8b,llama-1b] [--ceiling TB/s] [--budget SECONDS] [--quick]

The shapes, batch sizes and depths are the same, with random bf16 weights. torch gets its best case: q, k and
v are one matrix, gate and up another; the KV cache is static and as long as the workload; one layer is
compiled and a CUDA graph holds the whole token with the choice of the next one, so that Python and the host
take no part in the measured time. Each workload runs with plain `torch.compile`, which for batch 1 tunes its
own matrix-vector kernels (`coordinate_descent_tuning`), and, while the budget lasts, with
`max-autotune-no-cudagraphs`; the faster counts. Of three ways to compute decode attention the fastest alone
is used. `--ceiling` is the read ceiling that `h200_table` printed, for the shares.
"""

import argparse
import math
import statistics
import sys
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F

WARM_UP = 8
DEVICE, DTYPE = "cuda", torch.bfloat16
FAST, TUNED = "compile", "max-autotune"


@dataclass(frozen=True)
class Shape:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    tied: bool
    batches: tuple
    vocabulary: int = 128256

    @property
    def qkv(self):
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def read_bytes(self):
        """Of the matrices that every step reads."""
        layer = self.hidden * (self.qkv + self.heads * self.head_dim + 3 * self.feed_forward)
        return 2 * (self.layers * layer + self.vocabulary * self.hidden)

    def kv_bytes(self, depth):
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim * depth


SHAPES = {
    "llama-8b": Shape(4096, 32, 32, 8, 128, 14336, False, (1, 8, 64)),
    "llama-1b": Shape(2048, 16, 32, 8, 64, 8192, True, (1,)),
    "llama-tiny": Shape(256, 8, 4, 2, 64, 512, True, (1, 2), 512),
}


def norm(x, weight):
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return (wide * scale).to(x.dtype) * weight


def rotate(x, cos, sin):
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


def matmul_attention(q, keys, values, position):
    """q: [batch, heads, 1, dim]; keys and values: [batch, kv heads, cache, dim]."""
    batch, heads, _, dim = q.shape
    kv_heads, cache = keys.shape[1], keys.shape[2]
    grouped = q.view(batch, kv_heads, heads // kv_heads, dim)
    scores = (grouped @ keys.transpose(-1, -2)).float() / math.sqrt(dim)
    is_past = torch.arange(cache, device=q.device) <= position
    weights = scores.masked_fill(~is_past, float("-inf")).softmax(-1).to(q.dtype)
    return (weights @ values).view(batch, heads, 1, dim)


def sdpa_attention(q, keys, values, position):
    is_past = (torch.arange(keys.shape[2], device=q.device) <= position)[None, None, None, :]
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=is_past, enable_gqa=True)


def flex_attention(q, keys, values, position):
    from torch.nn.attention.flex_attention import flex_attention as flex

    def past(score, _batch, _head, _query, key):
        return torch.where(key <= position[0], score, -float("inf"))

    return flex(q, keys, values, score_mod=past, enable_gqa=True)


def prompt_attention(q, keys, values, _position):
    return F.scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=True)


def layer(x, change, weights, cache, angles, position, shape, attend):
    """Returns the residual stream without this layer's last change, and that change: the next layer adds it."""
    first_norm, qkv, out, second_norm, gate_up, down = weights
    keys, values = cache
    cos, sin = angles
    batch, length, _ = x.shape
    x = x + change
    q, k, v = (norm(x, first_norm) @ qkv.t()).split(
        [shape.heads * shape.head_dim] + 2 * [shape.kv_heads * shape.head_dim], -1
    )
    split = lambda y, heads: y.view(batch, length, heads, shape.head_dim).transpose(1, 2)
    q, k, v = split(q, shape.heads), split(k, shape.kv_heads), split(v, shape.kv_heads)
    cos, sin = cos[position], sin[position]
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    keys.index_copy_(2, position, k)
    values.index_copy_(2, position, v)
    mixed = attend(q, k, v, position) if length > 1 else attend(q, keys, values, position)
    x = x + mixed.transpose(1, 2).reshape(batch, length, -1) @ out.t()
    gate, up = (norm(x, second_norm) @ gate_up.t()).chunk(2, -1)
    return x, (F.silu(gate) * up) @ down.t()


def choose(x, change, final_norm, head):
    """The likeliest token after the last position of each sequence."""
    return (norm(x[:, -1] + change[:, -1], final_norm) @ head.t()).argmax(-1)


class Model:
    def __init__(self, shape):
        self.shape = shape
        torch.manual_seed(0)
        # Dot products with a row have a standard deviation of about 1.
        deviation = 1 / math.sqrt(shape.hidden)
        matrix = lambda rows, cols: torch.empty(rows, cols, device=DEVICE, dtype=DTYPE).normal_(0, deviation)
        ones = lambda: torch.ones(shape.hidden, device=DEVICE, dtype=DTYPE)
        self.embedding = matrix(shape.vocabulary, shape.hidden)
        self.head = self.embedding if shape.tied else matrix(shape.vocabulary, shape.hidden)
        self.final_norm = ones()
        self.layers = [
            (
                ones(),
                matrix(shape.qkv, shape.hidden),
                matrix(shape.hidden, shape.heads * shape.head_dim),
                ones(),
                matrix(2 * shape.feed_forward, shape.hidden),
                matrix(shape.hidden, shape.feed_forward),
            )
            for _ in range(shape.layers)
        ]


def captured(step):
    """A graph of the step, after it was compiled and run."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def seconds(graph, times):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def compiled(function, batch, variant):
    torch._dynamo.reset()
    torch._inductor.config.coordinate_descent_tuning = batch == 1
    mode = "max-autotune-no-cudagraphs" if variant == TUNED else None
    return torch.compile(function, mode=mode, fullgraph=True, dynamic=False)


def best_attention(shape, batch, cache):
    """The fastest of the ways to compute decode attention, by itself."""
    random = lambda *size: torch.randn(*size, device=DEVICE, dtype=DTYPE)
    q = random(batch, shape.heads, 1, shape.head_dim)
    # Several layers' worth, so that little of it is in the cache.
    layers = [[random(batch, shape.kv_heads, cache, shape.head_dim) for _ in range(2)] for _ in range(32)]
    position = torch.tensor([cache - 1], device=DEVICE)
    times = {}
    for attend in (matmul_attention, sdpa_attention, flex_attention):
        try:
            function = compiled(attend, batch, FAST)
            graph = captured(lambda: [function(q, keys, values, position) for keys, values in layers])
            seconds(graph, 3)
            times[attend] = seconds(graph, 10)
        except Exception as error:  # A version of torch may lack one of them.
            print(f"{attend.__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
    return min(times, key=times.get)


class Workload:
    """One row: a prompt if `batch` is 0."""

    def __init__(self, name, model, batch, args):
        self.name, self.model, self.batch, self.args = name, model, batch, args
        self.best = None
        self.attend = None

    @property
    def title(self):
        if self.batch == 0:
            return f"prompt of {self.args.depth}"
        return f"decode at {self.args.depth}, batch {self.batch}"

    def measure(self, variant):
        shape, depth, tokens = self.model.shape, self.args.depth, self.args.tokens
        is_prompt = self.batch == 0
        batch, length = (1, depth) if is_prompt else (self.batch, 1)
        size = depth if is_prompt else depth + 2 * WARM_UP + tokens
        if self.attend is None:
            self.attend = prompt_attention if is_prompt else best_attention(shape, batch, size)
        attend = self.attend
        random = lambda: torch.randn(batch, shape.kv_heads, size, shape.head_dim, device=DEVICE, dtype=DTYPE)
        caches = [(random(), random()) for _ in range(shape.layers)]
        exponents = torch.arange(0, shape.head_dim, 2, device=DEVICE).float() / shape.head_dim
        turns = torch.arange(size, device=DEVICE)[:, None] * 500000.0**-exponents
        angles = (turns.cos(), turns.sin())
        ids = torch.randint(0, shape.vocabulary, (batch, length), device=DEVICE)
        first = 0 if is_prompt else depth
        position = torch.arange(first, first + length, device=DEVICE)
        one_layer = compiled(
            lambda x, change, weights, cache, position: layer(
                x, change, weights, cache, angles, position, shape, attend
            ),
            batch if length == 1 else 0,
            variant,
        )
        last = torch.compile(choose, fullgraph=True, dynamic=False)

        def step():
            x = F.embedding(ids, self.model.embedding)
            change = torch.zeros_like(x)
            for weights, cache in zip(self.model.layers, caches):
                x, change = one_layer(x, change, weights, cache, position)
            token = last(x, change, self.model.final_norm, self.model.head)
            if not is_prompt:
                ids.copy_(token[:, None])
                position.add_(1)

        graph = captured(step)
        speeds = []
        for _ in range(self.args.rounds):
            if is_prompt:
                seconds(graph, 2)
                speeds.append(5 * depth / seconds(graph, 5))
            else:
                position.fill_(depth)
                seconds(graph, WARM_UP)
                speeds.append(batch * tokens / seconds(graph, tokens))
        if not 0 <= int(ids.max()) < shape.vocabulary:
            raise RuntimeError(f"{self.title}: the tokens are not of the vocabulary")
        speed = statistics.median(speeds)
        print(f"{self.name}, {self.title}, {variant}, {attend.__name__}: {speed:.1f}", file=sys.stderr)
        if self.best is None or speed > self.best[0]:
            self.best = (speed, (max(speeds) - min(speeds)) / speed, f"{variant}, {attend.__name__}")

    def row(self):
        if self.best is None:
            return [self.name, self.title, "–", "–", "–", "–", "no time was left"]
        speed, spread, how = self.best
        share = "–"
        if self.batch > 0 and self.args.ceiling:
            mean_depth = self.args.depth + WARM_UP + (self.args.tokens + 1) / 2
            shape = self.model.shape
            read = shape.read_bytes + self.batch * shape.kv_bytes(mean_depth)
            share = f"{speed * read / self.batch / (self.args.ceiling * 1e12):.3f}"
        step = self.args.depth if self.batch == 0 else self.batch
        return [
            self.name, self.title, f"{speed:.1f}", f"{100 * spread:.1f} %", f"{1e6 * step / speed:.0f}", share, how,
        ]  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default="llama-8b,llama-1b")
    parser.add_argument("--depth", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ceiling", type=float, help="in TB/s")
    parser.add_argument("--budget", type=float, default=170, help="seconds")
    parser.add_argument("--quick", action="store_true", help="llama-1b, 16 tokens, one round, no tuning")
    args = parser.parse_args()
    if args.quick:
        args.models, args.tokens, args.rounds = "llama-1b", 16, 1
    started = time.monotonic()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    works = []
    for name in args.models.split(","):
        model = Model(SHAPES[name])
        works += [Workload(name, model, batch, args) for batch in (0, *model.shape.batches)]
    # What one workload took at most says whether another fits.
    longest = 0.0
    with torch.no_grad():
        for variant in (FAST,) if args.quick else (FAST, TUNED):
            for work in works:
                before = time.monotonic()
                reserve = longest if variant == TUNED else 0
                if before - started + reserve > args.budget:
                    continue
                work.measure(variant)
                torch.cuda.empty_cache()
                longest = max(longest, time.monotonic() - before)
    heads = ["model", "workload", "tokens/s", "spread", "µs/step", "share of the read limit", "how"]
    print(f"\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for work in works:
        print(f"| {' | '.join(work.row())} |")
    print(f"\n{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
