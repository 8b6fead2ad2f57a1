//! Limits on what a `tokenizer.json` may do to a text, checked before the tokenizer library reads
//! the file: files are untrusted, and the library trusts them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;
use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper};

use crate::error::LibraryError;
use crate::limited_normalizer::NormalizerSteps;

/// Steps of a normalizer, a pre-tokenizer or a post-processor. Published files have up to six.
const MAX_STEPS: usize = 32;
/// Bytes that one step inserts: `▁` in published files.
const MAX_INSERTED: usize = 64;
/// Bytes of a regular expression. Published ones have up to 1 kB.
const MAX_PATTERN: usize = 8 << 10;
/// Bytes of `precompiled_charsmap`, and of one of its replacements. Published maps have 240 kB, and
/// replacements of up to 33 bytes (U+FDFA).
const MAX_CHARSMAP: usize = 4 << 20;
const MAX_REPLACEMENT: usize = 128;
/// Tokens that a post-processor adds, and the pieces of its templates.
const MAX_PIECES: usize = 64;
/// How many times longer all steps together may make a text in the worst case.
const MAX_GROWTH: usize = 4096;

/// The parts of a `tokenizer.json` that decide what happens to a text. The vocabulary is skipped.
#[derive(Deserialize)]
struct Pipeline {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    added_tokens: Vec<AddedContent>,
}

/// A token that is matched as a unit. The library normalizes it while it reads the file.
#[derive(Deserialize)]
struct AddedContent {
    #[serde(default)]
    content: String,
}

/// Checks the pipeline of a `tokenizer.json`. The error names the field.
pub(crate) fn check(file: &[u8]) -> Result<(), LibraryError> {
    let pipeline: Pipeline = serde_json::from_slice(file)?;
    let mut growth = 1;
    for step in steps(&pipeline.normalizer, "normalizer", "normalizers")? {
        growth = usize::saturating_mul(growth, normalizer_growth(step)?);
    }
    if growth > MAX_GROWTH {
        return Err(format!(
            "`normalizer` may make a text {growth} times longer; at most {MAX_GROWTH} is allowed"
        )
        .into());
    }
    for step in steps(&pipeline.pre_tokenizer, "pre_tokenizer", "pretokenizers")? {
        pattern_bytes(step, "pre_tokenizer")?;
    }
    for step in steps(&pipeline.post_processor, "post_processor", "processors")? {
        check_post_processor(step)?;
    }
    check_added_tokens(pipeline)
}

/// Added tokens may grow as much as a text of their length.
fn check_added_tokens(pipeline: Pipeline) -> Result<(), LibraryError> {
    let tokens = pipeline.added_tokens;
    if pipeline.normalizer.is_null() || tokens.is_empty() {
        return Ok(());
    }
    without_panics(|| {
        let normalizer: NormalizerWrapper = serde_json::from_value(pipeline.normalizer)?;
        let steps = NormalizerSteps::new(&normalizer)?;
        let limited = steps.limited(tokens.iter().map(|token| token.content.len()).sum());
        for token in tokens {
            limited.normalize(&mut NormalizedString::from(token.content))?;
        }
        limited
            .finish()
            .map_err(|error| format!("`added_tokens`: {error}").into())
    })
}

/// The steps of a sequence, which may contain sequences.
fn steps<'v>(value: &'v Value, field: &str, list: &str) -> Result<Vec<&'v Value>, LibraryError> {
    let mut found = Vec::new();
    let mut open = vec![value];
    while let Some(step) = open.pop() {
        let kind = step.get("type").and_then(Value::as_str);
        match step.get(list) {
            // Old files leave the type out.
            Some(Value::Array(inner)) if kind.is_none_or(|kind| kind == "Sequence") => {
                open.extend(inner.iter().rev());
            }
            _ if step.is_null() => {}
            _ => found.push(step),
        }
        if found.len() + open.len() > MAX_STEPS {
            return Err(format!("`{field}` has more than {MAX_STEPS} steps").into());
        }
    }
    Ok(found)
}

