//! A tokenizer's normalizer with a limit on the text it makes. A file chooses what its normalizer
//! inserts, so each step is charged before it runs: the library keeps 17 bytes for every byte of a
//! normalized text, and more while a step runs.

use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use tokenizers::normalizers::replace::{Replace, ReplacePattern};
use tokenizers::normalizers::{BertNormalizer, Precompiled};
use tokenizers::utils::SysRegex;
use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper};

use crate::error::LibraryError;

/// How many times longer a text may become. Decomposed Hangul has thrice the bytes, and a
/// byte-level alphabet spells each of them with two.
const MAX_TEXT_GROWTH: usize = 6;
/// Additional bytes, for short texts of rare characters: NFKC turns the three bytes of U+FDFA into
/// 33.
const SLACK: usize = 256 << 10;
/// Longest cluster of characters, in bytes, that the library looks up in a `precompiled_charsmap`.
const MAX_CHARSMAP_KEY: usize = 5;

/// The steps of a normalizer, each with what is needed to predict its output.
#[derive(Debug)]
pub(crate) struct NormalizerSteps(Vec<Step>);

#[derive(Debug)]
struct Step {
    normalizer: NormalizerWrapper,
    /// Of a `Replace`, which does not expose it.
    pattern: Option<Pattern>,
}

#[derive(Debug)]
enum Pattern {
    Text(String),
    Regex(SysRegex),
}

impl NormalizerSteps {
    pub(crate) fn new(normalizer: &NormalizerWrapper) -> Result<Self, LibraryError> {
        let mut steps = Vec::new();
        Step::collect(normalizer, &mut steps)?;
        Ok(Self(steps))
    }

    /// A normalizer for the pieces of one text of this length.
    pub(crate) fn limited(&self, text_bytes: usize) -> LimitedNormalizer<'_> {
        let max_bytes = text_bytes.saturating_mul(MAX_TEXT_GROWTH) + SLACK;
        LimitedNormalizer {
            steps: &self.0,
            max_bytes,
            budget: Mutex::new(Budget {
                room: max_bytes,
                failure: None,
            }),
        }
    }
}

/// A normalizer for one text, which the library normalizes in pieces: between any two added tokens.
/// All pieces share the limit.
pub(crate) struct LimitedNormalizer<'s> {
    steps: &'s [Step],
    max_bytes: usize,
    /// The library requires `Sync`; only one thread normalizes a text.
    budget: Mutex<Budget>,
}

struct Budget {
    /// Bytes left for the pieces to come.
    room: usize,
    /// The library ignores a normalizer's error, so the first is kept for the caller.
    failure: Option<LibraryError>,
}

impl LimitedNormalizer<'_> {
    /// The first error of any piece.
    pub(crate) fn finish(self) -> Result<(), LibraryError> {
        let budget = self.budget.into_inner();
        let budget = budget.unwrap_or_else(PoisonError::into_inner);
        budget.failure.map_or(Ok(()), Err)
    }

    fn apply(&self, text: &mut NormalizedString, room: usize) -> Result<(), LibraryError> {
        for step in self.steps {
            if !step.fits(text.get(), room) {
                let limit = self.max_bytes;
                let problem = format!("the normalizer makes more than {limit} bytes of the text");
                return Err(problem.into());
            }
            step.normalizer.normalize(text)?;
        }
        Ok(())
    }
}

impl Normalizer for LimitedNormalizer<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        let budget = self.budget.lock();
        let mut budget = budget.unwrap_or_else(PoisonError::into_inner);
        match self.apply(text, budget.room) {
            Ok(()) => budget.room = budget.room.saturating_sub(text.get().len()),
            Err(error) => {
                // The result is not wanted, so the pieces to come need not grow.
                budget.room = 0;
                budget.failure.get_or_insert(error);
                text.clear();
            }
        }
        Ok(())
    }
}

impl Step {
    fn collect(normalizer: &NormalizerWrapper, steps: &mut Vec<Self>) -> Result<(), LibraryError> {
        let pattern = match normalizer {
            NormalizerWrapper::Sequence(sequence) => {
                let mut inner = sequence.as_ref().iter();
                return inner.try_for_each(|step| Self::collect(step, steps));
            }
            NormalizerWrapper::Replace(replace) => Some(Pattern::from_replace(replace)?),
            _ => None,
        };
        steps.push(Self {
            normalizer: normalizer.clone(),
            pattern,
        });
        Ok(())
    }

