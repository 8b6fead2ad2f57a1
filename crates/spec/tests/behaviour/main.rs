//! Families, namings and refusals through the public API.

mod attention_configs;
mod blocks;
mod common;
mod configs;
mod expert_configs;
mod families;
mod family_refusals;
mod gguf;
mod golden_configs;
mod goldens;
mod header;
mod hostile_configs;
mod hybrid_configs;
mod naming;
mod refusals;
mod refused;
mod vision_configs;
