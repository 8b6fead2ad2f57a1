//! GGUF fields as `tokenizer.json` and `tokenizer_config.json`.

use std::collections::HashMap;

use loquat_text::{Special, Tokenizer, pretokenizer};
use loquat_weights::gguf::Metadata;
use serde_json::{Map, Value, json};

use super::{BYTE, CONTROL, METASPACE, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, disagreement};
use crate::ConvertError;

/// Companion files by name, and token fields of `config.json`.
pub(crate) struct Written {
    pub files: Vec<(&'static str, String)>,
    pub config: Map<String, Value>,
}

/// Empty for a file without a vocabulary.
pub(crate) fn to_json(metadata: &Metadata) -> Result<Written, ConvertError> {
    if matches!(
        metadata.str("tokenizer.ggml.model"),
        None | Some("none" | "no_vocab")
    ) {
        return Ok(Written {
            files: Vec::new(),
            config: Map::new(),
        });
    }
    let tokenizer = Tokenizer::from_gguf(metadata)?;
    let vocabulary = Vocabulary::read(metadata);
    let json = match metadata.str("tokenizer.ggml.model") {
        Some("llama") => sentencepiece(metadata, &vocabulary, &tokenizer),
        _ => byte_level(metadata, &vocabulary, &tokenizer)?,
    };
    let settings = settings(metadata, &tokenizer);
    check(&json, &settings, &tokenizer)?;
    let mut files = vec![
        ("tokenizer.json", json.to_string()),
        ("tokenizer_config.json", format!("{settings:#}")),
    ];
    if let Some(template) = metadata.str("tokenizer.chat_template") {
        files.push(("chat_template.jinja", template.to_owned()));
    }
    let config = token_ids(&tokenizer);
    files.push((
        "generation_config.json",
        format!("{:#}", Value::Object(config.clone())),
    ));
    Ok(Written { files, config })
}

struct Vocabulary<'a> {
    tokens: &'a [String],
    kinds: Vec<i32>,
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Metadata) -> Self {
        let tokens = metadata
            .strings("tokenizer.ggml.tokens")
            .unwrap_or_default();
        let kinds = metadata.i32s("tokenizer.ggml.token_type");
        Self {
            kinds: kinds.map_or_else(|| vec![NORMAL; tokens.len()], <[i32]>::to_vec),
            tokens,
        }
    }

    fn iter(&self) -> impl Iterator<Item = (usize, &'a str, i32)> {
        let kinds = self.kinds.iter().copied();
        let both = self.tokens.iter().zip(kinds).enumerate();
        both.map(|(id, (token, kind))| (id, token.as_str(), kind))
    }

    fn map(&self) -> Map<String, Value> {
        self.iter()
            .filter(|(.., kind)| *kind != UNUSED)
            .map(|(id, token, _)| (token.to_owned(), json!(id)))
            .collect()
    }

    fn added(&self) -> Vec<Value> {
        let matched = self
            .iter()
            .filter(|(.., kind)| [UNKNOWN, CONTROL, USER_DEFINED].contains(kind));
        let entry = |(id, token, kind)| {
            json!({
                "id": id, "content": token, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": kind != USER_DEFINED,
            })
        };
        matched.map(entry).collect()
    }
}

fn byte_level(
    metadata: &Metadata,
    vocabulary: &Vocabulary<'_>,
    tokenizer: &Tokenizer,
) -> Result<Value, ConvertError> {
    let pre = pretokenizer::find(metadata.str("tokenizer.ggml.pre").unwrap_or("default"))?;
    let merges = metadata
        .strings("tokenizer.ggml.merges")
        .unwrap_or_default();
    // The first character may itself be a space.
    let pair = |merge: &String| {
        let first = merge.chars().next().map_or(0, char::len_utf8);
        let space = merge[first..]
            .find(' ')
            .map_or(merge.len(), |at| at + first);
        let right = merge.get(space + 1..).unwrap_or_default();
        json!([&merge[..space], right])
    };
    let merges: Vec<Value> = merges.iter().map(pair).collect();
    let mut steps: Vec<Value> = pre
        .splits
        .iter()
        .map(|pattern| {
            json!({
                "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated",
                "invert": false,
            })
        })
        .collect();
    let bytes = |regex: bool| {
        json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": regex,
        })
    };
    steps.push(bytes(false));
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": vocabulary.added(),
        "normalizer": pre.composes.then(|| json!({ "type": "NFC" })),
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": steps },
        "post_processor": bounds(tokenizer),
        "decoder": bytes(true),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": pre.ignore_merges,
            "vocab": vocabulary.map(),
            "merges": merges,
        },
    }))
}