    /// Whether the step's output has at most this many bytes. May deny it for an output that is
    /// slightly shorter, never affirm it for a longer one.
    fn fits(&self, text: &str, room: usize) -> bool {
        let most = match &self.normalizer {
            // Flattened.
            NormalizerWrapper::Sequence(_)
            // These remove characters, or put a space in their place.
            | NormalizerWrapper::StripNormalizer(_)
            | NormalizerWrapper::StripAccents(_)
            | NormalizerWrapper::Nmt(_) => text.len(),
            NormalizerWrapper::Prepend(step) => text.len().saturating_add(step.prepend.len()),
            NormalizerWrapper::Replace(step) => match &self.pattern {
                Some(pattern) => pattern.most_replaced(text, &step.content, room),
                None => usize::MAX,
            },
            NormalizerWrapper::Precompiled(map) => most_mapped(map, text),
            NormalizerWrapper::NFC(_) | NormalizerWrapper::NFD(_) => {
                sum(text, canonical_bytes)
            }
            NormalizerWrapper::NFKC(_) | NormalizerWrapper::NFKD(_) => {
                sum(text, compatibility_bytes)
            }
            NormalizerWrapper::BertNormalizer(step) => sum(text, |c| bert_bytes(step, c)),
            NormalizerWrapper::Lowercase(_) => sum(text, lowercase_bytes),
            NormalizerWrapper::ByteLevel(_) => text.bytes().map(byte_level_bytes).sum(),
        };
        most <= room
    }
}

impl Pattern {
    fn from_replace(replace: &Replace) -> Result<Self, LibraryError> {
        let json = serde_json::to_value(replace)?;
        Ok(match ReplacePattern::deserialize(&json["pattern"])? {
            ReplacePattern::String(text) if !text.is_empty() => Self::Text(text),
            // As the library compiles it.
            ReplacePattern::String(_) => Self::Regex(SysRegex::new("")?),
            ReplacePattern::Regex(regex) => Self::Regex(SysRegex::new(&regex)?),
        })
    }

    /// The bytes of a text whose matches are replaced.
    fn most_replaced(&self, text: &str, content: &str, room: usize) -> usize {
        match self {
            Self::Text(pattern) => {
                let matches = text.matches(pattern.as_str()).count();
                let kept = text.len() - matches * pattern.len();
                matches.saturating_mul(content.len()).saturating_add(kept)
            }
            Self::Regex(regex) => {
                // Searching costs as much as the step, so the worst case is tried first: an empty
                // match at each character.
                let worst = (text.len() + 1).saturating_mul(content.len());
                let worst = worst.saturating_add(text.len());
                if worst <= room {
                    return worst;
                }
                let matches = regex.find_iter(text);
                matches.fold(text.len(), |bytes, (start, end)| {
                    bytes.saturating_add(content.len()) - (end - start)
                })
            }
        }
    }
}

fn sum(text: &str, most: impl Fn(char) -> usize) -> usize {
    text.chars().map(most).sum()
}

/// The library looks up clusters of characters, then single ones, and takes the shortest prefix
/// that the map has. So a character becomes that replacement, stays, or disappears.
fn most_mapped(map: &Precompiled, text: &str) -> usize {
    let starts = text.char_indices().map(|(start, c)| {
        let rest = &text[start..];
        let end = (1..=MAX_CHARSMAP_KEY)
            .rev()
            .find(|end| rest.is_char_boundary(*end));
        let replacement = end.and_then(|end| map.transform(&rest[..end]));
        c.len_utf8().max(replacement.map_or(0, str::len))
    });
    starts.sum()
}

/// The most bytes that NFD makes of a character. NFC then joins characters, which never lengthens
/// them.
fn canonical_bytes(c: char) -> usize {
    if c.is_ascii() { 1 } else { 3 * c.len_utf8() }
}

/// The same for NFKD and NFKC.
fn compatibility_bytes(c: char) -> usize {
    match c {
        '\u{fdfa}' => 33,
        // Repeated signs, words in a square or in parentheses, Arabic words.
        '\u{2057}' | '\u{2a0c}' | '\u{3200}'..='\u{33ff}' | '\u{fdf0}'..='\u{fdff}' => 18,
        _ => canonical_bytes(c),
    }
}

fn bert_bytes(step: &BertNormalizer, c: char) -> usize {
    let spaces = if step.handle_chinese_chars && !c.is_ascii() {
        2
    } else {
        0
    };
    let strips_accents = step.strip_accents.unwrap_or(step.lowercase);
    let letter = if strips_accents {
        canonical_bytes(c)
    } else if step.lowercase {
        lowercase_bytes(c)
    } else {
        c.len_utf8()
    };
    letter + spaces
}

fn lowercase_bytes(c: char) -> usize {
    c.to_lowercase().map(char::len_utf8).sum()
}

