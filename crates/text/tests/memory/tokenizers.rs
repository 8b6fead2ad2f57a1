//! What a hostile tokenizer allocates.

use loquat_text::{Special, Tokenizer};
use serde_json::{Value, json};

use crate::{peak_bytes, run_alone};

/// A text whose every letter is a piece costs the library about 250 bytes per byte, whatever the
/// normalizer does. Without a limit these cases take from 1,300 to 11,000.
const MAX_BYTES_PER_BYTE: usize = 400;

/// A tokenizer of the letters `a` and `b`. `b` is an added token.
fn tokenizer(normalizers: &[Value]) -> Tokenizer {
    let json = json!({
        "version": "1.0",
        "added_tokens": [{
            "id": 1, "content": "b", "special": false, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false,
        }],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true,
        },
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
    });
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).expect("a file");
    Tokenizer::from_huggingface(dir.path()).expect("a tokenizer")
}

#[test]
fn hostile_normalizers_are_refused_before_they_allocate() {
    let _alone = run_alone();
    let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(64)});
    let regex = json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "a".repeat(63)});
    let prepend = json!({"type": "Prepend", "prepend": "a".repeat(63)});
    let cases = [
        ("one step", "a", vec![replace.clone()]),
        ("a regex", "a", vec![regex]),
        ("two steps", "a", vec![replace.clone(), replace.clone()]),
        ("pieces", "ab", vec![prepend.clone(), replace]),
        (
            "pieces and small steps",
            "ab",
            vec![prepend.clone(), prepend],
        ),
    ];
    for (name, text, normalizers) in cases {
        let tokenizer = tokenizer(&normalizers);
        let text = text.repeat((1 << 20) / text.len());
        let mut result = Ok(Vec::new());
        let peak = peak_bytes(|| result = tokenizer.encode(&text, Special::PLAIN));
        let error = result.expect_err(name).to_string();
        assert!(error.contains("the normalizer makes more than"), "{error}");
        assert!(
            peak <= MAX_BYTES_PER_BYTE << 20,
            "{name}: {} MiB",
            peak >> 20
        );
    }
}
