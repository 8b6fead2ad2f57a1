//! How models mark their thinking. The order is that of detection: the particular before the
//! general.

use super::data::{FormatSigns, Framing, ReasoningFormat};

/// Every format known.
pub static REASONING: &[&ReasoningFormat] = &[
    &HARMONY,
    &GEMMA4,
    &COMMAND_TEXT,
    &COMMAND,
    &MISTRAL,
    &SEED,
    &KIMI_VL,
    &KIMI_K3,
    &APERTUS,
    &SOLAR,
    &MINIMAX_M3,
    &HUNYUAN3,
    &APRIEL,
    &GRANITE,
    &THINK_RESPONSE,
    &THINK_ANSWER,
    &THINK,
];

/// gpt-oss: an `analysis` channel; the `commentary` and `final` channels are the answer.
pub static HARMONY: ReasoningFormat = ReasoningFormat {
    name: "harmony",
    open: &["<|channel|>analysis<|message|>"],
    close: &["<|end|>"],
    silent: &[],
    open_text: "<|channel|>analysis<|message|>",
    close_text: "<|end|><|start|>assistant",
    answer_text: "<|channel|>final<|message|>",
    framing: Framing::Channels,
    signs: FormatSigns::new(
        &[&["<|channel|>analysis<|message|>"]],
        &[
            "<|channel|>",
            "<|start|>",
            "<|message|>",
            "<|constrain|>",
            "<|end|>",
            "<|call|>",
            "<|return|>",
        ],
    ),
};

static GEMMA4: ReasoningFormat = ReasoningFormat {
    name: "gemma4",
    open: &["<|channel>thought"],
    close: &["<channel|>"],
    silent: &[],
    open_text: "<|channel>thought\n",
    close_text: "\n<channel|>",
    answer_text: "",
    framing: Framing::Inline,
    signs: FormatSigns::new(&[&["<|channel>thought"]], &["<|channel>", "<channel|>"]),
};

/// Command A and R7B.
static COMMAND: ReasoningFormat = COMMAND_TAGS;

/// Cohere's later models, which name the answer differently.
static COMMAND_TEXT: ReasoningFormat = ReasoningFormat {
    name: "command_text",
    silent: &["<|START_TEXT|>", "<|END_TEXT|>"],
    answer_text: "<|START_TEXT|>",
    signs: FormatSigns::new(
        &[&["<|START_THINKING|>", "<|START_TEXT|>"]],
        &["<|START_TEXT|>", "<|END_TEXT|>"],
    ),
    ..COMMAND_TAGS
};

const COMMAND_TAGS: ReasoningFormat = ReasoningFormat {
    name: "command",
    open: &["<|START_THINKING|>"],
    close: &["<|END_THINKING|>"],
    silent: &["<|START_RESPONSE|>", "<|END_RESPONSE|>"],
    open_text: "<|START_THINKING|>",
    close_text: "<|END_THINKING|>",
    answer_text: "<|START_RESPONSE|>",
    framing: Framing::Inline,
    signs: FormatSigns::new(&[&["<|START_THINKING|>"]], &["<|START_THINKING|>"]),
};

static MISTRAL: ReasoningFormat = ReasoningFormat {
    name: "mistral",
    open: &["[THINK]"],
    close: &["[/THINK]"],
    silent: &[],
    open_text: "[THINK]",
    close_text: "[/THINK]",
    answer_text: "",
    framing: Framing::Inline,
    signs: FormatSigns::new(&[&["[THINK]"]], &["[THINK]"]),
};

static SEED: ReasoningFormat = ReasoningFormat {
    name: "seed",
    open: &["<seed:think>"],
    close: &["</seed:think>"],
    silent: &[],
    open_text: "<seed:think>",
    close_text: "</seed:think>",
    answer_text: "",
    framing: Framing::Inline,
    signs: FormatSigns::new(&[&["<seed:think>"]], &["<seed:think>"]),
};

static KIMI_VL: ReasoningFormat = ReasoningFormat {
    name: "kimi_vl",
    open: &["◁think▷"],
    close: &["◁/think▷"],
    silent: &[],
    open_text: "◁think▷",
    close_text: "◁/think▷",
    answer_text: "",
    framing: Framing::Inline,
    signs: FormatSigns::new(&[&["◁think▷"]], &["◁think▷"]),
};

static KIMI_K3: ReasoningFormat = ReasoningFormat {
    name: "kimi_k3",
    open: &["<|open|>think<|sep|>"],
    close: &["<|close|>think<|sep|>"],
    silent: &[
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
        "<|end_of_msg|>",
    ],
    open_text: "<|open|>think<|sep|>",
    close_text: "<|close|>think<|sep|>",
    answer_text: "<|open|>response<|sep|>",
    framing: Framing::Inline,
    signs: FormatSigns::new(
        &[&["'<|open|>' + tag", "open_tag('think')"]],
        &["<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>"],
    ),
};

