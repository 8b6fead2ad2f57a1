//! Tokenizers, chat templates and output formats through the public API.

mod chat_template_features;
mod chat_templates;
mod common;
mod detokenizing;
mod fill_in_the_middle;
mod format_calls;
mod format_detection;
mod format_reasoning;
mod format_robustness;
mod format_support;
mod ggml_vocabularies;
mod hostile_tokenizers;
mod template_corpus;
mod template_limits;
mod template_probes;
mod tokenizers;
