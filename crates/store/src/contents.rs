//! What a folder, a cached snapshot or a repository contains, judged by file names alone.
//!
//! Once the files are on disk, [`local`](crate::local) checks this against headers and configs.

use std::fmt::Write;

use loquat_weights::is_mmproj_name;

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
pub(crate) const TOKENIZER: &str = "tokenizer.json";
const ADAPTER_CONFIG: &str = "adapter_config.json";
const PIPELINE: &str = "model_index.json";

/// A file name with its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedFile {
    /// With `/` between folders.
    pub path: String,
    pub bytes: Option<u64>,
}

/// All files of a folder, snapshot or repository.
#[derive(Debug, Clone, Default)]
pub(crate) struct Contents {
    pub files: Vec<NamedFile>,
}

/// A runnable GGUF, in one file or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gguf {
    /// The first file.
    pub path: String,
    pub quant: Option<String>,
    /// Total size of all files, if known.
    pub bytes: Option<u64>,
    /// The number of files it is split into.
    pub files: u32,
}

impl Contents {
    pub(crate) fn has(&self, path: &str) -> bool {
        self.files.iter().any(|file| file.path == path)
    }

    /// Whether the top level holds a safetensors model, plain or MLX.
    pub(crate) fn has_safetensors(&self) -> bool {
        self.has(CONFIG) && (self.has(SINGLE) || self.has(INDEX))
    }

    pub(crate) fn safetensors_bytes(&self) -> Option<u64> {
        let weights = self.files.iter().filter(|file| is_safetensors(&file.path));
        weights.map(|file| file.bytes).sum()
    }

    /// Safetensors files at the top level.
    pub(crate) fn safetensors(&self) -> Vec<&str> {
        let paths = self.files.iter().map(|file| file.path.as_str());
        paths.filter(|path| is_safetensors(path)).collect()
    }

    /// Every GGUF model. Image projectors and importance matrices are not models.
    pub(crate) fn ggufs(&self) -> Vec<Gguf> {
        let mut found: Vec<Gguf> = Vec::new();
        for file in self.files.iter().filter(|file| is_model_gguf(&file.path)) {
            match gguf_split(&file.path) {
                Some((1, of)) => {
                    found.push(Gguf {
                        bytes: self.split_bytes(&file.path, of),
                        quant: quant_in_name(&file.path),
                        path: file.path.clone(),
                        files: of,
                    });
                }
                Some(_) => {}
                None => found.push(Gguf {
                    path: file.path.clone(),
                    quant: quant_in_name(&file.path),
                    bytes: file.bytes,
                    files: 1,
                }),
            }
        }
        found
    }

    fn split_bytes(&self, first: &str, of: u32) -> Option<u64> {
        let stem = first.strip_suffix(".gguf")?.rsplit_once("-00001-of-")?.0;
        let part = |number: u32| {
            let path = format!("{stem}-{number:05}-of-{of:05}.gguf");
            self.files.iter().find(|file| file.path == path)?.bytes
        };
        (1..=of).map(part).sum()
    }

