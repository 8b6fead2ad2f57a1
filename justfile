# Everyday commands; `just` alone lists them.

_list:
    @just --list

# Build the release binary
build:
    cargo build --release

# Run loquat: `just run --help`
run *args:
    cargo run --release -- {{args}}

# Run all CI checks; `just test --only tidy,test` for some
test *args:
    cargo xtask test {{args}}

# Compare all golden checkpoints with their references; `just goldens --only qwen3` for some
goldens *args:
    cargo xtask goldens {{args}}

# Download MLX for builds with `--features mlx`: `just mlx cuda13`
mlx *variant:
    cargo xtask mlx {{variant}}

# Download the CUDA compiler for builds with `--features cuda`
cuda:
    cargo xtask cuda

# Compare with llama.cpp: `just compare <model.gguf>`
compare *args:
    cargo xtask compare {{args}}

# Check the repository's rules
tidy:
    cargo xtask tidy

# Format everything
fmt:
    cargo fmt --all

# Lint everything, warnings as errors
lint:
    cargo clippy --workspace --all-targets -- -D warnings

# Benchmark a model: `just bench <model>`
bench *args:
    cargo run --release -- bench {{args}}

# Run each fuzz target for a bounded time
fuzz:
    cargo xtask test --only fuzz