static APERTUS: ReasoningFormat = ReasoningFormat {
    name: "apertus",
    open: &["<|inner_prefix|>"],
    close: &["<|inner_suffix|>"],
    silent: &[],
    open_text: "<|inner_prefix|>",
    close_text: "<|inner_suffix|>",
    answer_text: "",
    framing: Framing::Inline,
    signs: FormatSigns::new(&[&["<|inner_prefix|>"]], &["<|inner_prefix|>"]),
};

static SOLAR: ReasoningFormat = ReasoningFormat {
    name: "solar",
    open: &["<|think|>"],
    close: &["<|end|>"],
    silent: &["<|begin|>assistant", "<|content|>", "<|calls|>"],
    open_text: "<|think|>",
    close_text: "<|end|><|begin|>assistant",
    answer_text: "<|content|>",
    framing: Framing::Inline,
    signs: FormatSigns::new(
        &[&["<|begin|>assistant<|think|>"]],
        &[
            "<|think|>",
            "<|end|>",
            "<|begin|>",
            "<|content|>",
            "<|calls|>",
        ],
    ),
};

static MINIMAX_M3: ReasoningFormat = ReasoningFormat {
    name: "minimax_m3",
    open: &["<mm:think>"],
    close: &["</mm:think>"],
    silent: &[],
    open_text: "<mm:think>",
    close_text: "</mm:think>",
    answer_text: "",
    framing: Framing::Inline,
    signs: FormatSigns::new(&[&["<mm:think>"]], &["<mm:think>"]),
};

/// Hunyuan 3, whose template puts a suffix on every tag.
static HUNYUAN3: ReasoningFormat = ReasoningFormat {
    name: "hunyuan3",
    open: &["<think:opensource>"],
    close: &["</think:opensource>"],
    silent: &[],
    open_text: "<think:opensource>",
    close_text: "</think:opensource>",
    answer_text: "",
    framing: Framing::Inline,
    signs: FormatSigns::new(&[&["'<think{}>'", ":opensource"]], &["<think:opensource>"]),
};

static APRIEL: ReasoningFormat = ReasoningFormat {
    name: "apriel",
    open: &["Here are my reasoning steps:"],
    close: &["[BEGIN FINAL RESPONSE]"],
    silent: &["[END FINAL RESPONSE]"],
    open_text: "Here are my reasoning steps:\n",
    close_text: "\n[BEGIN FINAL RESPONSE]\n",
    answer_text: "",
    framing: Framing::Inline,
    signs: FormatSigns::new(&[&["[BEGIN FINAL RESPONSE]"]], &["[BEGIN FINAL RESPONSE]"]),
};

/// Granite 3.2, which marks its parts in plain words.
static GRANITE: ReasoningFormat = ReasoningFormat {
    name: "granite",
    open: &["Here is my thought process:", "Here's my thought process:"],
    close: &["Here is my response:", "Here's my response:"],
    silent: &[],
    open_text: "Here is my thought process:\n\n",
    close_text: "\n\nHere is my response:\n\n",
    answer_text: "",
    framing: Framing::Inline,
    signs: FormatSigns::new(
        &[
            &["Here is my thought process:"],
            &["Here's my thought process:"],
        ],
        &[],
    ),
};

/// Granite 3.3 and Ernie 4.5: the answer has a tag too.
static THINK_RESPONSE: ReasoningFormat = ReasoningFormat {
    name: "think_response",
    answer_text: "<response>",
    silent: &["<response>", "</response>"],
    signs: FormatSigns::new(
        &[
            &["<think>", "<response></response>"],
            &["<think>", "<response>\\n"],
        ],
        &[],
    ),
    ..THINK_TAGS
};

/// Hunyuan A13B: the answer has a tag too.
static THINK_ANSWER: ReasoningFormat = ReasoningFormat {
    name: "think_answer",
    answer_text: "<answer>",
    silent: &["<answer>", "</answer>"],
    signs: FormatSigns::new(&[&["<think>", "<answer>"]], &[]),
    ..THINK_TAGS
};

/// Qwen 3, DeepSeek, GLM, MiniMax M2, LFM2, SmolLM3, Nemotron, Kimi K2 Thinking and many others.
pub static THINK: ReasoningFormat = THINK_TAGS;

const THINK_TAGS: ReasoningFormat = ReasoningFormat {
    name: "think",
    open: &["<think>"],
    close: &["</think>"],
    silent: &[],
    open_text: "<think>\n",
    close_text: "\n</think>\n\n",
    answer_text: "",
    framing: Framing::Inline,
    signs: FormatSigns::new(&[&["<think>"], &["</think>"]], &["<think>"]),
};
