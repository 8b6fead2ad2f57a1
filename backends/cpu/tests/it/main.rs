//! The CPU backend through the session contract.

mod adapter_files;
mod adapters;
mod changed_files;
mod conformance;
mod damaged_models;
mod gguf_round_trip;
mod hidden_states;
mod kv_drift;
mod many_threads;
mod quantized_towers;
mod recurrent_state;
#[cfg(target_os = "linux")]
mod resident_memory;
