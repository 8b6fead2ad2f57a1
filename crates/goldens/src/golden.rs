//! A reference: prompts and the logits that another implementation computed for them.

use std::path::{Path, PathBuf};

use loquat_weights::{Blob, DecodeFault, Dtype, RawTensor, WeightsError, decode, safetensors};
use serde::Deserialize;

use crate::discover::GOLDEN;

pub struct Golden {
    pub prompt_a: Prompt,
    pub prompt_b: Prompt,
    /// Decoded token by token after `prompt_a`.
    pub greedy: Option<Greedy>,
}

pub struct Prompt {
    pub tokens: Vec<u32>,
    /// The logits after each token, `vocab_size` values per position.
    pub logits: Vec<f32>,
}

pub struct Greedy {
    pub ids: Vec<u32>,
    /// The logits from which each of `ids` was chosen.
    pub logits: Vec<f32>,
    /// The largest difference between the reference's decoding and its prefill, if recorded.
    pub cache_vs_prefill: Option<f32>,
}

#[derive(Debug, thiserror::Error)]
pub enum GoldenError {
    #[error(transparent)]
    File(#[from] WeightsError),
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{}: {source}", path.display())]
    Json {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{GOLDEN} has none of the arrays {}", names.join(", "))]
    Missing { names: Vec<String> },
    #[error("`{array}` of {GOLDEN} is {found}, but must be {expected}")]
    Array {
        array: String,
        found: String,
        expected: &'static str,
    },
    #[error("`{array}` of {GOLDEN}: {source}")]
    Decode { array: String, source: DecodeFault },
}

/// Suffixes of logits arrays by implementation, in order of preference.
fn suffixes(prefer_hf: bool) -> [&'static str; 3] {
    if prefer_hf {
        ["_hf", "", "_f32"]
    } else {
        ["", "_f32", "_hf"]
    }
}

/// The fields of `golden.json` that the judge uses.
#[derive(Deserialize)]
struct GoldenInfo {
    cache_vs_prefill: Option<f32>,
}

impl Golden {
    pub fn open(folder: &Path, prefer_hf: bool) -> Result<Self, GoldenError> {
        let path = folder.join(GOLDEN);
        let arrays = Arrays(safetensors::parse(Blob::map(&path)?, &path)?);
        let prompt = |letter: char| arrays.prompt(letter, prefer_hf);
        Ok(Self {
            prompt_a: prompt('a')?,
            prompt_b: prompt('b')?,
            greedy: arrays.greedy(read_cache_vs_prefill(folder)?)?,
        })
    }
}

fn read_cache_vs_prefill(folder: &Path) -> Result<Option<f32>, GoldenError> {
    let path = folder.join("golden.json");
    if !path.is_file() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path).map_err(|source| GoldenError::Io {
        path: path.clone(),
        source,
    })?;
    let info: GoldenInfo =
        serde_json::from_str(&text).map_err(|source| GoldenError::Json { path, source })?;
    Ok(info.cache_vs_prefill)
}

/// The arrays of a reference.
pub struct Arrays(pub Vec<RawTensor>);

impl Arrays {
    fn prompt(&self, letter: char, prefer_hf: bool) -> Result<Prompt, GoldenError> {
        let names = suffixes(prefer_hf).map(|suffix| format!("logits_{letter}{suffix}"));
        Ok(Prompt {
            tokens: tokens(self.first(&[format!("prompt_{letter}")])?)?,
            logits: floats(self.first(&names)?)?,
        })
    }

    fn greedy(&self, cache_vs_prefill: Option<f32>) -> Result<Option<Greedy>, GoldenError> {
        let Some(ids) = self.find("greedy_ids") else {
            return Ok(None);
        };
        Ok(Some(Greedy {
            ids: tokens(ids)?,
            logits: floats(self.first(&["greedy_logits".to_owned()])?)?,
            cache_vs_prefill,
        }))
    }

    pub fn find(&self, name: &str) -> Option<&RawTensor> {
        self.0.iter().find(|tensor| tensor.name == name)
    }

