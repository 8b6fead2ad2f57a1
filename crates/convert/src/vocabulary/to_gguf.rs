//! `tokenizer.json` as GGUF fields.

use std::collections::HashMap;
use std::path::Path;

use loquat_text::{Special, Tokenizer, pretokenizer};
use loquat_weights::gguf::{Array, Metadata, Value as Field};
use loquat_weights::{MAX_VOCABULARY_BYTES, read_side_file};
use serde_json::Value;

use super::{BYTE, CONTROL, METASPACE, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, disagreement};
use crate::ConvertError;

/// Adds the tokenizer of the model in `folder` with `size` rows, or returns a note if there is
/// none.
pub(crate) fn to_gguf(
    folder: &Path,
    size: usize,
    metadata: &mut Metadata,
) -> Result<Option<String>, ConvertError> {
    let path = folder.join("tokenizer.json");
    if !path.is_file() {
        metadata.insert(key("model"), text("none"));
        return Ok(Some(
            "there is no tokenizer.json beside the model, so the file has no vocabulary".into(),
        ));
    }
    let json: Value = read_json(&path)?;
    let tokenizer = Tokenizer::from_huggingface(folder)?;
    let vocabulary = Vocabulary::read(&json, size)?;
    vocabulary.put(&tokenizer, metadata);
    match json["model"]["byte_fallback"].as_bool() {
        Some(true) => sentencepiece(&json, &vocabulary, &tokenizer, metadata)?,
        _ => byte_level(&json, &tokenizer, metadata)?,
    }
    templates(folder, metadata)?;
    Ok(None)
}

fn key(field: &str) -> String {
    format!("tokenizer.ggml.{field}")
}

fn text(text: &str) -> Field {
    Field::String(text.to_owned())
}

fn refuse(why: impl Into<String>) -> ConvertError {
    ConvertError::Tokenizer {
        target: "GGUF",
        why: why.into(),
    }
}

fn read_json(path: &Path) -> Result<Value, ConvertError> {
    let bytes = read_side_file(path, MAX_VOCABULARY_BYTES).map_err(ConvertError::reading(path))?;
    serde_json::from_slice(&bytes).map_err(|error| ConvertError::reading(path)(error.into()))
}

struct Vocabulary {
    tokens: Vec<String>,
    kinds: Vec<i32>,
}

impl Vocabulary {
    fn read(json: &Value, size: usize) -> Result<Self, ConvertError> {
        let listed = json["model"]["vocab"].as_object();
        let listed = listed.ok_or_else(|| {
            refuse("tokenizer.json is not of the BPE kind, the only one that is converted")
        })?;
        let mut tokens = vec![None; size];
        let mut kinds = vec![UNUSED; size];
        let mut set = |text: &str, id: Option<u64>, kind: i32| {
            let id = id.and_then(|id| usize::try_from(id).ok());
            let row = id.filter(|id| *id < size).ok_or_else(|| {
                refuse(format!(
                    "token {text:?} has no row among the model's {size}"
                ))
            })?;
            (tokens[row], kinds[row]) = (Some(text.to_owned()), kind);
            Ok::<(), ConvertError>(())
        };
        let unknown = json["model"]["unk_token"].as_str();
        let fallback = json["model"]["byte_fallback"].as_bool() == Some(true);
        for (text, id) in listed {
            let kind = match text {
                text if fallback && is_byte(text) => BYTE,
                _ => NORMAL,
            };
            set(text, id.as_u64(), kind)?;
        }
        for token in json["added_tokens"].as_array().into_iter().flatten() {
            let content = token["content"].as_str().unwrap_or_default();
            let kind = match token["special"].as_bool() {
                _ if Some(content) == unknown => UNKNOWN,
                Some(true) => CONTROL,
                _ => USER_DEFINED,
            };
            set(content, token["id"].as_u64(), kind)?;
        }
        // Rows without a token need a name too.
        let tokens = tokens.into_iter().enumerate();
        Ok(Self {
            tokens: tokens
                .map(|(id, token)| token.unwrap_or_else(|| format!("[PAD{id}]")))
                .collect(),
            kinds,
        })
    }

    fn put(&self, tokenizer: &Tokenizer, metadata: &mut Metadata) {
        let strings = Array::String(self.tokens.clone());
        metadata.insert(key("tokens"), Field::Array(strings));
        let kinds = Array::I32(self.kinds.clone());
        metadata.insert(key("token_type"), Field::Array(kinds));
        let bounds = tokenizer.encode("", Special::PROMPT).unwrap_or_default();
        let ids = [
            ("bos_token_id", tokenizer.bos()),
            ("eos_token_id", tokenizer.eos()),
            ("padding_token_id", tokenizer.pad()),
            ("unknown_token_id", self.unknown()),
        ];
        for (field, id) in ids {
            if let Some(id) = id {
                metadata.insert(key(field), Field::U32(id));
            }
        }
        let starts = tokenizer.bos().is_some() && bounds.first().copied() == tokenizer.bos();
        let ends = bounds.len() > usize::from(starts) && bounds.last().copied() == tokenizer.eos();
        metadata.insert(key("add_bos_token"), Field::Bool(starts));
        metadata.insert(key("add_eos_token"), Field::Bool(ends));
    }

