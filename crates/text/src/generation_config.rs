//! A checkpoint's recommended sampling: `generation_config.json`, or the `general.sampling.*`
//! fields of a GGUF file.

use std::path::Path;

use loquat_weights::gguf::{Metadata, Value as GgufValue};
use serde_json::Value;

use crate::huggingface::read_json;
use crate::{Result, TextError};

const FILE: &str = "generation_config.json";
const GGUF_PREFIX: &str = "general.sampling.";

/// A checkpoint's sampling parameters. Fields missing from the file are `None`. Ranges are not
/// checked here.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationConfig {
    /// `false` selects greedy decoding and overrides the other fields.
    pub do_sample: Option<bool>,
    /// Flattens (above 1) or sharpens (below 1) the distribution.
    pub temperature: Option<f32>,
    /// How many of the likeliest tokens to draw from; 0 is all.
    pub top_k: Option<usize>,
    /// Total probability of the likeliest tokens to draw from.
    pub top_p: Option<f32>,
    /// Least probability, as a share of the likeliest token's.
    pub min_p: Option<f32>,
    /// Total probability of the most typical tokens to draw from.
    pub typical_p: Option<f32>,
    /// Above 1 discourages tokens of the prompt and the output.
    pub repetition_penalty: Option<f32>,
    /// Subtracted from the logits of tokens in the output.
    pub presence_penalty: Option<f32>,
    /// Subtracted once for each occurrence in the output.
    pub frequency_penalty: Option<f32>,
    /// -1 is all tokens.
    pub penalty_last_n: Option<i32>,
    /// How often XTC drops the likeliest tokens.
    pub xtc_probability: Option<f32>,
    /// XTC spares tokens less probable than this.
    pub xtc_threshold: Option<f32>,
    /// 0 disables mirostat; 2 is its second version.
    pub mirostat: Option<u8>,
    /// Mirostat's target for the average surprise, in bits.
    pub mirostat_tau: Option<f32>,
    /// Mirostat's learning rate.
    pub mirostat_eta: Option<f32>,
    /// Tokens to generate before a stop token is allowed.
    pub min_tokens: Option<usize>,
    /// Sequences of tokens that are not to be completed.
    pub bad_words: Vec<Vec<u32>>,
    /// Names of sampling steps, first to last.
    pub order: Option<Vec<String>>,
}

impl GenerationConfig {
    /// Reads a checkpoint folder. Without the file, all fields are unset.
    pub fn from_huggingface(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE);
        let origin = path.display().to_string();
        let json = read_json(path)?;
        if !json.is_object() && !json.is_null() {
            return Err(bad_field(origin, &json, "an object"));
        }
        let find = |field: Field| {
            let value = json.get(field.file?)?.clone();
            Some((format!("{origin}: {}", field.file?), value))
        };
        Self::read(&find)
    }

    /// Reads the fields of a GGUF file.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self> {
        let find = |field: Field| {
            let key = format!("{GGUF_PREFIX}{}", field.gguf?);
            let value = plain(metadata.get(&key)?);
            Some((key, value))
        };
        Self::read(&find)
    }

    fn read(find: Find<'_>) -> Result<Self> {
        // -1 is how vLLM writes that there is no limit.
        let top_k = whole(find, both("top_k"), -1, 1 << 32)?;
        let float = |field| float(find, field);
        let count = |field| Ok(whole(find, field, 0, 1 << 32)?.map(|count| count as usize));
        let window = whole(find, both("penalty_last_n"), -1, i64::from(i32::MAX))?;
        let mirostat = whole(find, both("mirostat"), 0, i64::from(u8::MAX))?;
        Ok(Self {
            do_sample: parsed(find, file("do_sample"), "true or false", Value::as_bool)?,
            temperature: float(named("temperature", "temp"))?,
            top_k: top_k.map(|k| k.max(0) as usize),
            top_p: float(both("top_p"))?,
            min_p: float(both("min_p"))?,
            typical_p: float(named("typical_p", "typ_p"))?,
            repetition_penalty: float(named("repetition_penalty", "penalty_repeat"))?,
            presence_penalty: float(named("presence_penalty", "penalty_present"))?,
            frequency_penalty: float(named("frequency_penalty", "penalty_freq"))?,
            penalty_last_n: window.map(|window| window as i32),
            xtc_probability: float(both("xtc_probability"))?,
            xtc_threshold: float(both("xtc_threshold"))?,
            mirostat: mirostat.map(|version| version as u8),
            mirostat_tau: float(both("mirostat_tau"))?,
            mirostat_eta: float(both("mirostat_eta"))?,
            min_tokens: count(file("min_new_tokens"))?,
            bad_words: parsed(
                find,
                file("bad_words_ids"),
                "a list of lists of token ids",
                sequences,
            )?
            .unwrap_or_default(),
            order: parsed(
                find,
                gguf("sequence"),
                "names of steps with `;` between them",
                names,
            )?,
        })
    }
}