/// GPT-2's alphabet keeps printable ASCII, and has a two-byte character for every other byte.
fn byte_level_bytes(byte: u8) -> usize {
    if byte.is_ascii_graphic() { 1 } else { 2 }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn step(json: serde_json::Value) -> Step {
        let normalizer: NormalizerWrapper = serde_json::from_value(json).expect("a normalizer");
        let mut steps = NormalizerSteps::new(&normalizer).expect("steps").0;
        steps.pop().expect("one step")
    }

    fn normalized_len(step: &Step, text: &str) -> usize {
        let mut normalized = NormalizedString::from(text);
        step.normalizer.normalize(&mut normalized).expect("a text");
        normalized.get().len()
    }

    #[test]
    fn predictions_cover_every_character() {
        let bert = |accents, lowercase| {
            json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                "strip_accents": accents, "lowercase": lowercase})
        };
        let steps = [
            json!({"type": "NFC"}),
            json!({"type": "NFD"}),
            json!({"type": "NFKC"}),
            json!({"type": "NFKD"}),
            json!({"type": "Nmt"}),
            json!({"type": "StripAccents"}),
            json!({"type": "Lowercase"}),
            json!({"type": "ByteLevel"}),
            bert(true, true),
            bert(false, true),
            bert(false, false),
        ];
        // Planes without assigned characters are left out.
        let characters = ('\0'..='\u{323af}').chain('\u{e0000}'..='\u{e01ef}');
        let characters: Vec<String> = characters.map(String::from).collect();
        for json in steps {
            let step = step(json.clone());
            for c in &characters {
                let made = normalized_len(&step, c);
                assert!(made == 0 || !step.fits(c, made - 1), "{json} {c:?}");
            }
        }
    }

    #[test]
    fn long_ordinary_texts_fit_published_pipelines() {
        let space = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let spaces = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"});
        let bert = json!({"type": "BertNormalizer", "clean_text": true,
            "handle_chinese_chars": true, "strip_accents": null, "lowercase": true});
        let pipelines = [
            json!([{"type": "NFC"}]),
            json!([{"type": "NFKC"}, spaces]),
            json!([{"type": "Prepend", "prepend": "▁"}, space]),
            json!([{"type": "NFD"}, {"type": "Lowercase"}, {"type": "StripAccents"}]),
            json!([{"type": "NFKD"}, {"type": "ByteLevel"}]),
            json!([bert]),
        ];
        let texts = [
            "word ",
            " ",
            "한국어 ",
            "漢字かな交じり文。",
            "Größe İ ",
            "👩‍👩‍👧‍👦",
            "العربية ",
        ];
        for json in pipelines {
            let json = json!({"type": "Sequence", "normalizers": json});
            let normalizer = serde_json::from_value(json.clone()).expect("a normalizer");
            let steps = NormalizerSteps::new(&normalizer).expect("steps");
            for text in texts {
                let text = text.repeat((1 << 19) / text.len());
                let limited = steps.limited(text.len());
                let mut normalized = NormalizedString::from(text.as_str());
                limited.normalize(&mut normalized).expect("errors are kept");
                limited.finish().expect("an ordinary text");
                assert!(!normalized.get().is_empty(), "{json}");
            }
        }
    }

    #[test]
    fn replacements_are_counted_exactly() {
        let text = "a  bb   c▁é";
        for (pattern, content) in [
            (json!({"String": " "}), "▁"),
            (json!({"String": "bb"}), ""),
            (json!({"String": "zz"}), "long"),
            (json!({"String": ""}), "xy"),
            (json!({"Regex": " {2,}"}), "▁▁▁▁"),
            (json!({"Regex": "x*"}), "xyz"),
            (json!({"Regex": "(?=b)"}), "^"),
        ] {
            let json = json!({"type": "Replace", "pattern": pattern, "content": content});
            let step = step(json);
            let made = normalized_len(&step, text);
            assert!(step.fits(text, made), "{pattern} {content}");
            assert!(!step.fits(text, made - 1), "{pattern} {content}");
        }
    }

    #[test]
    fn pieces_share_one_limit() {
        let normalizer = json!({"type": "Prepend", "prepend": "x".repeat(60)});
        let normalizer: NormalizerWrapper = serde_json::from_value(normalizer).expect("a step");
        let steps = NormalizerSteps::new(&normalizer).expect("steps");
        let limited = steps.limited(10_000);
        let mut made = 0;
        for _ in 0..10_000 {
            let mut piece = NormalizedString::from("a");
            limited.normalize(&mut piece).expect("errors are kept");
            made += piece.get().len();
        }
        assert!(made <= limited.max_bytes, "{made} bytes");
        let error = limited.finish().expect_err("61 times longer");
        assert!(
            error.to_string().contains("more than 322144 bytes"),
            "{error}"
        );
    }
}
