//! Calls whose parameters are elements with raw text.

use super::super::data::{CallFormat, CallSyntax, FormatSigns, RawValue, Span, Tagged};
use super::PLAIN;

pub static DEEPSEEK_V32: CallFormat = CallFormat {
    name: "deepseek_v32",
    section: Span::new("<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>"),
    signs: FormatSigns::new(&[&["｜DSML｜", "function_calls>"]], &["｜DSML｜"]),
    ..DSML
};

pub static DEEPSEEK_V4: CallFormat = DSML;

const DSML: CallFormat = CallFormat {
    name: "deepseek_v4",
    section: Span::new("<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>"),
    syntax: CallSyntax::Tagged(Tagged {
        name: Span::new("<｜DSML｜invoke name=\"", "\">\n"),
        key_open: "<｜DSML｜parameter name=\"",
        key_close: &[
            ("\" string=\"true\">", RawValue::Text),
            ("\" string=\"false\">", RawValue::Json),
        ],
        value_open: "",
        value_close: "</｜DSML｜parameter>\n",
        padded: false,
        end: "</｜DSML｜invoke>\n",
    }),
    ends_reasoning: true,
    signs: FormatSigns::new(&[&["｜DSML｜", "tool_calls>"]], &["｜DSML｜"]),
    ..PLAIN
};

pub static MINIMAX_M2: CallFormat = CallFormat {
    name: "minimax_m2",
    section: Span::new("<minimax:tool_call>\n", "</minimax:tool_call>"),
    syntax: CallSyntax::Tagged(Tagged {
        name: Span::new("<invoke name=\"", "\">\n"),
        key_open: "<parameter name=\"",
        key_close: &[("\">", RawValue::BySchema)],
        value_open: "",
        value_close: "</parameter>\n",
        padded: false,
        end: "</invoke>\n",
    }),
    ends_reasoning: true,
    signs: FormatSigns::new(&[&["<minimax:tool_call>"]], &["<minimax:tool_call>"]),
    ..PLAIN
};

pub static SEED: CallFormat = CallFormat {
    name: "seed",
    call: Span::new("<seed:tool_call>\n", "</seed:tool_call>"),
    separator: "\n",
    syntax: CallSyntax::Tagged(Tagged {
        key_close: &[(">", RawValue::BySchema)],
        value_close: "</parameter>\n",
        padded: false,
        ..FUNCTION_AND_PARAMETERS
    }),
    signs: FormatSigns::new(
        &[&["<seed:tool_call>"], &["<function=", "seed:"]],
        &["<seed:tool_call>"],
    ),
    ..PLAIN
};

/// Qwen 3 Coder, Qwen 3.5, Nemotron 3 and StepFun 3.5.
pub static QWEN3_CODER: CallFormat = CallFormat {
    name: "qwen3_coder",
    call: Span::new("<tool_call>\n", "</tool_call>"),
    separator: "\n",
    syntax: CallSyntax::Tagged(FUNCTION_AND_PARAMETERS),
    signs: FormatSigns::new(&[&["<function=", "<parameter="]], &[]),
    ..PLAIN
};

const FUNCTION_AND_PARAMETERS: Tagged = Tagged {
    name: Span::new("<function=", ">\n"),
    key_open: "<parameter=",
    key_close: &[(">\n", RawValue::BySchema)],
    value_open: "",
    value_close: "\n</parameter>\n",
    padded: true,
    end: "</function>\n",
};

/// Hunyuan 3, whose template puts a suffix on every tag.
pub static HUNYUAN3: CallFormat = CallFormat {
    name: "hunyuan3",
    section: Span::new("<tool_calls:opensource>\n", "</tool_calls:opensource>"),
    call: Span::new("<tool_call:opensource>", "</tool_call:opensource>\n"),
    syntax: CallSyntax::Tagged(Tagged {
        name: Span::new("", "<tool_sep:opensource>\n"),
        key_open: "<arg_key:opensource>",
        key_close: &[("</arg_key:opensource>\n", RawValue::BySchema)],
        value_open: "<arg_value:opensource>",
        value_close: "</arg_value:opensource>\n",
        padded: false,
        end: "",
    }),
    signs: FormatSigns::new(
        &[&["'<arg_key{}>'", ":opensource"]],
        &["<tool_calls:opensource>"],
    ),
    ..PLAIN
};

/// GLM 4.7 and Laguna: as GLM 4.5, without the line breaks.
pub static GLM47: CallFormat = CallFormat {
    name: "glm47",
    syntax: CallSyntax::Tagged(Tagged {
        name: Span::NONE,
        key_close: &[("</arg_key>", RawValue::BySchema)],
        value_close: "</arg_value>",
        ..GLM_ARGUMENTS
    }),
    separator: "",
    signs: FormatSigns::new(&[&["</arg_key><arg_value>"]], &[]),
    ..GLM_TAGS
};

/// GLM 4.5 and 4.6.
pub static GLM45: CallFormat = GLM_TAGS;

const GLM_TAGS: CallFormat = CallFormat {
    name: "glm45",
    call: Span::new("<tool_call>", "</tool_call>"),
    separator: "\n",
    syntax: CallSyntax::Tagged(GLM_ARGUMENTS),
    signs: FormatSigns::new(&[&["<arg_key>"]], &["<arg_key>"]),
    ..PLAIN
};

const GLM_ARGUMENTS: Tagged = Tagged {
    name: Span::new("", "\n"),
    key_open: "<arg_key>",
    key_close: &[("</arg_key>\n", RawValue::BySchema)],
    value_open: "<arg_value>",
    value_close: "</arg_value>\n",
    padded: false,
    end: "",
};

pub static MINICPM5: CallFormat = CallFormat {
    name: "minicpm5",
    call: Span::new("<function name=\"", "</function>"),
    syntax: CallSyntax::Tagged(Tagged {
        name: Span::new("", "\">"),
        key_open: "<param name=\"",
        key_close: &[("\">", RawValue::BySchema)],
        value_open: "",
        value_close: "</param>",
        padded: false,
        end: "",
    }),
    signs: FormatSigns::new(&[&["<function name=\"", "<param name=\""]], &[]),
    ..PLAIN
};
