//! Calls that are a name and then a JSON object.

use super::super::data::{
    CallFormat, CallSyntax, FormatSigns, Framing, IdPosition, NameThenJson, Span,
};
use super::super::reasoning;
use super::PLAIN;

/// Nothing around the name and the arguments, and no identifier.
const NAME_THEN_JSON: NameThenJson = NameThenJson {
    before: "",
    id: IdPosition::None,
    between: "",
    after: "",
};

/// gpt-oss. A call is a separate message; the role may name the recipient as well.
pub static HARMONY: CallFormat = CallFormat {
    name: "harmony",
    call: Span::new("<|channel|>commentary to=functions.", "<|call|>"),
    separator: "<|start|>assistant",
    syntax: CallSyntax::NameThenJson(NameThenJson {
        between: " <|constrain|>json<|message|>",
        ..NAME_THEN_JSON
    }),
    framing: Framing::Channels,
    signs: FormatSigns::new(
        &[&["<|channel|>commentary", "<|message|>"]],
        reasoning::HARMONY.signs.tokens,
    ),
    ..PLAIN
};

/// Kimi K2, whose identifiers contain the tool's name: `functions.get_weather:0`.
pub static KIMI_K2: CallFormat = CallFormat {
    name: "kimi_k2",
    section: Span::new("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    aliases: &["<|tool_call_section_begin|>"],
    call: Span::new("<|tool_call_begin|>", "<|tool_call_end|>"),
    syntax: CallSyntax::NameThenJson(NameThenJson {
        id: IdPosition::AroundName("functions."),
        between: "<|tool_call_argument_begin|>",
        ..NAME_THEN_JSON
    }),
    ends_reasoning: true,
    signs: FormatSigns::new(
        &[&["<|tool_calls_section_begin|>"]],
        &["<|tool_calls_section_begin|>"],
    ),
    ..PLAIN
};

/// DeepSeek V3 and R1: arguments in a code fence.
pub static DEEPSEEK_V3: CallFormat = CallFormat {
    name: "deepseek_v3",
    separator: "\n",
    syntax: CallSyntax::NameThenJson(NameThenJson {
        before: "function<｜tool▁sep｜>",
        between: "\n```json\n",
        after: "\n```",
        ..NAME_THEN_JSON
    }),
    signs: FormatSigns::new(&[&["<｜tool▁call▁begin｜>", "```json"]], &[]),
    ..DEEPSEEK_MARKERS
};

pub static DEEPSEEK_V31: CallFormat = DEEPSEEK_MARKERS;

const DEEPSEEK_MARKERS: CallFormat = CallFormat {
    name: "deepseek_v31",
    section: Span::new("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    call: Span::new("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    syntax: CallSyntax::NameThenJson(NameThenJson {
        between: "<｜tool▁sep｜>",
        ..NAME_THEN_JSON
    }),
    ends_reasoning: true,
    signs: FormatSigns::new(&[&["<｜tool▁call▁begin｜>"]], &["<｜tool▁calls▁begin｜>"]),
    ..PLAIN
};

/// Mistral since its eleventh tokenizer.
pub static MISTRAL: CallFormat = CallFormat {
    name: "mistral",
    call: Span::new("[TOOL_CALLS]", ""),
    syntax: CallSyntax::NameThenJson(NameThenJson {
        id: IdPosition::AfterName("[CALL_ID]"),
        between: "[ARGS]",
        ..NAME_THEN_JSON
    }),
    ends_reasoning: true,
    signs: FormatSigns::new(&[&["[TOOL_CALLS]", "[ARGS]"]], &["[ARGS]", "[CALL_ID]"]),
    ..PLAIN
};

pub static SOLAR: CallFormat = CallFormat {
    name: "solar",
    section: Span::new("<|tool_calls|>", ""),
    call: Span::new("<|tool_call:begin|>", "<|tool_call:end|>"),
    syntax: CallSyntax::NameThenJson(NameThenJson {
        id: IdPosition::BeforeName("<|tool_call:name|>"),
        between: "<|tool_call:args|>",
        ..NAME_THEN_JSON
    }),
    signs: FormatSigns::new(&[&["<|tool_call:begin|>"]], &["<|tool_call:begin|>"]),
    ..PLAIN
};

/// Functionary 3.1 and Llama's custom tools.
pub static FUNCTION_TAG: CallFormat = CallFormat {
    name: "function_tag",
    call: Span::new("<function=", "</function>"),
    syntax: CallSyntax::NameThenJson(NameThenJson {
        between: ">",
        ..NAME_THEN_JSON
    }),
    signs: FormatSigns::new(&[&["<function="]], &[]),
    ..PLAIN
};
