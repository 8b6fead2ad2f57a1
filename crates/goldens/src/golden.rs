//! A reference: prompts, and the logits of another implementation.

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
    /// After each token, one vocabulary per position.
    pub logits: Vec<f32>,
}

pub struct Greedy {
    pub ids: Vec<u32>,
    /// The logits from which each of `ids` was chosen.
    pub logits: Vec<f32>,
    /// How far the reference's decoding is from its prefill, if recorded.
    pub doubt: Option<f32>,
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
    #[error("{GOLDEN} has none of {}", wanted.join(", "))]
    Missing { wanted: Vec<String> },
    #[error("`{array}` of {GOLDEN} is {found}, but must be {expected}")]
    Array {
        array: String,
        found: String,
        expected: &'static str,
    },
    #[error("`{array}` of {GOLDEN}: {source}")]
    Decode { array: String, source: DecodeFault },
}

/// Names of logits by implementation, in order of preference.
fn endings(prefer_hf: bool) -> [&'static str; 3] {
    if prefer_hf {
        ["_hf", "", "_f32"]
    } else {
        ["", "_f32", "_hf"]
    }
}

/// The fields of the reference's description that matter here.
#[derive(Deserialize)]
struct Story {
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
            greedy: arrays.greedy(doubt(folder)?)?,
        })
    }
}

fn doubt(folder: &Path) -> Result<Option<f32>, GoldenError> {
    let path = folder.join("golden.json");
    if !path.is_file() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path).map_err(|source| GoldenError::Io {
        path: path.clone(),
        source,
    })?;
    let story: Story =
        serde_json::from_str(&text).map_err(|source| GoldenError::Json { path, source })?;
    Ok(story.cache_vs_prefill)
}

struct Arrays(Vec<RawTensor>);

impl Arrays {
    fn prompt(&self, letter: char, prefer_hf: bool) -> Result<Prompt, GoldenError> {
        let names = endings(prefer_hf).map(|ending| format!("logits_{letter}{ending}"));
        Ok(Prompt {
            tokens: tokens(self.first(&[format!("prompt_{letter}")])?)?,
            logits: floats(self.first(&names)?)?,
        })
    }

    fn greedy(&self, doubt: Option<f32>) -> Result<Option<Greedy>, GoldenError> {
        let Some(ids) = self.find("greedy_ids") else {
            return Ok(None);
        };
        Ok(Some(Greedy {
            ids: tokens(ids)?,
            logits: floats(self.first(&["greedy_logits".to_owned()])?)?,
            doubt,
        }))
    }

    fn find(&self, name: &str) -> Option<&RawTensor> {
        self.0.iter().find(|tensor| tensor.name == name)
    }

    fn first(&self, names: &[String]) -> Result<&RawTensor, GoldenError> {
        let found = names.iter().find_map(|name| self.find(name));
        found.ok_or_else(|| GoldenError::Missing {
            wanted: names.to_vec(),
        })
    }
}

fn tokens(array: &RawTensor) -> Result<Vec<u32>, GoldenError> {
    let refuse = |found: String, expected| GoldenError::Array {
        array: array.name.clone(),
        found,
        expected,
    };
    if !matches!(array.dtype, Dtype::I32 | Dtype::I64) {
        return Err(refuse(array.dtype.to_string(), "I32 or I64"));
    }
    let ids: Option<Vec<u32>> = array
        .data
        .chunks_exact(array.dtype.block_bytes())
        .map(token)
        .collect();
    match ids {
        Some(ids) if !ids.is_empty() => Ok(ids),
        Some(_) => Err(refuse("empty".to_owned(), "one token or more")),
        None => Err(refuse("not all tokens".to_owned(), "numbers from 0 up")),
    }
}

/// A little-endian signed number of any width as a token, if it can be one.
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

fn floats(array: &RawTensor) -> Result<Vec<f32>, GoldenError> {
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

    fn ints(name: &str, values: &[i32]) -> RawTensor {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        let blob = Blob::from_vec(bytes.collect());
        RawTensor::new(name, Dtype::I32, vec![values.len()], blob).unwrap()
    }

    fn floats_of(name: &str, values: &[f32]) -> RawTensor {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        let blob = Blob::from_vec(bytes.collect());
        RawTensor::new(name, Dtype::F32, vec![1, values.len()], blob).unwrap()
    }

    /// A golden with prompts of one token and these further arrays.
    fn golden(arrays: Vec<RawTensor>) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let mut all = vec![ints("prompt_a", &[1]), ints("prompt_b", &[2])];
        all.extend(arrays);
        let bytes = safetensors::write_safetensors(&all).unwrap();
        std::fs::write(folder.path().join(GOLDEN), bytes).unwrap();
        folder
    }

    #[test]
    fn preferred_implementation_supplies_logits() {
        let logits = |endings: &[&str]| {
            let arrays = endings
                .iter()
                .zip([1.0, 2.0, 3.0])
                .flat_map(|(ending, value)| {
                    ["a", "b"]
                        .map(|letter| floats_of(&format!("logits_{letter}{ending}"), &[value]))
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
        for (endings, prefer_hf, expected) in table {
            let folder = logits(endings);
            let found = Golden::open(folder.path(), *prefer_hf).unwrap();
            assert_eq!(
                found.prompt_b.logits,
                [*expected],
                "{endings:?} {prefer_hf}"
            );
            assert_eq!(found.prompt_b.tokens, [2]);
            assert!(found.greedy.is_none());
        }
    }

    #[test]
    fn damaged_array_is_named() {
        let both = || vec![floats_of("logits_a", &[0.0]), floats_of("logits_b", &[0.0])];
        let with = |array| {
            let mut arrays = both();
            arrays.push(array);
            arrays
        };
        let table = [
            (vec![floats_of("logits_a", &[0.0])], "logits_b"),
            (with(ints("greedy_ids", &[3])), "greedy_logits"),
            (with(ints("greedy_ids", &[])), "greedy_ids"),
            (with(ints("greedy_ids", &[-1])), "greedy_ids"),
            (with(floats_of("greedy_ids", &[1.0])), "greedy_ids"),
        ];
        for (arrays, name) in table {
            let error = Golden::open(golden(arrays).path(), false).err().unwrap();
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn decoding_difference_is_read() {
        let arrays = vec![
            floats_of("logits_a", &[0.0]),
            floats_of("logits_b", &[0.0]),
            ints("greedy_ids", &[4]),
            floats_of("greedy_logits", &[0.5]),
        ];
        let folder = golden(arrays);
        let doubt = || {
            Golden::open(folder.path(), false)
                .unwrap()
                .greedy
                .unwrap()
                .doubt
        };
        assert_eq!(doubt(), None);
        let story = r#"{"seed": 3, "cache_vs_prefill": 0.5}"#;
        std::fs::write(folder.path().join("golden.json"), story).unwrap();
        assert_eq!(doubt(), Some(0.5));
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
