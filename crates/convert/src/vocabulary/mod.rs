//! Vocabularies between `tokenizer.json` and the `tokenizer.ggml.*` fields of GGUF.
//!
//! The result is loaded again and must tokenize hard strings like the source; otherwise it is
//! refused.

mod to_gguf;
mod to_json;

pub(crate) use to_gguf::to_gguf;
pub(crate) use to_json::to_json;

use loquat_text::{Special, Tokenizer};

/// GGUF's kinds of tokens.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// SentencePiece's visible space.
const METASPACE: &str = "\u{2581}";

/// Where tokenizers differ: spaces, case, contractions, digits, marks, scripts, bytes.
const HARD: &[&str] = &[
    "Hello, world!",
    " leading and  double   spaces ",
    "I'm sure they'll say WE'RE don't I'LL",
    "123 4567 89012345 3.14159 1,000,000",
    "naïve café e\u{301}te\u{301} ÅNGSTRÖM",
    "你好，世界！今天天气怎么样？",
    "日本語のテキスト、カタカナ",
    "한국어 텍스트",
    "Привет, как дела? ЁЖИК",
    "مرحبا بالعالم",
    "🙂🚀👩‍👩‍👧‍👦 emoji",
    "line\nbreaks\r\n\n\n  indented\n\ttab",
    "fn main() { println!(\"{}\", x_1 + y2); } // comment",
    "https://example.org/a?b=c&d=%20#frag",
    "helloWorld HTTPServer snake_case kebab-case",
    "...!!!???---___***",
    "\u{a0}no\u{2003}break\u{200b}zero",
    "ﬁ ligature ½ ² ™ ℌ",
    "a\u{308}\u{323} combining",
    "ไทย हिन्दी தமிழ்",
    "x",
    "",
];

/// The first of the hard strings that two tokenizers split differently.
fn disagreement(one: &Tokenizer, other: &Tokenizer) -> Option<&'static str> {
    let cut = |tokenizer: &Tokenizer, text: &str| tokenizer.encode(text, Special::PROMPT).ok();
    let mut hard = HARD.iter().copied();
    hard.find(|text| cut(one, text) != cut(other, text))
}
