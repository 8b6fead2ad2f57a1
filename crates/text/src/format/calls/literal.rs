//! Calls in notations like Python's.

use super::super::data::{CallFormat, CallSyntax, FormatSigns, Span};
use super::PLAIN;

pub static GEMMA4: CallFormat = CallFormat {
    name: "gemma4",
    call: Span::new("<|tool_call>", "<tool_call|>"),
    syntax: CallSyntax::Gemma { quote: "<|\"|>" },
    ends_reasoning: true,
    signs: FormatSigns::new(&[&["<|tool_call>call:"]], &["<|tool_call>"]),
    ..PLAIN
};

pub static FUNCTIONGEMMA: CallFormat = CallFormat {
    name: "functiongemma",
    call: Span::new("<start_function_call>", "<end_function_call>"),
    syntax: CallSyntax::Gemma { quote: "<escape>" },
    signs: FormatSigns::new(&[&["<start_function_call>"]], &["<start_function_call>"]),
    ..PLAIN
};

/// Gemma 3, which was trained on no format but works with a Python fence.
pub static GEMMA3: CallFormat = CallFormat {
    name: "gemma3",
    section: Span::new("```tool_code\n", "\n```"),
    separator: "\n",
    syntax: CallSyntax::Pythonic,
    signs: FormatSigns::new(&[&["```tool_code"]], &[]),
    ..PLAIN
};

pub static LFM2: CallFormat = CallFormat {
    name: "lfm2",
    section: Span::new("<|tool_call_start|>", "<|tool_call_end|>"),
    list: true,
    separator: ", ",
    syntax: CallSyntax::Pythonic,
    signs: FormatSigns::new(
        &[
            &["<|tool_call_start|>"],
            &["<|tool_list_start|>"],
            &["List of tools: "],
        ],
        &["<|tool_call_start|>"],
    ),
    ..PLAIN
};

/// Llama 3.2 and 4, ToolACE and others that write a list of Python calls.
pub static LLAMA_PYTHONIC: CallFormat = CallFormat {
    name: "llama_pythonic",
    section: Span::new("<|python_start|>", "<|python_end|>"),
    unmarked: true,
    list: true,
    separator: ", ",
    syntax: CallSyntax::Pythonic,
    signs: FormatSigns::new(&[&["[func_name1("]], &["<|python_start|>"]),
    ..PLAIN
};
