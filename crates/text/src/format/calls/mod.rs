//! How models write tool calls.

mod json;
mod literal;
mod named;
mod tagged;

pub use json::HERMES;

use super::data::{CallFormat, CallSyntax, FormatSigns, Framing, JsonFields, Span};

/// Every format known. The order is that of detection: the particular before the general.
pub static CALLS: &[&CallFormat] = &[
    &named::HARMONY,
    &named::KIMI_K2,
    &named::DEEPSEEK_V3,
    &named::DEEPSEEK_V31,
    &tagged::DEEPSEEK_V32,
    &tagged::DEEPSEEK_V4,
    &tagged::MINIMAX_M2,
    &literal::GEMMA4,
    &literal::FUNCTIONGEMMA,
    &named::MISTRAL,
    &json::MISTRAL_LIST,
    &json::COMMAND,
    &json::COMMAND_R,
    &literal::LFM2,
    &named::SOLAR,
    &json::APERTUS,
    &tagged::SEED,
    &tagged::QWEN3_CODER,
    &tagged::HUNYUAN3,
    &tagged::GLM47,
    &tagged::GLM45,
    &tagged::MINICPM5,
    &json::GRANITE,
    &json::NEMOTRON,
    &json::TOOL_CALLS_LIST,
    &json::MINIMAX_M1,
    &json::INTERNLM2,
    &json::GIGACHAT31,
    &json::GIGACHAT3,
    &json::GRANITE_20B,
    &json::FUNCTOOLS,
    &literal::LLAMA_PYTHONIC,
    &literal::GEMMA3,
    &json::HERMES,
    &named::FUNCTION_TAG,
    &json::LLAMA_JSON,
    &json::XLAM,
];

/// The most common keys of call objects.
pub static COMMON_FIELDS: JsonFields = NAME_AND_ARGUMENTS;

const NAME_AND_ARGUMENTS: JsonFields = JsonFields {
    name: &["name"],
    arguments: &["arguments", "parameters"],
    id: &["id"],
};

/// Defaults of a format.
const PLAIN: CallFormat = CallFormat {
    name: "",
    section: Span::NONE,
    aliases: &[],
    unmarked: false,
    list: false,
    call: Span::NONE,
    separator: "",
    syntax: CallSyntax::Json(NAME_AND_ARGUMENTS),
    ends_reasoning: false,
    framing: Framing::Inline,
    signs: FormatSigns::NONE,
};