/// A field's name in each kind of checkpoint; `None` if that kind lacks it.
#[derive(Clone, Copy)]
struct Field {
    file: Option<&'static str>,
    gguf: Option<&'static str>,
}

const fn named(file: &'static str, gguf: &'static str) -> Field {
    Field {
        file: Some(file),
        gguf: Some(gguf),
    }
}

const fn both(name: &'static str) -> Field {
    named(name, name)
}

const fn file(name: &'static str) -> Field {
    Field {
        file: Some(name),
        gguf: None,
    }
}

const fn gguf(name: &'static str) -> Field {
    Field {
        file: None,
        gguf: Some(name),
    }
}

/// Finds a field's value and its name for errors.
type Find<'a> = &'a dyn Fn(Field) -> Option<(String, Value)>;

fn parsed<T>(
    find: Find<'_>,
    field: Field,
    wanted: &str,
    parse: impl Fn(&Value) -> Option<T>,
) -> Result<Option<T>> {
    match find(field) {
        None | Some((_, Value::Null)) => Ok(None),
        Some((label, value)) => match parse(&value) {
            Some(parsed) => Ok(Some(parsed)),
            None => Err(bad_field(label, &value, wanted)),
        },
    }
}

fn float(find: Find<'_>, field: Field) -> Result<Option<f32>> {
    let number = |value: &Value| value.as_f64().map(|number| number as f32);
    parsed(find, field, "a number", number)
}

fn whole(find: Find<'_>, field: Field, min: i64, max: i64) -> Result<Option<i64>> {
    let wanted = format!("a whole number from {min} to {max}");
    // Some files write counts as 50.0.
    let number = |value: &Value| {
        let fractional = value.as_f64().filter(|number| number.fract() == 0.0);
        let number = value.as_i64().or(fractional.map(|number| number as i64));
        number.filter(|number| (min..=max).contains(number))
    };
    parsed(find, field, &wanted, number)
}

fn sequences(value: &Value) -> Option<Vec<Vec<u32>>> {
    let id = |id: &Value| u32::try_from(id.as_u64()?).ok();
    let sequence = |ids: &Value| ids.as_array()?.iter().map(id).collect();
    value.as_array()?.iter().map(sequence).collect()
}

fn names(value: &Value) -> Option<Vec<String>> {
    let names = value.as_str()?.split(';').filter(|name| !name.is_empty());
    Some(names.map(|name| name.trim().to_owned()).collect())
}

/// A metadata value as JSON. Arrays, which no field here has, become empty.
fn plain(value: &GgufValue) -> Value {
    match value {
        GgufValue::Bool(value) => Value::Bool(*value),
        GgufValue::String(text) => Value::String(text.clone()),
        GgufValue::Array(_) => Value::Array(Vec::new()),
        number => match number.as_i64() {
            Some(integer) => Value::from(integer),
            None => Value::from(number.as_f64()),
        },
    }
}

