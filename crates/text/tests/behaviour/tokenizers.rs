//! Tokenizers through their public doors: both kinds of file, special tokens, ends, refusals.

use crate::common::{
    bos_template, byte_level_json, folder, metadata, sentencepiece_metadata, strings,
};
use loquat_text::{Blame, ChatInput, ChatTemplate, Special, TextError, Tokenizer};
use loquat_weights::gguf::{Array, Value};
use serde_json::{Value as Json, json};

const ADDED: Special = Special::PROMPT;

fn load(files: &[(&str, Json)]) -> Tokenizer {
    let dir = folder(files);
    Tokenizer::from_huggingface(dir.path()).expect("a tokenizer")
}

#[test]
fn tokenizer_is_send_sync_and_clones_share() {
    fn shareable<T: Send + Sync + Clone>(_: &T) {}
    shareable(&crate::common::byte_level());
}

#[test]
fn special_tokens_are_encoded_only_when_allowed() {
    let tokenizer = load(&[("tokenizer.json", byte_level_json(bos_template()))]);
    let plain: Vec<u32> = b"<eos>".iter().map(|byte| u32::from(*byte)).collect();
    let cases: [(&str, Special, &[u32]); 6] = [
        ("<eos>", Special::RENDERED, &[257]),
        ("<eos>", Special::PLAIN, &plain),
        ("a", ADDED, &[256, 97]),
        ("<bos>a", ADDED, &[256, 97]),
        ("", ADDED, &[256]),
        // A user-defined token is text, and is matched either way.
        ("<tool é>", Special::PLAIN, &[259]),
    ];
    for (text, special, ids) in cases {
        let encoded = tokenizer.encode(text, special).expect("ids");
        assert_eq!(encoded, ids, "{text:?} {special:?}");
    }
}

#[test]
fn tokens_are_found_by_id_and_text() {
    let tokenizer = crate::common::byte_level();
    assert_eq!(tokenizer.vocab_size(), 260);
    assert_eq!(tokenizer.token_id("<|im_end|>"), Some(258));
    assert_eq!(tokenizer.token_id("nothing"), None);
    assert_eq!(tokenizer.token_bytes(b' '.into()), Some(&b" "[..]));
    assert_eq!(tokenizer.token_bytes(259), Some("<tool é>".as_bytes()));
    assert_eq!(tokenizer.token_bytes(260), None);
    let special: Vec<bool> = (255..261).map(|id| tokenizer.is_special(id)).collect();
    assert_eq!(special, [false, true, true, true, false, false]);

    let tokenizer = crate::common::sentencepiece();
    assert_eq!(tokenizer.token_bytes(3 + 0xe9), Some(&[0xe9][..]));
    assert_eq!(tokenizer.token_id("▁ab"), Some(265));
    assert_eq!(tokenizer.token_text(1).as_deref(), Some("<s>"));
}

#[test]
fn config_files_set_bos_and_eos() {
    let plain = ("tokenizer.json", byte_level_json(Json::Null));
    let config = json!({"bos_token": {"content": "<bos>"}, "eos_token": "<eos>",
        "add_bos_token": true, "add_eos_token": true});
    let tokenizer = load(&[
        plain.clone(),
        ("tokenizer_config.json", config.clone()),
        ("generation_config.json", json!({"eos_token_id": [7, 257]})),
        ("config.json", json!({"text_config": {"eos_token_id": 9}})),
    ]);
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(256), Some(257)));
    assert_eq!(tokenizer.eos_ids(), [7, 257, 9, 258]);
    assert_eq!(tokenizer.encode("a", ADDED).expect("ids"), [256, 97, 257]);

    let processed = ("tokenizer.json", byte_level_json(bos_template()));
    let tokenizer = load(&[processed, ("tokenizer_config.json", config)]);
    let once = tokenizer.encode("a", ADDED).expect("ids");
    assert_eq!(once.iter().filter(|id| **id == 256).count(), 1);

    let map = json!({"bos_token": "<bos>", "pad_token": "<eos>"});
    let tokenizer = load(&[plain.clone(), ("special_tokens_map.json", map)]);
    assert_eq!((tokenizer.bos(), tokenizer.pad()), (Some(256), Some(257)));
    assert_eq!(tokenizer.encode("a", ADDED).expect("ids"), [97]);

    let dir = folder(&[plain]);
    let file = dir.path().join("tokenizer.json");
    assert!(Tokenizer::from_huggingface(&file).is_ok());
}