    /// Explains why nothing here can be run and what to do about it.
    pub(crate) fn unusable_reason(&self) -> String {
        let find = |fits: &dyn Fn(&str) -> bool| {
            self.files
                .iter()
                .map(|file| file.path.as_str())
                .find(|path| fits(path))
        };
        if self.files.is_empty() {
            return "it is empty".to_owned();
        }
        if self.has(ADAPTER_CONFIG) {
            return "it is a LoRA adapter, not a model; run its base model with --adapter"
                .to_owned();
        }
        if self.has(PIPELINE) {
            return format!(
                "it has {PIPELINE}: it generates images; only text models are supported"
            );
        }
        if let Some(file) = find(&|path| is_later_split(path)) {
            return format!("{file} is part of a split GGUF whose first part is missing");
        }
        if let Some(file) = find(&|path| is_mmproj_name(path)) {
            return format!(
                "it has no model, only the vision tower {file}; add the model's own .gguf"
            );
        }
        let safetensors = find(&|path| path.ends_with(".safetensors"));
        match (self.has(CONFIG), safetensors) {
            (true, Some(file)) => {
                return format!("it has {file} but neither {SINGLE} nor {INDEX}");
            }
            (false, Some(file)) => {
                return format!("it has {file} but no {CONFIG}; add the one of the same model");
            }
            (_, None) => {}
        }
        if let Some(file) = find(&is_pytorch) {
            return format!(
                "its weights are PyTorch pickles ({file}), which are not supported because loading \
                 them can run code; use safetensors or GGUF, or convert them with transformers' \
                 save_pretrained"
            );
        }
        let has = self.summary();
        match (self.has(CONFIG), self.has(TOKENIZER)) {
            (true, _) => format!("it has {CONFIG} but no weights ({SINGLE}, {INDEX} or a .gguf)"),
            (false, true) => {
                format!("it has a tokenizer but no model: {CONFIG} and weights are missing")
            }
            (false, false) => {
                format!("it has no {CONFIG} with {SINGLE}, and no .gguf; it has {has}")
            }
        }
    }

    /// The first few names.
    fn summary(&self) -> String {
        const MAX_LISTED: usize = 5;
        let names: Vec<&str> = self
            .files
            .iter()
            .take(MAX_LISTED)
            .map(|file| file.path.as_str())
            .collect();
        let mut text = names.join(", ");
        if let Some(more) = self
            .files
            .len()
            .checked_sub(MAX_LISTED)
            .filter(|more| *more > 0)
        {
            // Writing to a String cannot fail.
            let _ = write!(text, " and {more} more");
        }
        text
    }
}

impl Gguf {
    pub(crate) fn is_split(&self) -> bool {
        self.files > 1
    }

