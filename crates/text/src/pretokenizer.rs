//! Pre-tokenizers for byte-level BPE, by the name in a GGUF file (`tokenizer.ggml.pre`).
//!
//! The patterns come from the models' published `tokenizer.json` files, so they use Unicode classes
//! directly. Each pattern splits the pieces of the one before.

use crate::{Result, TextError};

/// Splitting rules, and the tokenizer settings that go with the same name.
#[derive(Debug)]
pub struct PreTokenizer {
    names: &'static [&'static str],
    /// Applied in order. Each match becomes a piece.
    pub splits: &'static [&'static str],
    /// A word that is a token is used without applying merges.
    pub ignore_merges: bool,
    /// Whether the BOS token is added if the file does not specify it.
    pub adds_bos: bool,
    /// Text is normalized to Unicode NFC first. GGUF has no field for it.
    pub composes: bool,
}

impl PreTokenizer {
    const fn composing(self) -> Self {
        Self {
            composes: true,
            ..self
        }
    }
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK_V3_WORDS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
/// Letters by range; those that normalisation would change are written by number.
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const DEEPSEEK_CJK: &str = r"[一-龥ࠀ-一가-퟿]+";

/// The values most entries share.
const fn plain(names: &'static [&'static str], splits: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer {
        names,
        splits,
        ignore_merges: false,
        adds_bos: false,
        composes: false,
    }
}

static PRE_TOKENIZERS: &[PreTokenizer] = &[
    plain(
        &["default"],
        &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    ),
    plain(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "exaone4",
            "granite-docling",
            "gigachat",
            "a.x-4.0",
            "mellum",
        ],
        &[GPT2],
    ),
    plain(
        &[
            "smollm",
            "starcoder",
            "refact",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        &[r"\p{N}", GPT2],
    ),
    plain(&["command-r"], &[r"\p{N}", GPT2]).composing(),
    PreTokenizer {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
        ],
        splits: &[LLAMA3],
        ignore_merges: true,
        adds_bos: true,
        composes: false,
    },
    plain(&["smaug-bpe", "dbrx", "glm4", "chatglm-bpe"], &[LLAMA3]),
    plain(
        &[
            "deepseek-r1-qwen",
            "stablelm2",
            "hunyuan",
            "megrez",
            "solar-open",
            "grok-2",
            "kormo",
        ],
        &[QWEN2],
    ),
    plain(&["qwen2", "qwen2.5", "qwen3"], &[QWEN2]).composing(),
    plain(&["qwen35"], &[QWEN35]).composing(),
    PreTokenizer {
        names: &["tekken", "mistral"],
        splits: &[TEKKEN],
        ignore_merges: true,
        adds_bos: true,
        composes: false,
    },
    plain(&["gpt-4o", "llama4", "kanana2", "minimax-m2"], &[GPT4O]),
    plain(
        &["deepseek-llm"],
        &[
            "[\r\n]",
            DEEPSEEK_LETTERS,
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            DEEPSEEK_CJK,
            r"\p{N}+",
        ],
    ),
    plain(
        &["deepseek-coder"],
        &["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}"],
    ),
    plain(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK_V3_WORDS],
    ),
    plain(
        &["falcon"],
        &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    ),
    plain(
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        &[
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ],
    ),
    plain(
        &["seed-coder"],
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    ),
    plain(
        &["exaone-moe"],
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        ],
    ),
    plain(
        &["poro-chat", "bloom", "gpt3-finnish"],
        &[r" ?[^(\s|.,!?…。，、।۔،)]+"],
    ),
    plain(&["viking"], &[r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"]),
];

/// The pre-tokenizer a file names.
pub fn find(name: &str) -> Result<&'static PreTokenizer> {
    let mut all = PRE_TOKENIZERS.iter();
    all.find(|entry| entry.names.contains(&name))
        .ok_or_else(|| TextError::UnknownPreTokenizer {
            name: name.to_owned(),
            known: known_names().join(", "),
        })
}

/// One name per pre-tokenizer, for writers of GGUF files.
pub fn distinct_names() -> impl Iterator<Item = &'static str> {
    let entries = PRE_TOKENIZERS.iter();
    entries.filter_map(|entry| entry.names.first().copied())
}

fn known_names() -> Vec<&'static str> {
    let entries = PRE_TOKENIZERS.iter();
    entries.flat_map(|entry| entry.names).copied().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    use super::*;

    fn cut(name: &str, text: &str) -> Vec<String> {
        let mut pieces = PreTokenizedString::from(text);
        for pattern in find(name).map_or(&[][..], |entry| entry.splits) {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            let behavior = tokenizers::SplitDelimiterBehavior::Isolated;
            let split = Split::new(pattern, behavior, false).expect("the pattern compiles");
            split.pre_tokenize(&mut pieces).expect("the text splits");
        }
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits
            .into_iter()
            .map(|(text, ..)| text.to_owned())
            .collect()
    }

    #[test]
    fn patterns_compile_and_keep_all_text() {
        let text = "I'M 12345 naïve—naïve 你好, don't?!\n\n  \t end…  ";
        for name in known_names() {
            assert_eq!(cut(name, text).concat(), text, "{name}");
        }
    }

    #[test]
    fn named_patterns_split_like_their_models() {
        let cases: [(&str, &str, &[&str]); 6] = [
            ("gpt-2", "it's 1234  x", &["it", "'s", " 1234", " ", " x"]),
            ("llama-bpe", "IT'S 12345", &["IT", "'S", " ", "123", "45"]),
            ("qwen2", "a 123", &["a", " ", "1", "2", "3"]),
            ("smollm", "a 12", &["a", " ", "1", "2"]),
            ("tekken", "helloWorld", &["hello", "World"]),
            ("deepseek-v3", "x1234你好", &["x", "123", "4", "你好"]),
        ];
        for (name, text, pieces) in cases {
            assert_eq!(cut(name, text), pieces, "{name}");
        }
    }

    #[test]
    fn names_are_unique_and_unknown_ones_are_refused() {
        let names = known_names();
        let distinct: HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        let refusal = find("klingon").expect_err("no such name").to_string();
        assert!(refusal.contains("klingon") && refusal.contains("llama-bpe"));
    }
}