fn bad_field(field: String, found: &Value, wanted: &str) -> TextError {
    TextError::BadField {
        field,
        found: found.to_string(),
        wanted: wanted.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(json: &Value) -> Result<GenerationConfig> {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join(FILE), json.to_string()).expect("written");
        GenerationConfig::from_huggingface(dir.path())
    }

    #[test]
    fn missing_fields_stay_unset() {
        let neutral = GenerationConfig::default;
        let cases = [
            (json!({}), neutral()),
            (
                json!({"eos_token_id": 2, "max_length": 20, "top_p": null}),
                neutral(),
            ),
            (
                json!({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95,
                    "min_p": 0, "repetition_penalty": 1.05}),
                GenerationConfig {
                    do_sample: Some(true),
                    temperature: Some(0.6),
                    top_k: Some(20),
                    top_p: Some(0.95),
                    min_p: Some(0.0),
                    repetition_penalty: Some(1.05),
                    ..neutral()
                },
            ),
            (
                json!({"top_k": -1, "typical_p": 0.9, "min_new_tokens": 3.0,
                    "bad_words_ids": [[1], [2, 3]]}),
                GenerationConfig {
                    top_k: Some(0),
                    typical_p: Some(0.9),
                    min_tokens: Some(3),
                    bad_words: vec![vec![1], vec![2, 3]],
                    ..neutral()
                },
            ),
        ];
        for (json, expected) in cases {
            assert_eq!(read(&json).expect("a config"), expected, "{json}");
        }
        let empty = tempfile::tempdir().expect("a folder");
        let absent = GenerationConfig::from_huggingface(empty.path());
        assert_eq!(absent.expect("a config"), neutral());
    }

    #[test]
    fn wrong_type_names_file_and_field() {
        let cases = [
            (json!({"temperature": "0.6"}), "temperature", "a number"),
            (json!({"top_k": 20.5}), "top_k", "a whole number from -1"),
            (json!({"top_k": -2}), "top_k", "a whole number from -1"),
            (json!({"do_sample": 1}), "do_sample", "true or false"),
            (json!({"bad_words_ids": [1]}), "bad_words_ids", "a list of"),
            (json!({"mirostat": 256}), "mirostat", "from 0 to 255"),
            (json!([1]), FILE, "an object"),
        ];
        for (json, field, wanted) in cases {
            let error = read(&json).expect_err(field).to_string();
            assert!(error.contains(FILE), "{error}");
            assert!(error.contains(field) && error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn gguf_metadata_maps_to_same_config() {
        let metadata: Metadata = [
            ("general.sampling.temp", GgufValue::U32(1)),
            ("general.sampling.top_k", GgufValue::I32(64)),
            ("general.sampling.top_p", GgufValue::F32(0.95)),
            ("general.sampling.penalty_repeat", GgufValue::F32(1.5)),
            ("general.sampling.penalty_last_n", GgufValue::I32(-1)),
            (
                "general.sampling.sequence",
                GgufValue::String("top_k;typ_p;temperature".into()),
            ),
        ]
        .into_iter()
        .collect();
        let expected = GenerationConfig {
            temperature: Some(1.0),
            top_k: Some(64),
            top_p: Some(0.95),
            repetition_penalty: Some(1.5),
            penalty_last_n: Some(-1),
            order: Some(["top_k", "typ_p", "temperature"].map(String::from).to_vec()),
            ..GenerationConfig::default()
        };
        let found = GenerationConfig::from_gguf(&metadata).expect("a config");
        assert_eq!(found, expected);

        let wrong: Metadata = [("general.sampling.top_p", GgufValue::Bool(true))]
            .into_iter()
            .collect();
        let error = GenerationConfig::from_gguf(&wrong).expect_err("a type");
        let message = "`general.sampling.top_p` is true; it must be a number";
        assert_eq!(error.to_string(), message);
    }
}