/// How many times longer a step may make a text.
fn normalizer_growth(step: &Value) -> Result<usize, LibraryError> {
    let kind = step.get("type").and_then(Value::as_str).unwrap_or_default();
    let inserted = |name: &str| {
        let length = step.get(name).and_then(Value::as_str).map_or(0, str::len);
        if length > MAX_INSERTED {
            let field = format!("normalizer.{kind}.{name}");
            return Err(too_long(&field, length, MAX_INSERTED));
        }
        Ok(length)
    };
    Ok(match kind {
        // Applied to each piece between added tokens, which may be one character.
        "Prepend" => inserted("prepend")? + 1,
        "Replace" => {
            pattern_bytes(step, "normalizer")?;
            let content = inserted("content")?;
            match step["pattern"].get("String").and_then(Value::as_str) {
                Some(pattern) if !pattern.is_empty() => content.div_ceil(pattern.len()).max(1),
                _ => content + 1,
            }
        }
        "Precompiled" => charsmap_growth(step)?,
        // U+FDFA has 3 bytes, and 33 when it is decomposed.
        "NFC" | "NFD" | "NFKC" | "NFKD" => 11,
        "BertNormalizer" | "Bert" => 12,
        "ByteLevel" | "Lowercase" => 2,
        _ => 1,
    })
}

fn pattern_bytes(step: &Value, field: &str) -> Result<(), LibraryError> {
    let pattern = ["Regex", "String"]
        .iter()
        .find_map(|kind| step["pattern"].get(kind));
    let length = pattern.and_then(Value::as_str).map_or(0, str::len);
    if length > MAX_PATTERN {
        return Err(too_long(&format!("{field}.pattern"), length, MAX_PATTERN));
    }
    Ok(())
}

/// The longest replacement of a `precompiled_charsmap`: a trie behind its size, then replacements
/// that end with zeros.
fn charsmap_growth(step: &Value) -> Result<usize, LibraryError> {
    const FIELD: &str = "normalizer.precompiled_charsmap";
    let encoded = step["precompiled_charsmap"].as_str().unwrap_or_default();
    if encoded.len() > MAX_CHARSMAP {
        return Err(too_long(FIELD, encoded.len(), MAX_CHARSMAP));
    }
    let map = STANDARD
        .decode(encoded)
        .map_err(|error| format!("`{FIELD}` is not base64: {error}"))?;
    let truncated = || format!("`{FIELD}` is shorter than the trie it announces");
    let (size, rest) = map.split_first_chunk().ok_or_else(truncated)?;
    let size = u32::from_le_bytes(*size) as usize;
    let replacements = rest.get(size..).ok_or_else(truncated)?;
    if size == 0 {
        return Err(format!("`{FIELD}` has an empty trie").into());
    }
    let longest = replacements.split(|byte| *byte == 0).map(<[u8]>::len).max();
    match longest.unwrap_or(0) {
        longest if longest > MAX_REPLACEMENT => Err(too_long(FIELD, longest, MAX_REPLACEMENT)),
        longest => Ok(longest.max(1)),
    }
}

fn check_post_processor(step: &Value) -> Result<(), LibraryError> {
    for field in ["single", "pair"] {
        let pieces = step[field].as_array().map_or(0, Vec::len);
        if pieces > MAX_PIECES {
            let field = format!("post_processor.{field}");
            return Err(too_long(&field, pieces, MAX_PIECES));
        }
    }
    let tokens = step["special_tokens"].as_object();
    for (name, token) in tokens.into_iter().flatten() {
        let ids = token["ids"].as_array().map_or(0, Vec::len);
        if ids > MAX_PIECES {
            let field = format!("post_processor.special_tokens.{name}.ids");
            return Err(too_long(&field, ids, MAX_PIECES));
        }
    }
    Ok(())
}

fn too_long(field: &str, length: usize, max: usize) -> LibraryError {
    format!("`{field}` has a length of {length}; at most {max} is allowed").into()
}

