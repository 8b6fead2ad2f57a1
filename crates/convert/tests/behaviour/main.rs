//! Conversions compared with files that mlx-lm and llama.cpp wrote.

mod gguf;
mod hostile;
mod memory;
mod mlx;
mod support;
