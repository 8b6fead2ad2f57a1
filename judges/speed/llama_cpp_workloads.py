"""Measures llama.cpp on the given workloads and prints the same JSON as `loquat bench --work … --json`.

    python llama_cpp_workloads.py MODEL.gguf --threads N --work prompt:512,decode:64@2048,decode:64@1x8

One process runs each workload once, through the C API. As in Loquat's benchmark, a warm-up of one prompt
of up to 512 of the workload's tokens and one step comes first. The measured time covers `llama_decode`,
the greedy choice of each token and writing it into the next batch. The latter two use numpy views that
are created once; they take a few microseconds per step, and no other Python code runs. The time to ready
starts when Python has started and the library is loaded.

Settings are the defaults of llama.cpp's tools: automatic flash attention, micro-batches of 512, weights
mapped and repacked by default, one KV buffer for all sequences, windows if the model has them, and a
context as long as the workloads need.
"""

import argparse
import ctypes
import json
import re
import sys
import time
from dataclasses import dataclass

import llama_cpp as llama
import numpy as np

MICRO_BATCH = 512
CANNOT_LOAD = 3


@dataclass
class Workload:
    name: str
    prompt: int
    tokens: int
    batch: int

    @staticmethod
    def parse(text):
        if found := re.fullmatch(r"prompt:([1-9]\d*)", text):
            return Workload(text, int(found[1]), 0, 1)
        if found := re.fullmatch(r"decode:([1-9]\d*)@([1-9]\d*)(?:x([1-9]\d*))?", text):
            tokens, depth, batch = found.groups(default="1")
            return Workload(text, int(depth), int(tokens), int(batch))
        raise ValueError(f"{text!r} is not a workload. Use the form prompt:512 or decode:64@1x8")

    @property
    def cells(self):
        return self.batch * (self.prompt + self.tokens + 2)


class Random:
    """SplitMix64, which `loquat bench` uses to generate its prompts."""

    MASK = (1 << 64) - 1

    def __init__(self, stream):
        self.state = 0
        self.state = (self.next() + stream * 0xD1342543DE82EF95) & self.MASK

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & self.MASK
        mixed = self.state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & self.MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & self.MASK
        return mixed ^ (mixed >> 31)

    def tokens(self, vocabulary, count):
        return np.array([self.next() % vocabulary for _ in range(count)], dtype=np.int32)


class EngineError(Exception):
    pass