    fn unknown(&self) -> Option<u32> {
        let row = self.kinds.iter().position(|kind| *kind == UNKNOWN)?;
        u32::try_from(row).ok()
    }
}

fn is_byte(token: &str) -> bool {
    let digits = token
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

/// Merges in either syntax.
fn merges(json: &Value) -> Result<Vec<(&str, &str)>, ConvertError> {
    let listed = json["model"]["merges"].as_array();
    let listed = listed.ok_or_else(|| refuse("tokenizer.json has no merges"))?;
    let pairs: Option<Vec<_>> = listed.iter().map(pair_of).collect();
    pairs.ok_or_else(|| refuse("a merge of tokenizer.json is not two tokens"))
}

fn pair_of(merge: &Value) -> Option<(&str, &str)> {
    match merge {
        Value::String(both) => both.split_once(' '),
        Value::Array(both) => Some((both.first()?.as_str()?, both.get(1)?.as_str()?)),
        _ => None,
    }
}

/// A byte-level vocabulary; GGUF names its pre-tokenizer, which is found by trying.
fn byte_level(
    json: &Value,
    tokenizer: &Tokenizer,
    metadata: &mut Metadata,
) -> Result<(), ConvertError> {
    metadata.insert(key("model"), text("gpt2"));
    let merges = merges(json)?.into_iter();
    let merges = merges
        .map(|(left, right)| format!("{left} {right}"))
        .collect();
    metadata.insert(key("merges"), Field::Array(Array::String(merges)));
    for name in pretokenizer::distinct_names() {
        metadata.insert(key("pre"), text(name));
        let written = Tokenizer::from_gguf(metadata)?;
        if disagreement(tokenizer, &written).is_none() {
            return Ok(());
        }
    }
    Err(refuse(
        "none of the ways to cut text that GGUF has names for cuts as this tokenizer does",
    ))
}

/// A SentencePiece vocabulary: its scores are the merges' order.
fn sentencepiece(
    json: &Value,
    vocabulary: &Vocabulary,
    tokenizer: &Tokenizer,
    metadata: &mut Metadata,
) -> Result<(), ConvertError> {
    metadata.insert(key("model"), text("llama"));
    metadata.insert(key("pre"), text("default"));
    let merges = merges(json)?;
    let mut ranks: HashMap<String, usize> = HashMap::with_capacity(merges.len());
    for (rank, (left, right)) in merges.iter().enumerate() {
        ranks.entry(format!("{left}{right}")).or_insert(rank);
    }
    let score = |(token, kind): (&String, &i32)| match (kind, ranks.get(token)) {
        (&(NORMAL | USER_DEFINED), Some(rank)) => -(*rank as f32),
        // Single characters: after everything that can be merged.
        (&NORMAL, None) => -(merges.len() as f32),
        (&USER_DEFINED, None) => -1000.0,
        _ => 0.0,
    };
    let scores = vocabulary.tokens.iter().zip(&vocabulary.kinds).map(score);
    let scores = Array::F32(scores.collect());
    metadata.insert(key("scores"), Field::Array(scores));
    metadata.insert(key("add_space_prefix"), Field::Bool(prepends_space(json)));
    let written = Tokenizer::from_gguf(metadata)?;
    match disagreement(tokenizer, &written) {
        None => Ok(()),
        Some(text) => Err(refuse(format!("as GGUF it would cut {text:?} differently"))),
    }
}

/// Whether a space is put before the text, by normalizer or pre-tokenizer.
fn prepends_space(json: &Value) -> bool {
    let mut steps = vec![&json["normalizer"]];
    steps.extend(
        json["normalizer"]["normalizers"]
            .as_array()
            .into_iter()
            .flatten(),
    );
    let prepends = |step: &&Value| step["type"] == "Prepend" && step["prepend"] == METASPACE;
    let metaspace = &json["pre_tokenizer"];
    steps.iter().any(prepends)
        || (metaspace["type"] == "Metaspace" && metaspace["prepend_scheme"] != "never")
}

fn templates(folder: &Path, metadata: &mut Metadata) -> Result<(), ConvertError> {
    const KEY: &str = "tokenizer.chat_template";
    let path = folder.join("chat_template.jinja");
    if path.is_file() {
        let template = std::fs::read_to_string(&path).map_err(ConvertError::reading(&path))?;
        metadata.insert(KEY, Field::String(template));
        return Ok(());
    }
    for file in ["chat_template.json", "tokenizer_config.json"] {
        let path = folder.join(file);
        if !path.is_file() {
            continue;
        }
        match &read_json(&path)?["chat_template"] {
            Value::String(template) => {
                metadata.insert(KEY, text(template));
                return Ok(());
            }
            Value::Array(named) => {
                for entry in named {
                    if let (Some(name), Some(template)) =
                        (entry["name"].as_str(), entry["template"].as_str())
                    {
                        let key = match name {
                            "default" => KEY.to_owned(),
                            name => format!("{KEY}.{name}"),
                        };
                        metadata.insert(key, text(template));
                    }
                }
                return Ok(());
            }
            _ => {}
        }
    }
    Ok(())
}
