//! Tokenizer files from strangers: refused with the field's name, never a panic or a flood.

use loquat_text::{Special, Tokenizer};
use serde_json::{Value, json};

use crate::common::{byte_level_json, folder};

fn with_normalizer(normalizer: Value) -> Result<Tokenizer, String> {
    let mut json = byte_level_json(Value::Null);
    json["normalizer"] = normalizer;
    let dir = folder(&[("tokenizer.json", json)]);
    Tokenizer::from_huggingface(dir.path()).map_err(|error| error.to_string())
}

fn replace(pattern: &str, content: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
}

#[test]
fn growing_normalizers_are_refused() {
    let doublers = json!({"type": "Sequence", "normalizers": vec![replace("a", "aa"); 30]});
    let error = with_normalizer(doublers).expect_err("2^30");
    assert!(error.contains("tokenizer.json"), "{error}");
    assert!(error.contains("`normalizer` may make a text"), "{error}");
    let prepend = json!({"type": "Prepend", "prepend": "x".repeat(1 << 20)});
    let error = with_normalizer(prepend).expect_err("a megabyte");
    assert!(error.contains("`normalizer.Prepend.prepend`"), "{error}");
}

#[test]
fn texts_that_grow_too_much_are_refused() {
    let steps = [replace("a", &"a".repeat(60)), replace("b", "b")];
    let tokenizer = with_normalizer(json!({"type": "Sequence", "normalizers": steps}));
    let tokenizer = tokenizer.expect("a tokenizer");
    let short = tokenizer.encode("aaa", Special::PLAIN).expect("ids");
    assert_eq!(short.len(), 180);
    let long = "a".repeat(100_000);
    let error = tokenizer
        .encode(&long, Special::PLAIN)
        .expect_err("60 times");
    assert!(
        error.to_string().contains("the normalizer makes more than"),
        "{error}"
    );
}

#[test]
fn added_tokens_that_grow_too_much_are_refused() {
    let mut json = byte_level_json(Value::Null);
    json["normalizer"] = replace("a", &"a".repeat(60));
    json["added_tokens"][3]["content"] = json!("a".repeat(100_000));
    json["added_tokens"][3]["normalized"] = json!(true);
    let dir = folder(&[("tokenizer.json", json)]);
    let error = Tokenizer::from_huggingface(dir.path()).expect_err("60 times");
    assert!(error.to_string().contains("`added_tokens`"), "{error}");
}

#[test]
fn panics_of_the_library_are_errors() {
    // A merge that is longer than every token.
    let mut json = byte_level_json(Value::Null);
    json["model"]["vocab"] = json!({"": 0, "a": 1});
    json["model"]["merges"] = json!([["a", "b"]]);
    let dir = folder(&[("tokenizer.json", json)]);
    let error = Tokenizer::from_huggingface(dir.path()).expect_err("a damaged file");
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
}

#[test]
fn large_side_files_are_refused() {
    let dir = folder(&[("tokenizer.json", byte_level_json(Value::Null))]);
    let file = std::fs::File::create(dir.path().join("tokenizer_config.json")).expect("a file");
    // Sparse: it takes no space on disk.
    file.set_len(1 << 30).expect("a length");
    let error = Tokenizer::from_huggingface(dir.path()).expect_err("a gigabyte");
    assert!(
        error.to_string().contains("tokenizer_config.json"),
        "{error}"
    );
    assert!(
        error.to_string().contains("the limit for its kind"),
        "{error}"
    );
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_refused() {
    for name in [
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ] {
        let dir = folder(&[("tokenizer.json", byte_level_json(Value::Null))]);
        let path = dir.path().join(name);
        let _ = std::fs::remove_file(&path);
        std::os::unix::fs::symlink("/dev/zero", &path).expect("a link");
        let error = if name == "chat_template.jinja" {
            loquat_text::ChatTemplate::from_huggingface(dir.path()).expect_err(name)
        } else {
            Tokenizer::from_huggingface(dir.path()).expect_err(name)
        };
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
}