    pub(crate) fn has_quant(&self, quant: &str) -> bool {
        self.quant
            .as_deref()
            .is_some_and(|known| known.eq_ignore_ascii_case(quant))
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn is_gguf(path: &str) -> bool {
    path.len() > 5 && path.to_ascii_lowercase().ends_with(".gguf")
}

fn is_safetensors(path: &str) -> bool {
    path.ends_with(".safetensors") && !path.contains('/')
}

fn is_model_gguf(path: &str) -> bool {
    let name = file_name(path).to_ascii_lowercase();
    is_gguf(path) && !is_mmproj_name(path) && !name.contains("imatrix")
}

/// Whether the file is the second or a later part of a split GGUF.
fn is_later_split(path: &str) -> bool {
    is_model_gguf(path) && gguf_split(path).is_some_and(|(number, _)| number > 1)
}

fn is_pytorch(path: &str) -> bool {
    let endings = [".bin", ".pth", ".pt", ".ckpt"];
    endings.iter().any(|ending| path.ends_with(ending))
}

/// Part number and part count from a name such as `-00001-of-00003.gguf`.
pub(crate) fn gguf_split(path: &str) -> Option<(u32, u32)> {
    let stem = file_name(path).strip_suffix(".gguf")?;
    let (rest, of) = stem.rsplit_once("-of-")?;
    let (_, number) = rest.rsplit_once('-')?;
    let count = |digits: &str| {
        if digits.len() == 5 {
            digits.parse::<u32>().ok()
        } else {
            None
        }
    };
    let (number, of) = (count(number)?, count(of)?);
    (number >= 1 && number <= of).then_some((number, of))
}

/// The quant in a GGUF's file name, in upper case.
pub(crate) fn quant_in_name(path: &str) -> Option<String> {
    let name = file_name(path).to_ascii_uppercase();
    let stem = name.strip_suffix(".GGUF").unwrap_or(&name);
    let starts = std::iter::once(0).chain(
        stem.match_indices(['-', '.', '_', '/'])
            .map(|(at, _)| at + 1),
    );
    let word = |start: usize| {
        let rest = &stem[start..];
        &rest[..rest.find(['-', '.']).unwrap_or(rest.len())]
    };
    // The last match counts: the model's own name may contain such a word too.
    let mut words = starts.map(word).rev();
    words.find(|word| is_quant(word)).map(str::to_owned)
}

/// `Q4_0`, `IQ2_XXS`, `Q4_K_M`, `MXFP4_MOE`, `BF16`.
fn is_quant(word: &str) -> bool {
    const PLAIN: [&str; 5] = ["F32", "F16", "BF16", "FP16", "FP32"];
    if PLAIN.contains(&word) || word == "MXFP4" || word.starts_with("MXFP4_") {
        return true;
    }
    let rest = ["IQ", "TQ", "Q"]
        .iter()
        .find_map(|start| word.strip_prefix(start));
    let Some(rest) = rest else {
        return false;
    };
    let mut parts = rest.split('_');
    let bits = parts.next().unwrap_or_default();
    let of_bits = bits.len() == 1 && bits.bytes().all(|bit| (b'1'..=b'8').contains(&bit));
    of_bits && parts.all(|part| !part.is_empty() && part.len() <= 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(names: &[&str]) -> Contents {
        let files = names.iter().map(|name| NamedFile {
            path: (*name).to_owned(),
            bytes: Some(10),
        });
        Contents {
            files: files.collect(),
        }
    }

    #[test]
    fn quants_are_read_from_names() {
        for (name, expected) in [
            ("SmolLM2-135M-Instruct.Q4_1.gguf", Some("Q4_1")),
            ("gemma-3-270m-q4_k_m.gguf", Some("Q4_K_M")),
            ("qwen2.5-0.5b-instruct-fp16.gguf", Some("FP16")),
            ("Meta-Llama-3.1-8B-Instruct-IQ2_XXS.gguf", Some("IQ2_XXS")),
            ("gpt-oss-20b-mxfp4.gguf", Some("MXFP4")),
            ("gpt-oss-20b-MXFP4_MOE.gguf", Some("MXFP4_MOE")),
            ("Qwen3-4B-UD-Q4_K_XL.gguf", Some("Q4_K_XL")),
            ("sub/model_q8_0.gguf", Some("Q8_0")),
            ("a-Q8_0-00001-of-00002.gguf", Some("Q8_0")),
            ("model.gguf", None),
            ("Qwen3-4B.gguf", None),
            ("phi-2.gguf", None),
        ] {
            assert_eq!(quant_in_name(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn split_files_are_one_model() {
        let all = contents(&[
            "a-Q8_0-00001-of-00002.gguf",
            "a-Q8_0-00002-of-00002.gguf",
            "a-Q4_0.gguf",
            "mmproj-a-f16.gguf",
            "imatrix.gguf",
        ]);
        let found: Vec<_> = all
            .ggufs()
            .into_iter()
            .map(|gguf| (gguf.quant.unwrap(), gguf.bytes, gguf.files))
            .collect();
        assert_eq!(
            found,
            [
                ("Q8_0".to_owned(), Some(20), 2),
                ("Q4_0".to_owned(), Some(10), 1)
            ]
        );
    }

    #[test]
    fn unusable_reason_names_what_is_missing() {
        for (names, said) in [
            (&[][..], "empty"),
            (&["config.json", "pytorch_model.bin"], "pytorch_model.bin"),
            (
                &["adapter_config.json", "adapter_model.safetensors"],
                "LoRA",
            ),
            (&["tokenizer.json", "tokenizer_config.json"], "tokenizer"),
            (&["mmproj-model-f16.gguf"], "vision tower"),
            (&["model.safetensors"], "no config.json"),
            (&["config.json"], "no weights"),
            (
                &["config.json", "weights.safetensors"],
                "weights.safetensors",
            ),
            (&["model_index.json", "unet/config.json"], "images"),
            (&["a-00002-of-00002.gguf"], "split"),
            (&["notes.txt"], "it has notes.txt"),
        ] {
            let why = contents(names).unusable_reason();
            assert!(why.contains(said), "{names:?}: {why}");
        }
    }
}
