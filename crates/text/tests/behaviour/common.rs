//! Shared test helpers: the shared folder, tiny tokenizers.

use std::path::{Path, PathBuf};

use loquat_text::Tokenizer;
use loquat_weights::gguf::{Array, Metadata, Value};
use serde_json::{Value as Json, json};

/// A folder of the judges, or `None`, saying so, on a machine without them.
pub fn shared(folder: &str) -> Option<PathBuf> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared");
    let path = Path::new(root).join(folder);
    if !path.is_dir() {
        eprintln!("skipped: {} is not there", path.display());
        return None;
    }
    Some(path)
}

/// GPT-2's alphabet as a vocabulary of 256 bytes, in byte order.
pub fn byte_alphabet() -> Vec<String> {
    let shown = |byte: &u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut hidden = 0x100u32..;
    let mut code = |byte| {
        if shown(&byte) {
            byte
        } else {
            hidden.next().unwrap_or(byte)
        }
    };
    let characters = (0..256).map(|byte| char::from_u32(code(byte)).expect("a character"));
    characters.map(String::from).collect()
}

/// A `tokenizer.json` with one token per byte and a few added tokens from id 256 on.
pub fn byte_level_json(post_processor: Json) -> Json {
    let vocab: serde_json::Map<String, Json> = byte_alphabet()
        .into_iter()
        .enumerate()
        .map(|(id, text)| (text, json!(id)))
        .collect();
    let added = |id: u32, content: &str, special: bool| {
        json!({
            "id": id, "content": content, "special": special, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false,
        })
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [
            added(256, "<bos>", true), added(257, "<eos>", true),
            added(258, "<|im_end|>", true), added(259, "<tool é>", false),
        ],
        "pre_tokenizer": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
        },
        "post_processor": post_processor,
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true,
        },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": vocab, "merges": [],
        },
    })
}

/// A post-processor that puts `<bos>` before a text.
pub fn bos_template() -> Json {
    json!({
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<bos>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [256], "tokens": ["<bos>"]}},
    })
}

/// Writes `files` into a fresh folder.
pub fn folder(files: &[(&str, Json)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (name, json) in files {
        std::fs::write(dir.path().join(name), json.to_string()).expect("a file written");
    }
    dir
}

pub fn byte_level() -> Tokenizer {
    let dir = folder(&[("tokenizer.json", byte_level_json(Json::Null))]);
    Tokenizer::from_huggingface(dir.path()).expect("a tokenizer")
}

pub fn strings(texts: &[&str]) -> Value {
    let owned = texts.iter().map(|text| (*text).to_owned());
    Value::Array(Array::String(owned.collect()))
}

pub fn metadata<const N: usize>(fields: [(&str, Value); N]) -> Metadata {
    let owned = fields
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value));
    owned.collect()
}

/// A SentencePiece vocabulary: three control tokens, every byte, a user-defined token and a few
/// pieces.
pub fn sentencepiece_metadata() -> Metadata {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).into();
    let mut types = vec![2, 3, 3];
    for byte in 0..=255u8 {
        tokens.push(format!("<0x{byte:02X}>"));
        types.push(6);
    }
    let pieces = ["▁", "a", "b", "é", "▁a", "ab", "▁ab", "▁▁"];
    tokens.extend(pieces.map(str::to_owned));
    types.extend([1; 8]);
    tokens.push("<tool>".to_owned());
    types.push(4);
    let scores = (0..tokens.len()).map(|rank| -(rank as f32)).collect();
    metadata([
        ("tokenizer.ggml.model", Value::String("llama".into())),
        ("tokenizer.ggml.tokens", Value::Array(Array::String(tokens))),
        ("tokenizer.ggml.scores", Value::Array(Array::F32(scores))),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(types))),
        ("tokenizer.ggml.bos_token_id", Value::U32(1)),
        ("tokenizer.ggml.eos_token_id", Value::U32(2)),
        ("tokenizer.ggml.unknown_token_id", Value::U32(0)),
    ])
}

pub fn sentencepiece() -> Tokenizer {
    Tokenizer::from_gguf(&sentencepiece_metadata()).expect("a tokenizer")
}