class Engine:
    def __init__(self, path, workloads, threads):
        self.warnings = []
        self.log = llama.llama_log_callback(self.record)
        llama.llama_log_set(self.log, ctypes.c_void_p(0))
        llama.llama_backend_init()
        self.model = llama.llama_model_load_from_file(
            path.encode(), llama.llama_model_default_params()
        )
        if not self.model:
            raise EngineError(f"llama.cpp cannot load {path}: {self.reason()}")
        longest_prompt = max(workload.prompt for workload in workloads)
        params = llama.llama_context_default_params()
        params.n_ctx = max(workload.cells for workload in workloads)
        params.n_batch = max(longest_prompt, MICRO_BATCH)
        params.n_ubatch = MICRO_BATCH
        params.n_seq_max = max(workload.batch for workload in workloads)
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True
        params.swa_full = False
        params.no_perf = True
        self.context = llama.llama_init_from_model(self.model, params)
        if not self.context:
            raise EngineError(f"llama.cpp cannot open {path}: {self.reason()}")
        self.memory = llama.llama_get_memory(self.context)
        self.vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        self.make_batch(params.n_batch)
        self.logits = (None, None)

    def record(self, level, text, _):
        # 3 is a warning, 4 an error; 5 continues the previous line.
        if level in (3, 4):
            self.warnings.append(text.decode(errors="replace").strip())

    def reason(self):
        return "; ".join(self.warnings[-3:]) or "no reason given"

    def make_batch(self, size):
        self.batch = llama.llama_batch_init(size, 0, 1)
        view = lambda pointer: np.ctypeslib.as_array(pointer, shape=(size,))
        self.tokens, self.positions, self.emits = map(
            view, (self.batch.token, self.batch.pos, self.batch.logits)
        )
        self.counts = view(self.batch.n_seq_id)
        self.counts[:] = 1

    def set_sequences(self, ids):
        for row, sequence in enumerate(ids):
            self.batch.seq_id[row][0] = sequence

    def decode(self):
        code = llama.llama_decode(self.context, self.batch)
        if code != 0:
            raise EngineError(f"llama_decode returned {code}: {self.reason()}")

    def greedy_tokens(self, rows):
        """The greedy tokens of the rows that emitted, in the batch's order."""
        pointer = llama.llama_get_logits(self.context)
        key = (ctypes.addressof(pointer.contents), rows)
        if key != self.logits[0]:
            view = np.ctypeslib.as_array(pointer, shape=(rows, self.vocabulary))
            self.logits = (key, view)
        return self.logits[1].argmax(axis=1)

    def prompt(self, tokens, sequence):
        """Computes a prompt of an empty sequence and chooses the token that follows."""
        self.fill_prompt(tokens, sequence)
        self.decode()
        return self.greedy_tokens(1)[0]

    def fill_prompt(self, tokens, sequence):
        count = len(tokens)
        self.batch.n_tokens = count
        self.tokens[:count] = tokens
        self.positions[:count] = np.arange(count)
        self.emits[:count] = 0
        self.emits[count - 1] = 1
        self.set_sequences([sequence] * count)

    def start_decoding(self, first, depth):
        """Fills the batch with one token of every sequence; all emit logits."""
        rows = len(first)
        self.batch.n_tokens = rows
        self.tokens[:rows] = first
        self.positions[:rows] = depth
        self.emits[:rows] = 1
        self.set_sequences(range(rows))

    def step(self, rows):
        self.decode()
        self.tokens[:rows] = self.greedy_tokens(rows)
        self.positions[:rows] += 1

    def clear(self):
        llama.llama_memory_clear(self.memory, False)

    def warm_up(self, tokens):
        self.clear()
        first = self.prompt(tokens[:MICRO_BATCH], 0)
        self.start_decoding([first], min(len(tokens), MICRO_BATCH))
        self.step(1)
        self.clear()

    def measure(self, workload):
        """Tokens per second."""
        prompts = [Random(row).tokens(self.vocabulary, workload.prompt) for row in range(workload.batch)]
        self.warm_up(Random(workload.batch).tokens(self.vocabulary, workload.prompt))
        if not workload.tokens:
            self.fill_prompt(prompts[0], 0)
            began = time.perf_counter()
            self.decode()
            self.greedy_tokens(1)
            return workload.prompt / (time.perf_counter() - began)
        first = [self.prompt(tokens, row) for row, tokens in enumerate(prompts)]
        self.start_decoding(first, workload.prompt)
        # The first step is not measured, because its graph differs from the prompts'.
        self.step(workload.batch)
        began = time.perf_counter()
        for _ in range(workload.tokens):
            self.step(workload.batch)
        return workload.tokens * workload.batch / (time.perf_counter() - began)


def peak_bytes():
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            line = next(line for line in status if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return None
    return int(line.split()[1]) * 1024


def main():
    began = time.perf_counter()
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--work", required=True)
    args = parser.parse_args()
    try:
        workloads = [Workload.parse(text) for text in args.work.split(",")]
    except ValueError as error:
        parser.error(str(error))
    try:
        engine = Engine(args.model, workloads, args.threads)
        ready = time.perf_counter() - began
        speeds = [(workload, engine.measure(workload)) for workload in workloads]
    except EngineError as error:
        print(error, file=sys.stderr)
        sys.exit(CANNOT_LOAD)
    report = {
        "device": llama.llama_print_system_info().decode().strip(),
        "ready_seconds": ready,
        "peak_bytes": peak_bytes(),
        "results": [
            {"work": workload.name, "tokens_per_second": speed} for workload, speed in speeds
        ],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
