# Everyday commands; `just` alone lists them.

_list:
    @just --list

# Build the release binary
build:
    cargo build --release

# Run loquat: `just run --help`
run *args:
    cargo run --release -- {{args}}

# Everything CI runs; `just test --only tidy,test` for a part
test *args:
    cargo xtask test {{args}}

# Judge every golden checkpoint; `just goldens --only qwen3` for a part
goldens *args:
    cargo xtask goldens {{args}}

# Fetch MLX for builds with `--features mlx`: `just mlx cuda13`
mlx *variant:
    cargo xtask mlx {{variant}}

# Beside llama.cpp: `just compare <model.gguf>`
compare *args:
    cargo xtask compare {{args}}

# Check the repository's own rules
tidy:
    cargo xtask tidy

# Format everything
fmt:
    cargo fmt --all

# Lint everything, warnings as errors
lint:
    cargo clippy --workspace --all-targets -- -D warnings

# Measure: `just bench <model>`
bench *args:
    cargo run --release -- bench {{args}}

# Each fuzz target for a bounded time
fuzz:
    cargo xtask test --only fuzz
