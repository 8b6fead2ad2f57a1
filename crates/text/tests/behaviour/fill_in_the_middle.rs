//! Prompts for text between a prefix and a suffix.

use loquat_text::{Blame, FimPrompt, TextError, Tokenizer};
use loquat_weights::gguf::Value;
use serde_json::json;

use crate::common::{bos_template, byte_level, byte_level_json, folder, sentencepiece_metadata};

/// A byte-level vocabulary with these special tokens from id 260 on.
fn with_tokens(tokens: &[&str]) -> Tokenizer {
    let mut json = byte_level_json(bos_template());
    let added = json["added_tokens"].as_array_mut().expect("a list");
    added.extend(tokens.iter().zip(260..).map(|(token, id)| {
        json!({
            "id": id, "content": token, "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false,
        })
    }));
    let dir = folder(&[("tokenizer.json", json)]);
    Tokenizer::from_huggingface(dir.path()).expect("a tokenizer")
}

fn prompt<'a>(files: &'a [(String, String)]) -> FimPrompt<'a> {
    FimPrompt {
        prefix: "a<eos>",
        suffix: "b",
        files,
    }
}

#[test]
fn prompt_follows_the_vocabulary() {
    let qwen = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"];
    let cases: [(&[&str], &str); 2] = [
        (
            &qwen,
            "<bos><|fim_prefix|>a<eos><|fim_suffix|>b<|fim_middle|>",
        ),
        (&["[PREFIX]", "[SUFFIX]"], "<bos>[SUFFIX]b[PREFIX]a<eos>"),
    ];
    for (tokens, written) in cases {
        let tokenizer = with_tokens(tokens);
        let (ids, fim) = tokenizer.encode_fim(prompt(&[])).expect("a prompt");
        assert_eq!(tokenizer.decode(&ids, false), written);
        // The text's own `<eos>` is characters.
        assert!(!ids.contains(&257));
        assert!(fim.ends.contains(&260));
    }
}

#[test]
fn other_files_come_first() {
    let tokens = [
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        "<file_sep>",
        "<reponame>",
    ];
    let tokenizer = with_tokens(&tokens);
    let files = [("x.py".to_owned(), "x\n".to_owned())];
    let (ids, _) = tokenizer.encode_fim(prompt(&files)).expect("a prompt");
    let written = "<bos><reponame>myproject\n<file_sep>x.py\nx\n<file_sep>filename\n\
        <fim_prefix>a<eos><fim_suffix>b<fim_middle>";
    assert_eq!(tokenizer.decode(&ids, false), written);
}

#[test]
fn metadata_names_the_tokens() {
    let mut metadata = sentencepiece_metadata();
    for (field, id) in [("fim_pre", 259), ("fim_suf", 260), ("fim_mid", 261)] {
        metadata.insert(format!("tokenizer.ggml.{field}_token_id"), Value::U32(id));
    }
    let tokenizer = Tokenizer::from_gguf(&metadata).expect("a tokenizer");
    let (ids, _) = tokenizer.encode_fim(prompt(&[])).expect("a prompt");
    assert_eq!(ids.last(), Some(&261));
    assert!(ids.contains(&259) && ids.contains(&260), "{ids:?}");
}

#[test]
fn other_vocabularies_are_refused() {
    let error = byte_level().encode_fim(prompt(&[])).expect_err("no tokens");
    assert!(matches!(error, TextError::NoFimTokens), "{error}");
    assert_eq!(error.blame(), Blame::Request);
}