    fn first(&self, names: &[String]) -> Result<&RawTensor, GoldenError> {
        let found = names.iter().find_map(|name| self.find(name));
        found.ok_or_else(|| GoldenError::Missing {
            names: names.to_vec(),
        })
    }
}

pub fn tokens(array: &RawTensor) -> Result<Vec<u32>, GoldenError> {
    let bad_array = |found: String, expected| GoldenError::Array {
        array: array.name.clone(),
        found,
        expected,
    };
    if !matches!(array.dtype, Dtype::I32 | Dtype::I64) {
        return Err(bad_array(array.dtype.to_string(), "I32 or I64"));
    }
    let ids: Option<Vec<u32>> = array
        .data
        .chunks_exact(array.dtype.block_bytes())
        .map(token)
        .collect();
    match ids {
        Some(ids) if !ids.is_empty() => Ok(ids),
        Some(_) => Err(bad_array("empty".to_owned(), "one token or more")),
        None => Err(bad_array(
            "negative or too large".to_owned(),
            "token IDs of 0 or more",
        )),
    }
}

/// A token from a little-endian signed integer of 4 or 8 bytes; `None` if it is out of range.
fn token(bytes: &[u8]) -> Option<u32> {
    let (low, high) = bytes.split_at_checked(4)?;
    let low = u32::from_le_bytes(low.try_into().ok()?);
    let fits = if high.is_empty() {
        low <= i32::MAX as u32
    } else {
        high.iter().all(|byte| *byte == 0)
    };
    fits.then_some(low)
}

pub fn floats(array: &RawTensor) -> Result<Vec<f32>, GoldenError> {
    let cols = array.cols();
    let mut values = vec![0.0; array.rows() * cols];
    for (row, out) in values.chunks_mut(cols.max(1)).enumerate() {
        let bytes = array.row(row).unwrap_or_default();
        decode::decode_row(array.dtype, bytes, out).map_err(|source| GoldenError::Decode {
            array: array.name.clone(),
            source,
        })?;
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int_tensor(name: &str, values: &[i32]) -> RawTensor {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        let blob = Blob::from_vec(bytes.collect());
        RawTensor::new(name, Dtype::I32, vec![values.len()], blob).unwrap()
    }

    fn float_tensor(name: &str, values: &[f32]) -> RawTensor {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        let blob = Blob::from_vec(bytes.collect());
        RawTensor::new(name, Dtype::F32, vec![1, values.len()], blob).unwrap()
    }

    /// A golden with prompts of one token and additional arrays.
    fn golden(arrays: Vec<RawTensor>) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let mut all = vec![int_tensor("prompt_a", &[1]), int_tensor("prompt_b", &[2])];
        all.extend(arrays);
        let bytes = safetensors::write_safetensors(&all).unwrap();
        std::fs::write(folder.path().join(GOLDEN), bytes).unwrap();
        folder
    }

    #[test]
    fn preferred_implementation_supplies_logits() {
        let logits = |suffixes: &[&str]| {
            let arrays = suffixes
                .iter()
                .zip([1.0, 2.0, 3.0])
                .flat_map(|(suffix, value)| {
                    ["a", "b"]
                        .map(|letter| float_tensor(&format!("logits_{letter}{suffix}"), &[value]))
                });
            golden(arrays.collect())
        };
        let table: &[(&[&str], bool, f32)] = &[
            (&[""], false, 1.0),
            (&[""], true, 1.0),
            (&["_f32", "_hf"], false, 1.0),
            (&["_f32", "_hf"], true, 2.0),
            (&["_asloaded", "_hf"], false, 2.0),
        ];
        for (suffixes, prefer_hf, expected) in table {
            let folder = logits(suffixes);
            let found = Golden::open(folder.path(), *prefer_hf).unwrap();
            assert_eq!(
                found.prompt_b.logits,
                [*expected],
                "{suffixes:?} {prefer_hf}"
            );
            assert_eq!(found.prompt_b.tokens, [2]);
            assert!(found.greedy.is_none());
        }
    }

    #[test]
    fn damaged_array_is_named() {
        let both = || {
            vec![
                float_tensor("logits_a", &[0.0]),
                float_tensor("logits_b", &[0.0]),
            ]
        };
        let with = |array| {
            let mut arrays = both();
            arrays.push(array);
            arrays
        };
        let table = [
            (vec![float_tensor("logits_a", &[0.0])], "logits_b"),
            (with(int_tensor("greedy_ids", &[3])), "greedy_logits"),
            (with(int_tensor("greedy_ids", &[])), "greedy_ids"),
            (with(int_tensor("greedy_ids", &[-1])), "greedy_ids"),
            (with(float_tensor("greedy_ids", &[1.0])), "greedy_ids"),
        ];
        for (arrays, name) in table {
            let error = Golden::open(golden(arrays).path(), false).err().unwrap();
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn decoding_difference_is_read() {
        let arrays = vec![
            float_tensor("logits_a", &[0.0]),
            float_tensor("logits_b", &[0.0]),
            int_tensor("greedy_ids", &[4]),
            float_tensor("greedy_logits", &[0.5]),
        ];
        let folder = golden(arrays);
        let recorded = || {
            Golden::open(folder.path(), false)
                .unwrap()
                .greedy
                .unwrap()
                .cache_vs_prefill
        };
        assert_eq!(recorded(), None);
        let info = r#"{"seed": 3, "cache_vs_prefill": 0.5}"#;
        std::fs::write(folder.path().join("golden.json"), info).unwrap();
        assert_eq!(recorded(), Some(0.5));
    }

    #[test]
    fn tokens_of_both_widths_are_read() {
        assert_eq!(token(&7i32.to_le_bytes()), Some(7));
        assert_eq!(token(&7i64.to_le_bytes()), Some(7));
        assert_eq!(token(&(-7i32).to_le_bytes()), None);
        assert_eq!(token(&(-7i64).to_le_bytes()), None);
        assert_eq!(token(&(1i64 << 40).to_le_bytes()), None);
    }
}
