//! Conversions compared with files that mlx-lm and llama.cpp wrote.

mod adapters;
mod gguf;
mod hostile;
mod memory;
mod mlx;
mod support;