/// Runs the tokenizer library, whose panics become errors with the panic's message.
pub(crate) fn without_panics<T>(
    run: impl FnOnce() -> Result<T, LibraryError>,
) -> Result<T, LibraryError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(panic_message(&*panic).into()))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    match text {
        Some(text) => format!("the tokenizer library failed: {text}"),
        None => "the tokenizer library failed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn charsmap(trie: &[u32], replacements: &[u8]) -> String {
        let mut map = (trie.len() as u32 * 4).to_le_bytes().to_vec();
        map.extend(trie.iter().flat_map(|unit| unit.to_le_bytes()));
        map.extend(replacements);
        STANDARD.encode(map)
    }

    #[test]
    fn hostile_pipelines_name_their_field() {
        let doubler = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
        let piece = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
        let cases = [
            (
                json!({"normalizer": {"type": "Prepend", "prepend": "x".repeat(65)}}),
                "`normalizer.Prepend.prepend` has a length of 65",
            ),
            (
                json!({"normalizer": {"type": "Replace", "pattern": {"String": "a"},
                    "content": "x".repeat(1000)}}),
                "`normalizer.Replace.content`",
            ),
            (
                json!({"normalizer": {"type": "Replace", "pattern": {"String": "a"},
                    "content": "x".repeat(1000), "normalizers": []}}),
                "`normalizer.Replace.content`",
            ),
            (
                json!({"normalizer": {"type": "Sequence", "normalizers": vec![doubler; 20]}}),
                "`normalizer` may make a text 1048576 times longer",
            ),
            (
                json!({"normalizer": {"type": "Sequence",
                    "normalizers": vec![json!({"type": "NFC"}); 40]}}),
                "`normalizer` has more than 32 steps",
            ),
            (
                json!({"normalizer": {"type": "Precompiled",
                    "precompiled_charsmap": charsmap(&[0], &[b'x'; 200])}}),
                "`normalizer.precompiled_charsmap` has a length of 200",
            ),
            (
                json!({"normalizer": {"type": "Precompiled",
                    "precompiled_charsmap": STANDARD.encode(u32::MAX.to_le_bytes())}}),
                "shorter than the trie",
            ),
            (
                json!({"pre_tokenizer": {"type": "Split",
                    "pattern": {"Regex": "a".repeat(9000)}}}),
                "`pre_tokenizer.pattern`",
            ),
            (
                json!({"post_processor": {"type": "TemplateProcessing",
                    "single": vec![piece; 100]}}),
                "`post_processor.single` has a length of 100",
            ),
            (
                json!({"post_processor": {"type": "TemplateProcessing", "single": [],
                    "special_tokens": {"<s>": {"ids": vec![1; 100]}}}}),
                "`post_processor.special_tokens.<s>.ids`",
            ),
        ];
        for (json, message) in cases {
            let error = check(json.to_string().as_bytes()).expect_err(message);
            assert!(error.to_string().contains(message), "{error}");
        }
    }

    #[test]
    fn published_pipelines_are_accepted() {
        let space = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let many = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"});
        let map = charsmap(&[0], "(صلى الله عليه وسلم)\0".as_bytes());
        let precompiled = json!({"type": "Precompiled", "precompiled_charsmap": map});
        let cases = [
            json!([{"type": "Prepend", "prepend": "▁"}, space]),
            json!([{"type": "Strip"}, precompiled, many]),
            json!([{"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, precompiled]),
        ];
        for normalizers in cases {
            let json = json!({"normalizer": {"type": "Sequence", "normalizers": normalizers}});
            check(json.to_string().as_bytes()).expect("a published pipeline");
        }
    }

    #[test]
    fn panics_become_errors_with_their_message() {
        let error = without_panics::<()>(|| panic!("index {} is out of bounds", 7));
        let message = error.expect_err("a panic").to_string();
        assert_eq!(
            message,
            "the tokenizer library failed: index 7 is out of bounds"
        );
    }
}
