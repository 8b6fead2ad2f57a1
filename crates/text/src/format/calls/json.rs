//! Calls that are JSON objects, alone or in a list.

use super::super::data::{CallFormat, CallSyntax, FormatSigns, JsonFields, Span};
use super::PLAIN;

/// Hermes, Qwen 2.5 and 3, Granite 4, and templates without tool support.
pub static HERMES: CallFormat = CallFormat {
    name: "hermes",
    call: Span::new("<tool_call>\n", "\n</tool_call>"),
    separator: "\n",
    signs: FormatSigns::new(&[&["<tool_call>"]], &["<tool_call>"]),
    ..PLAIN
};

/// Mistral before that.
pub static MISTRAL_LIST: CallFormat = CallFormat {
    name: "mistral_list",
    section: Span::new("[TOOL_CALLS]", ""),
    list: true,
    separator: ", ",
    signs: FormatSigns::new(&[&["[TOOL_CALLS]"]], &["[TOOL_CALLS]"]),
    ..PLAIN
};

const COMMAND_FIELDS: CallSyntax = CallSyntax::Json(JsonFields {
    name: &["tool_name", "name"],
    arguments: &["parameters", "arguments"],
    id: &["tool_call_id"],
});

/// Command R7B and Command A.
pub static COMMAND: CallFormat = CallFormat {
    name: "command",
    section: Span::new("<|START_ACTION|>", "<|END_ACTION|>"),
    list: true,
    separator: ",\n",
    syntax: COMMAND_FIELDS,
    ends_reasoning: true,
    signs: FormatSigns::new(&[&["<|START_ACTION|>"]], &["<|START_ACTION|>"]),
    ..PLAIN
};

/// Command R and R+ of 2024.
pub static COMMAND_R: CallFormat = CallFormat {
    name: "command_r",
    section: Span::new("Action:\n```json\n", "\n```"),
    list: true,
    separator: ",\n",
    syntax: COMMAND_FIELDS,
    signs: FormatSigns::new(&[&["Action:", "```json", "tool_name"]], &[]),
    ..PLAIN
};

pub static APERTUS: CallFormat = CallFormat {
    name: "apertus",
    section: Span::new("<|tools_prefix|>", "<|tools_suffix|>"),
    list: true,
    separator: ", ",
    syntax: CallSyntax::KeyedJson,
    ends_reasoning: true,
    signs: FormatSigns::new(&[&["<|tools_prefix|>"]], &["<|tools_prefix|>"]),
    ..PLAIN
};

/// Granite 3.
pub static GRANITE: CallFormat = CallFormat {
    name: "granite",
    section: Span::new("<|tool_call|>", ""),
    aliases: &["<tool_call>"],
    list: true,
    separator: ", ",
    signs: FormatSigns::new(&[&["<|tool_call|>"]], &["<|tool_call|>"]),
    ..PLAIN
};

/// Granite 20B function calling.
pub static GRANITE_20B: CallFormat = CallFormat {
    name: "granite_20b",
    call: Span::new("<function_call> ", ""),
    separator: "\n",
    signs: FormatSigns::new(&[&["<function_call> "]], &[]),
    ..PLAIN
};

/// Nemotron Nano 2.
pub static NEMOTRON: CallFormat = CallFormat {
    name: "nemotron",
    section: Span::new("<TOOLCALL>", "</TOOLCALL>"),
    list: true,
    separator: ", ",
    signs: FormatSigns::new(&[&["<TOOLCALL>"]], &["<TOOLCALL>"]),
    ..PLAIN
};

/// Apriel and Hunyuan A13B.
pub static TOOL_CALLS_LIST: CallFormat = CallFormat {
    name: "tool_calls_list",
    section: Span::new("<tool_calls>", "</tool_calls>"),
    list: true,
    separator: ", ",
    signs: FormatSigns::new(&[&["<tool_calls>["]], &[]),
    ..PLAIN
};

pub static MINIMAX_M1: CallFormat = CallFormat {
    name: "minimax_m1",
    section: Span::new("<tool_calls>\n", "\n</tool_calls>"),
    separator: "\n",
    signs: FormatSigns::new(&[&["<tool_calls>"]], &[]),
    ..PLAIN
};

pub static INTERNLM2: CallFormat = CallFormat {
    name: "internlm2",
    call: Span::new("<|action_start|><|plugin|>\n", "<|action_end|>"),
    signs: FormatSigns::new(
        &[&["<|action_start|><|plugin|>"]],
        &["<|plugin|>", "<|action_start|>", "<|action_end|>"],
    ),
    ..PLAIN
};

pub static GIGACHAT31: CallFormat = CallFormat {
    name: "gigachat31",
    call: Span::new("<|function_call|>", ""),
    signs: FormatSigns::new(&[&["<|function_call|>"]], &["<|function_call|>"]),
    ..PLAIN
};

/// GigaChat 3, which calls in a separate role.
pub static GIGACHAT3: CallFormat = CallFormat {
    name: "gigachat3",
    call: Span::new("<|message_sep|>\n\nfunction call<|role_sep|>\n", ""),
    aliases: &["function call<|role_sep|>"],
    signs: FormatSigns::new(
        &[&["'function call'", "<|role_sep|>"]],
        &["<|role_sep|>", "<|message_sep|>"],
    ),
    ..PLAIN
};

/// Firefunction and Phi 4 mini.
pub static FUNCTOOLS: CallFormat = CallFormat {
    name: "functools",
    section: Span::new("functools[", "]"),
    separator: ", ",
    signs: FormatSigns::new(&[&["functools["]], &[]),
    ..PLAIN
};

/// Llama 3.
pub static LLAMA_JSON: CallFormat = CallFormat {
    name: "llama_json",
    section: Span::new("<|python_tag|>", ""),
    unmarked: true,
    separator: "; ",
    syntax: CallSyntax::Json(JsonFields {
        name: &["name"],
        arguments: &["parameters", "arguments"],
        id: &[],
    }),
    signs: FormatSigns::new(
        &[&["{\"name\": function name, \"parameters\":"]],
        &["<|python_tag|>"],
    ),
    ..PLAIN
};

/// xLAM: a bare JSON list.
pub static XLAM: CallFormat = CallFormat {
    name: "xlam",
    unmarked: true,
    list: true,
    separator: ", ",
    signs: FormatSigns::new(&[&["[{\"name\": \"tool_call_name\", \"arguments\":"]], &[]),
    ..PLAIN
};