fn sentencepiece(metadata: &Metadata, vocabulary: &Vocabulary<'_>, tokenizer: &Tokenizer) -> Value {
    let scores = metadata.f32s("tokenizer.ggml.scores").unwrap_or_default();
    let prefix = metadata
        .bool("tokenizer.ggml.add_space_prefix")
        .unwrap_or(true);
    let mut normalizers = Vec::new();
    let mut decoders = vec![
        json!({ "type": "Replace", "pattern": { "String": METASPACE }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if prefix {
        normalizers.push(json!({ "type": "Prepend", "prepend": METASPACE }));
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    let spaces = json!({ "type": "Replace", "pattern": { "String": " " }, "content": METASPACE });
    normalizers.push(spaces);
    let unknown = vocabulary.iter().find(|(.., kind)| *kind == UNKNOWN);
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": vocabulary.added(),
        "normalizer": { "type": "Sequence", "normalizers": normalizers },
        "pre_tokenizer": null,
        "post_processor": bounds(tokenizer),
        "decoder": { "type": "Sequence", "decoders": decoders },
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": unknown.map(|(_, token, _)| token),
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": vocabulary.kinds.contains(&BYTE),
            "ignore_merges": false,
            "vocab": vocabulary.map(),
            "merges": ranked_merges(vocabulary, scores),
        },
    })
}

/// Every merge of two tokens, best score first, in the order of the hub's converter.
fn ranked_merges(vocabulary: &Vocabulary<'_>, scores: &[f32]) -> Vec<Value> {
    let mergeable = vocabulary
        .iter()
        .filter(|(.., kind)| [NORMAL, USER_DEFINED].contains(kind));
    let ids: HashMap<&str, usize> = mergeable.map(|(id, token, _)| (token, id)).collect();
    let mut ranked: Vec<(f32, usize, usize, &str, &str)> = Vec::new();
    for (token, id) in &ids {
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(l), Some(r)) = (ids.get(left), ids.get(right)) {
                let score = scores.get(*id).copied().unwrap_or(0.0);
                ranked.push((score, *l, *r, left, right));
            }
        }
    }
    ranked.sort_by(|a, b| {
        let by_score = b.0.total_cmp(&a.0);
        by_score.then((a.1, a.2).cmp(&(b.1, b.2)))
    });
    let pairs = ranked.into_iter();
    pairs
        .map(|(.., left, right)| json!([left, right]))
        .collect()
}

/// The tokens that the tokenizer puts around a text.
fn bounds(tokenizer: &Tokenizer) -> Value {
    let around = tokenizer.encode("", Special::PROMPT).unwrap_or_default();
    let named = |id: Option<u32>| -> Option<(u32, String)> {
        let id = id.filter(|id| around.contains(id))?;
        Some((id, tokenizer.token_text(id)?))
    };
    let (first, last) = (named(tokenizer.bos()), named(tokenizer.eos()));
    let token = |(_, text): &(u32, String)| json!({ "SpecialToken": { "id": text, "type_id": 0 } });
    let sequence = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
    let one = |id: &str| -> Vec<Value> {
        let parts = [
            first.as_ref().map(token),
            Some(sequence(id)),
            last.as_ref().map(token),
        ];
        parts.into_iter().flatten().collect()
    };
    let specials: Map<String, Value> = [&first, &last]
        .into_iter()
        .flatten()
        .map(|(id, text)| {
            let entry = json!({ "id": text, "ids": [id], "tokens": [text] });
            (text.clone(), entry)
        })
        .collect();
    if specials.is_empty() {
        return Value::Null;
    }
    let pair = [one("A"), one("B")].concat();
    json!({
        "type": "TemplateProcessing",
        "single": one("A"),
        "pair": pair,
        "special_tokens": specials,
    })
}

fn settings(metadata: &Metadata, tokenizer: &Tokenizer) -> Value {
    let mut all = Map::new();
    let class = json!("PreTrainedTokenizerFast");
    all.insert("tokenizer_class".into(), class);
    all.insert("clean_up_tokenization_spaces".into(), json!(false));
    let unknown = metadata.u64("tokenizer.ggml.unknown_token_id");
    let tokens = [
        ("bos_token", tokenizer.bos()),
        ("eos_token", tokenizer.eos()),
        ("pad_token", tokenizer.pad()),
        ("unk_token", unknown.and_then(|id| u32::try_from(id).ok())),
    ];
    for (field, id) in tokens {
        if let Some(text) = id.and_then(|id| tokenizer.token_text(id)) {
            all.insert(field.into(), json!(text));
        }
    }
    if let Some(template) = metadata.str("tokenizer.chat_template") {
        all.insert("chat_template".into(), json!(template));
    }
    Value::Object(all)
}

fn token_ids(tokenizer: &Tokenizer) -> Map<String, Value> {
    let mut ids = Map::new();
    if let Some(bos) = tokenizer.bos() {
        ids.insert("bos_token_id".into(), json!(bos));
    }
    let mut ends = tokenizer.eos_ids().to_vec();
    // The tokenizer's own comes first.
    ends.sort_by_key(|id| (Some(*id) != tokenizer.eos(), *id));
    match ends.as_slice() {
        [] => None,
        [end] => ids.insert("eos_token_id".into(), json!(end)),
        ends => ids.insert("eos_token_id".into(), json!(ends)),
    };
    ids
}

fn check(json: &Value, settings: &Value, tokenizer: &Tokenizer) -> Result<(), ConvertError> {
    let refuse = |why: String| ConvertError::Tokenizer {
        target: "tokenizer.json",
        why,
    };
    let folder = tempfile::tempdir().map_err(|error| refuse(error.to_string()))?;
    for (name, value) in [
        ("tokenizer.json", json),
        ("tokenizer_config.json", settings),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, value.to_string()).map_err(ConvertError::writing(&path))?;
    }
    let written = Tokenizer::from_huggingface(folder.path())?;
    match disagreement(tokenizer, &written) {
        None => Ok(()),
        Some(text) => Err(refuse(format!("it would cut {text:?} differently"))),
    }
}
