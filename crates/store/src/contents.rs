//! What a folder, a cached snapshot or a repository holds, told by its files' names.
//!
//! Names are the last witness: what is said here is proved by headers and configs once the files
//! are at hand ([`local`](crate::local)), and refused there if it is not so.

use std::fmt::Write;

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
pub(crate) const TOKENIZER: &str = "tokenizer.json";
const ADAPTER_CONFIG: &str = "adapter_config.json";
const PIPELINE: &str = "model_index.json";

/// A file by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    /// With `/` between folders.
    pub path: String,
    pub bytes: Option<u64>,
}

/// All files of a place.
#[derive(Debug, Clone, Default)]
pub(crate) struct Contents {
    pub files: Vec<Named>,
}

/// A GGUF that could be run, of one file or split into several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gguf {
    /// The first file.
    pub path: String,
    pub quant: Option<String>,
    /// Of all files, where all are known.
    pub bytes: Option<u64>,
    /// Into how many files it is split.
    pub files: u32,
}

impl Contents {
    pub(crate) fn has(&self, path: &str) -> bool {
        self.files.iter().any(|file| file.path == path)
    }

    /// Whether there is a model of safetensors, plain or MLX's, at the top.
    pub(crate) fn has_safetensors(&self) -> bool {
        self.has(CONFIG) && (self.has(SINGLE) || self.has(INDEX))
    }

    pub(crate) fn safetensors_bytes(&self) -> Option<u64> {
        let weights = self.files.iter().filter(|file| is_safetensors(&file.path));
        weights.map(|file| file.bytes).sum()
    }

    /// At the top.
    pub(crate) fn safetensors(&self) -> Vec<&str> {
        let paths = self.files.iter().map(|file| file.path.as_str());
        paths.filter(|path| is_safetensors(path)).collect()
    }

    /// Every GGUF but those that are no models of their own: projectors of images, and what
    /// quantizing was calibrated with.
    pub(crate) fn ggufs(&self) -> Vec<Gguf> {
        let mut found: Vec<Gguf> = Vec::new();
        for file in self.files.iter().filter(|file| is_model_gguf(&file.path)) {
            match split_of(&file.path) {
                Some((1, of)) => {
                    found.push(Gguf {
                        bytes: self.split_bytes(&file.path, of),
                        quant: quant_of(&file.path),
                        path: file.path.clone(),
                        files: of,
                    });
                }
                Some(_) => {}
                None => found.push(Gguf {
                    path: file.path.clone(),
                    quant: quant_of(&file.path),
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

    /// Why nothing here can be run, and what to do about it.
    pub(crate) fn why_not(&self) -> String {
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
            return "it is a LoRA adapter, not a model; merge it into its base model first"
                .to_owned();
        }
        if self.has(PIPELINE) {
            return format!("it has {PIPELINE}: it makes images, and only text is spoken here");
        }
        if let Some(file) = find(&|path| is_split_apart(path)) {
            return format!("{file} is a piece of a split GGUF whose first piece is missing");
        }
        if let Some(file) = find(&|path| is_projector(path)) {
            return format!(
                "it has no model, only {file}, which lets a model see images; get the model's own \
                 .gguf"
            );
        }
        let safetensors = find(&|path| path.ends_with(".safetensors"));
        match (self.has(CONFIG), safetensors) {
            (true, Some(file)) => {
                return format!("it has {file} but neither {SINGLE} nor {INDEX}");
            }
            (false, Some(file)) => {
                return format!("it has {file} but no {CONFIG}; get the one of the same model");
            }
            (_, None) => {}
        }
        if let Some(file) = find(&is_pytorch) {
            return format!(
                "its weights are PyTorch's ({file}), which can run code when read and are not; \
                 look for safetensors or GGUF of it, or convert them with transformers' \
                 save_pretrained"
            );
        }
        let has = self.has_in_words();
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
    fn has_in_words(&self) -> String {
        const SHOWN: usize = 5;
        let names: Vec<&str> = self
            .files
            .iter()
            .take(SHOWN)
            .map(|file| file.path.as_str())
            .collect();
        let mut text = names.join(", ");
        if let Some(more) = self.files.len().checked_sub(SHOWN).filter(|more| *more > 0) {
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

fn is_projector(path: &str) -> bool {
    is_gguf(path) && file_name(path).to_ascii_lowercase().contains("mmproj")
}

fn is_model_gguf(path: &str) -> bool {
    let name = file_name(path).to_ascii_lowercase();
    is_gguf(path) && !name.contains("mmproj") && !name.contains("imatrix")
}

/// The second or a later piece.
fn is_split_apart(path: &str) -> bool {
    is_model_gguf(path) && split_of(path).is_some_and(|(number, _)| number > 1)
}

fn is_pytorch(path: &str) -> bool {
    let endings = [".bin", ".pth", ".pt", ".ckpt"];
    endings.iter().any(|ending| path.ends_with(ending))
}

/// Which piece of how many a file is by its name: `-00001-of-00003.gguf`.
pub(crate) fn split_of(path: &str) -> Option<(u32, u32)> {
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

/// The quant that a GGUF's name ends with, in capitals.
pub(crate) fn quant_of(path: &str) -> Option<String> {
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
    // The last: a model's own name may hold such a word too.
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
        let files = names.iter().map(|name| Named {
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
            assert_eq!(quant_of(name).as_deref(), expected, "{name}");
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
    fn what_is_missing_is_said() {
        for (names, said) in [
            (&[][..], "empty"),
            (&["config.json", "pytorch_model.bin"], "pytorch_model.bin"),
            (
                &["adapter_config.json", "adapter_model.safetensors"],
                "LoRA",
            ),
            (&["tokenizer.json", "tokenizer_config.json"], "tokenizer"),
            (&["mmproj-model-f16.gguf"], "images"),
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
            let why = contents(names).why_not();
            assert!(why.contains(said), "{names:?}: {why}");
        }
    }
}