#[test]
fn golden_checkpoint_folder_loads() {
    let Some(dir) = crate::common::shared("goldens/llama") else {
        return;
    };
    let tokenizer = Tokenizer::from_huggingface(&dir).expect("a tokenizer");
    let ends = [tokenizer.bos(), tokenizer.eos(), tokenizer.pad()];
    assert_eq!(ends, [Some(257), Some(258), Some(256)]);
    assert_eq!(tokenizer.eos_ids(), [258, 260]);
    let template = ChatTemplate::from_huggingface(&dir).expect("a template");
    let input = ChatInput {
        messages: json!([{"role": "user", "content": "é"}]),
        ..ChatInput::default()
    };
    let text = template.render(&input).expect("text");
    assert_eq!(text, "<|im_start|>user\né<|im_end|>\n");
    let ids = tokenizer.encode(&text, Special::RENDERED).expect("ids");
    assert_eq!((ids.first(), ids.len()), (Some(&259), 10));
    assert_eq!(tokenizer.decode(&ids, false), text);
}

#[test]
fn gguf_sentencepiece_honors_its_flags() {
    let tokenizer = crate::common::sentencepiece();
    let cases: [(&str, Special, &[u32]); 5] = [
        ("ab", ADDED, &[1, 265]),
        ("<s>ab", ADDED, &[1, 265]),
        ("ab</s>", Special::RENDERED, &[265, 2]),
        ("a<tool>ab", Special::PLAIN, &[263, 267, 265]),
        ("", ADDED, &[1]),
    ];
    for (text, special, ids) in cases {
        assert_eq!(tokenizer.encode(text, special).expect("ids"), ids, "{text}");
    }
    assert_eq!(tokenizer.eos_ids(), [2]);

    let mut fields = sentencepiece_metadata();
    fields.insert("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    fields.insert("tokenizer.ggml.add_bos_token", Value::Bool(false));
    fields.insert("tokenizer.ggml.add_eos_token", Value::Bool(true));
    let tokenizer = Tokenizer::from_gguf(&fields).expect("a tokenizer");
    assert_eq!(tokenizer.encode("ab", ADDED).expect("ids"), [264, 2]);
    assert_eq!(tokenizer.decode(&[265], false), " ab");
}

#[test]
fn phi3_turn_tokens_swallow_following_space() {
    let mut fields = sentencepiece_metadata();
    fields.insert("general.name", Value::String("Phi-3 mini".into()));
    let tokenizer = Tokenizer::from_gguf(&fields).expect("a tokenizer");
    let ids = tokenizer.encode("</s>\n \nab<s> a", Special::RENDERED);
    assert_eq!(ids.expect("ids"), [2, 265, 1, 259, 263]);
}

#[test]
fn gguf_byte_level_merges_and_matches() {
    let fields = metadata([
        ("tokenizer.ggml.model", Value::String("gpt2".into())),
        ("tokenizer.ggml.pre", Value::String("llama-bpe".into())),
        (
            "tokenizer.ggml.tokens",
            strings(&["a", "b", "Ġ", "ab", "Ġab", "<|eot_id|>", "<think>", "aab"]),
        ),
        ("tokenizer.ggml.merges", strings(&["a b", "Ġ ab"])),
        (
            "tokenizer.ggml.token_type",
            Value::Array(Array::I32(vec![1, 1, 1, 1, 1, 3, 4, 1])),
        ),
        ("tokenizer.ggml.bos_token_id", Value::U32(0)),
        ("tokenizer.ggml.eos_token_id", Value::U32(3)),
        ("tokenizer.ggml.eot_token_id", Value::U32(3)),
    ]);
    let tokenizer = Tokenizer::from_gguf(&fields).expect("a tokenizer");
    let cases: [(&str, Special, &[u32]); 4] = [
        ("ab ab", Special::PLAIN, &[3, 4]),
        // This pre-tokenizer keeps a word that is a token, though no merge produces it.
        ("aab", Special::PLAIN, &[7]),
        ("ab<|eot_id|><think>", Special::RENDERED, &[3, 5, 6]),
        ("b", ADDED, &[0, 1]),
    ];
    for (text, special, ids) in cases {
        assert_eq!(tokenizer.encode(text, special).expect("ids"), ids, "{text}");
    }
    assert_eq!(tokenizer.eos_ids(), [3, 5]);
    assert_eq!(tokenizer.decode(&[4, 5, 6], true), " ab<think>");
}

#[test]
fn gguf_qwen_normalizes_like_its_own_tokenizer() {
    let mut tokens = crate::common::byte_alphabet();
    tokens.push("Ã©".to_owned());
    let mut fields = metadata([
        ("tokenizer.ggml.model", Value::String("gpt2".into())),
        ("tokenizer.ggml.tokens", Value::Array(Array::String(tokens))),
        ("tokenizer.ggml.merges", strings(&["Ã ©"])),
    ]);
    for (pre, ids) in [("qwen2", &[256][..]), ("llama-bpe", &[101, 0xcc, 0x81])] {
        fields.insert("tokenizer.ggml.pre", Value::String(pre.into()));
        let tokenizer = Tokenizer::from_gguf(&fields).expect("a tokenizer");
        let encoded = tokenizer.encode("e\u{301}", Special::PLAIN).expect("ids");
        assert_eq!(encoded, ids, "{pre}");
    }
}

#[test]
fn unusable_vocabularies_are_refused_by_name() {
    let with = |key: &str, value: Value| {
        let mut fields = sentencepiece_metadata();
        fields.insert(key, value);
        Tokenizer::from_gguf(&fields).expect_err("a refusal")
    };
    let text = |text: &str| Value::String(text.into());
    let gpt2 = |key: &str, value: Value| {
        let mut fields = sentencepiece_metadata();
        fields.insert("tokenizer.ggml.model", Value::String("gpt2".into()));
        fields.insert("tokenizer.ggml.pre", Value::String("gpt-2".into()));
        fields.insert("tokenizer.ggml.merges", strings(&[]));
        fields.insert(key, value);
        Tokenizer::from_gguf(&fields).expect_err("a refusal")
    };
    let refusals = [
        (with("tokenizer.ggml.model", text("rwkv")), "rwkv"),
        (gpt2("tokenizer.ggml.pre", text("klingon")), "klingon"),
        (
            gpt2("tokenizer.ggml.merges", strings(&["a zz"])),
            "merges[0]",
        ),
        (gpt2("tokenizer.ggml.merges", strings(&["ab"])), "merges[0]"),
        (
            with("tokenizer.ggml.tokens", text("x")),
            "tokenizer.ggml.tokens",
        ),
        (
            with("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0]))),
            "scores",
        ),
        (
            with(
                "tokenizer.ggml.token_type",
                Value::Array(Array::I32(vec![9; 268])),
            ),
            "token_type[0]",
        ),
        (
            with("tokenizer.ggml.bos_token_id", Value::U32(999)),
            "bos_token_id",
        ),
    ];
    for (error, name) in refusals {
        assert!(
            error.to_string().contains(name),
            "{error} should name {name}"
        );
        assert_eq!(error.blame(), Blame::System, "{error}");
    }
}

#[test]
fn damaged_tokenizer_files_are_errors() {
    let mut overlong = byte_level_json(Json::Null);
    overlong["model"]["merges"] = json!(["a bbbbbbbbbbbbbbbbb"]);
    let mut wordpiece = byte_level_json(Json::Null);
    wordpiece["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    let mut far = byte_level_json(Json::Null);
    far["model"]["vocab"]["far"] = json!(u32::MAX);
    for (json, name) in [
        (json!({}), "tokenizer.json"),
        (overlong, "tokenizer.json"),
        (wordpiece, "WordPiece"),
        (far, "model.vocab"),
    ] {
        let dir = folder(&[("tokenizer.json", json)]);
        let error = Tokenizer::from_huggingface(dir.path()).expect_err("a refusal");
        assert!(
            error.to_string().contains(name),
            "{error} should name {name}"
        );
    }
    let empty = folder(&[]);
    let error = Tokenizer::from_huggingface(empty.path());
    assert!(matches!(error, Err(TextError::Read { .. })));
}

#[test]
fn inner_text_gets_no_space_prefix() {
    let tokenizer = crate::common::sentencepiece();
    let spelt = |ids: &[u32]| {
        let bytes = ids.iter().filter_map(|id| tokenizer.token_bytes(*id));
        String::from_utf8(bytes.collect::<Vec<_>>().concat()).expect("text")
    };
    for special in [Special::PLAIN, Special::RENDERED] {
        for text in ["ab", " ab", "", "é"] {
            let first = tokenizer.encode(text, special).expect("tokens");
            let inner = tokenizer.encode_inner(text, special).expect("tokens");
            assert_eq!(spelt(&inner), text);
            if !text.is_empty() {
                assert_eq!(
                    spelt(&first),
                    format!(" {text}"),
                    "at the beginning there is one"
                );
            }
        }
    }
}
