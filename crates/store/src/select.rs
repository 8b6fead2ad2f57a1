//! Selects the files of a repository that make up a model.

use loquat_weights::{MmprojMatch, is_mmproj_name, match_mmproj};

use crate::contents::{CONFIG, Contents, Gguf, INDEX, SINGLE, TOKENIZER, quant_in_name};
use crate::error::{ModelCandidate, ModelCandidates};
use crate::{FileKind, HubReference, RepoPart, StoreError};

/// Default quants in order of preference: the usual recommendation, then the most widely supported.
const USUAL_QUANTS: [&str; 2] = ["Q4_K_M", "Q4_0"];

/// Files in addition to safetensors that `spec`, `text`, `media` and converters read.
const SIDE_FILES: [&str; 10] = [
    CONFIG,
    "generation_config.json",
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
];
const MORE_TEMPLATES: &str = "additional_chat_templates/";

/// The selected model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    /// One file.
    Gguf {
        path: String,
        /// The quant, if it was chosen by default.
        by_default: Option<String>,
    },
    /// The top-level weights with their side files.
    Safetensors,
}

/// Selects the model that `reference` and `kind` describe.
pub(crate) fn choose(
    contents: &Contents,
    reference: &HubReference,
    kind: Option<FileKind>,
) -> Result<Choice, StoreError> {
    let offer = RepoChoices {
        contents,
        ggufs: contents.ggufs(),
        reference,
    };
    let choice = |path: &str| Choice::Gguf {
        path: path.to_owned(),
        by_default: None,
    };
    match (&reference.part, kind) {
        (Some(RepoPart::File(path)), _) => match offer.gguf_at(path)? {
            Some(gguf) => Ok(choice(&gguf.path)),
            None => Ok(Choice::Safetensors),
        },
        (Some(RepoPart::Quant(quant)), _) => {
            let fits = |gguf: &&Gguf| gguf.has_quant(quant);
            match offer.ggufs.iter().filter(fits).collect::<Vec<_>>()[..] {
                [gguf] => offer.unsplit(gguf).map(|gguf| choice(&gguf.path)),
                [] => Err(offer.no_such_part(quant)),
                ref several => Err(offer.ambiguous(several.iter().copied(), false)),
            }
        }
        (None, Some(FileKind::Gguf)) => offer.usual_gguf(),
        (None, Some(_)) if contents.has_safetensors() => Ok(Choice::Safetensors),
        (None, Some(_)) if offer.ggufs.is_empty() => Err(offer.no_model()),
        (None, Some(kind)) => Err(offer.no_such_part(kind.name())),
        (None, None) => match (contents.has_safetensors(), offer.ggufs.is_empty()) {
            (true, true) => Ok(Choice::Safetensors),
            (false, false) => offer.usual_gguf(),
            (true, false) => Err(offer.ambiguous(&offer.ggufs, true)),
            (false, true) => Err(offer.no_model()),
        },
    }
}

/// Selects the vision tower that `reference` describes.
pub(crate) fn choose_mmproj(
    contents: &Contents,
    reference: &HubReference,
) -> Result<String, StoreError> {
    let names: Vec<&str> = contents
        .files
        .iter()
        .map(|file| file.path.as_str())
        .collect();
    let towers: Vec<&str> = names
        .iter()
        .copied()
        .filter(|name| is_mmproj_name(name))
        .collect();
    let found = match &reference.part {
        Some(RepoPart::File(path)) if names.contains(&path.as_str()) => {
            return Ok(path.clone());
        }
        Some(RepoPart::File(path)) => Err(path.as_str()),
        Some(RepoPart::Quant(quant)) => {
            let has =
                |name: &&&str| quant_in_name(name).is_some_and(|q| q.eq_ignore_ascii_case(quant));
            match towers.iter().filter(has).collect::<Vec<_>>()[..] {
                [only] => Ok(MmprojMatch::One((*only).to_owned())),
                _ => Err(quant.as_str()),
            }
        }
        None => Ok(match_mmproj("", &towers)),
    };
    let candidates = |towers: &[&str]| towers.iter().map(|name| (*name).to_owned()).collect();
    match found {
        Ok(MmprojMatch::One(path)) => Ok(path),
        Ok(MmprojMatch::Several(several)) => Err(StoreError::AmbiguousMmproj {
            repo: reference.repo.clone(),
            files: several,
        }),
        Ok(MmprojMatch::None) => Err(StoreError::NotAModelRepo {
            repo: reference.repo.clone(),
            why: "it has no vision tower (mmproj)".to_owned(),
        }),
        Err(_) => Err(StoreError::AmbiguousMmproj {
            repo: reference.repo.clone(),
            files: candidates(&towers),
        }),
    }
}

/// The models of a repository, and the reference to match.
struct RepoChoices<'a> {
    contents: &'a Contents,
    ggufs: Vec<Gguf>,
    reference: &'a HubReference,
}

impl RepoChoices<'_> {
    /// The GGUF at a path; `None` if the path names the safetensors.
    fn gguf_at(&self, path: &str) -> Result<Option<&Gguf>, StoreError> {
        if let Some(gguf) = self.ggufs.iter().find(|gguf| gguf.path == path) {
            return self.unsplit(gguf).map(Some);
        }
        if [SINGLE, INDEX].contains(&path) && self.contents.has_safetensors() {
            Ok(None)
        } else {
            Err(self.no_such_part(path))
        }
    }

    fn usual_gguf(&self) -> Result<Choice, StoreError> {
        let choice = |gguf: &Gguf, by_default| Choice::Gguf {
            path: gguf.path.clone(),
            by_default,
        };
        match &self.ggufs[..] {
            [] if self.contents.has_safetensors() => return Err(self.no_such_part("gguf")),
            [] => return Err(self.no_model()),
            [only] => return self.unsplit(only).map(|gguf| choice(gguf, None)),
            _ => {}
        }
        for quant in USUAL_QUANTS {
            let fits = |gguf: &&Gguf| gguf.has_quant(quant) && !gguf.is_split();
            if let [gguf] = self.ggufs.iter().filter(fits).collect::<Vec<_>>()[..] {
                return Ok(choice(gguf, Some(quant.to_owned())));
            }
        }
        Err(self.ambiguous(&self.ggufs, false))
    }

    fn unsplit<'g>(&self, gguf: &'g Gguf) -> Result<&'g Gguf, StoreError> {
        if gguf.is_split() {
            Err(StoreError::SplitGguf {
                name: self.selector(gguf),
                of: gguf.files,
            })
        } else {
            Ok(gguf)
        }
    }

    fn no_model(&self) -> StoreError {
        StoreError::NotAModelRepo {
            repo: self.repo(),
            why: self.contents.unusable_reason(),
        }
    }

    fn no_such_part(&self, requested: &str) -> StoreError {
        let candidates = self.candidates(&self.ggufs, self.contents.has_safetensors());
        if candidates.0.is_empty() {
            return self.no_model();
        }
        StoreError::NoSuchPart {
            reference: self.repo(),
            requested: requested.to_owned(),
            candidates,
        }
    }

    fn ambiguous<'g>(
        &self,
        ggufs: impl IntoIterator<Item = &'g Gguf>,
        safetensors: bool,
    ) -> StoreError {
        StoreError::Ambiguous {
            reference: self.reference.to_string(),
            candidates: self.candidates(ggufs, safetensors),
        }
    }

    fn candidates<'g>(
        &self,
        ggufs: impl IntoIterator<Item = &'g Gguf>,
        safetensors: bool,
    ) -> ModelCandidates {
        let candidate = |gguf: &Gguf| ModelCandidate {
            kind: FileKind::Gguf,
            quant: gguf.quant.clone(),
            bytes: gguf.bytes,
            selector: self.selector(gguf),
        };
        let mut all: Vec<ModelCandidate> = ggufs.into_iter().map(candidate).collect();
        if safetensors {
            // The config that distinguishes MLX from plain safetensors is not downloaded yet.
            let kind = if self.reference.repo.to_ascii_lowercase().contains("mlx") {
                FileKind::Mlx
            } else {
                FileKind::Safetensors
            };
            all.push(ModelCandidate {
                kind,
                quant: None,
                bytes: self.contents.safetensors_bytes(),
                selector: format!("{} {}", self.repo(), kind.flag()),
            });
        }
        ModelCandidates(all)
    }

    /// The reference that selects exactly this model.
    fn selector(&self, gguf: &Gguf) -> String {
        let same = |quant: &&String| {
            let others = self.ggufs.iter().filter(|other| other.has_quant(quant));
            others.count() == 1
        };
        match gguf.quant.as_ref().filter(same) {
            Some(quant) => format!("{}:{quant}", self.repo()),
            None => format!("{}:{}", self.repo(), gguf.path),
        }
    }

    /// The reference without its part.
    fn repo(&self) -> String {
        HubReference {
            part: None,
            ..self.reference.clone()
        }
        .to_string()
    }
}

/// The small files that list the other files of a safetensors model.
pub(crate) fn first_files(contents: &Contents) -> Vec<&str> {
    let index = (!contents.has(SINGLE)).then_some(INDEX);
    std::iter::once(CONFIG).chain(index).collect()
}

/// All side files.
pub(crate) fn side_files(contents: &Contents) -> Vec<&str> {
    let paths = contents.files.iter().map(|file| file.path.as_str());
    paths
        .filter(|path| {
            let template = path.strip_prefix(MORE_TEMPLATES);
            SIDE_FILES.contains(path) || template.is_some_and(|name| name.ends_with(".jinja"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelReference;
    use crate::contents::NamedFile;

    fn contents(names: &[&str]) -> Contents {
        let files = names.iter().map(|name| NamedFile {
            path: (*name).to_owned(),
            bytes: Some(1_500_000_000),
        });
        Contents {
            files: files.collect(),
        }
    }

    fn choose_from(
        names: &[&str],
        reference: &str,
        kind: Option<FileKind>,
    ) -> Result<Choice, String> {
        let Ok(ModelReference::Hub(parsed)) = ModelReference::parse(reference) else {
            panic!("{reference} is not a repository");
        };
        choose(&contents(names), &parsed, kind).map_err(|error| error.to_string())
    }

    const QUANTS: [&str; 3] = ["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q2_K.gguf"];
    const PLAIN: [&str; 3] = ["config.json", "model.safetensors", "pytorch_model.bin"];

    #[test]
    fn requested_model_is_chosen() {
        let gguf = |path: &str, by_default: Option<&str>| Choice::Gguf {
            path: path.to_owned(),
            by_default: by_default.map(str::to_owned),
        };
        let both = [&QUANTS[..], &PLAIN[..]].concat();
        for (names, reference, kind, expected) in [
            (
                &QUANTS[..],
                "o/r",
                None,
                gguf("m-Q4_K_M.gguf", Some("Q4_K_M")),
            ),
            (&QUANTS, "o/r:q8_0", None, gguf("m-Q8_0.gguf", None)),
            (&QUANTS, "o/r:m-Q2_K.gguf", None, gguf("m-Q2_K.gguf", None)),
            (
                &["m-Q8_0.gguf", "m-Q4_0.gguf"],
                "o/r",
                None,
                gguf("m-Q4_0.gguf", Some("Q4_0")),
            ),
            (
                &["only-Q2_K.gguf", "mmproj-f16.gguf"],
                "o/r",
                None,
                gguf("only-Q2_K.gguf", None),
            ),
            (&PLAIN, "o/r", None, Choice::Safetensors),
            (&PLAIN, "o/r:model.safetensors", None, Choice::Safetensors),
            (&both, "o/r", Some(FileKind::Mlx), Choice::Safetensors),
            (
                &both,
                "o/r",
                Some(FileKind::Gguf),
                gguf("m-Q4_K_M.gguf", Some("Q4_K_M")),
            ),
        ] {
            assert_eq!(
                choose_from(names, reference, kind),
                Ok(expected),
                "{reference} {kind:?}"
            );
        }
    }

    #[test]
    fn impossible_choice_lists_candidates() {
        let both = [&["m-Q8_0.gguf"], &PLAIN[..]].concat();
        for (names, reference, kind, said) in [
            (
                &["m-Q8_0.gguf", "m-Q2_K.gguf"][..],
                "o/r",
                None,
                &["o/r:Q8_0", "o/r:Q2_K", "1.5 GB"][..],
            ),
            (&both, "o/r", None, &["o/r:Q8_0", "o/r --safetensors"]),
            (&both, "o/mlx-r", None, &["o/mlx-r --mlx"]),
            (&QUANTS, "o/r@v1:Q6_K", None, &["no Q6_K", "o/r@v1:Q8_0"]),
            (&QUANTS, "o/r", Some(FileKind::Mlx), &["no mlx", "o/r:Q8_0"]),
            (
                &PLAIN,
                "o/r",
                Some(FileKind::Gguf),
                &["no gguf", "--safetensors"],
            ),
            (
                &["a/m-Q8_0.gguf", "b/m-Q8_0.gguf"],
                "o/r:Q8_0",
                None,
                &["o/r:a/m-Q8_0.gguf", "o/r:b/m-Q8_0.gguf"],
            ),
            (
                &["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"],
                "o/r",
                None,
                &["o/r:Q8_0", "split into 2 files", "--merge"],
            ),
            (
                &["config.json", "pytorch_model.bin"],
                "o/r",
                None,
                &["PyTorch", "safetensors"],
            ),
            (&["README.md"], "o/r:Q8_0", None, &["o/r has no model"]),
        ] {
            let message = choose_from(names, reference, kind).unwrap_err();
            for part in said {
                assert!(
                    message.contains(part),
                    "{reference}: {part} not in {message}"
                );
            }
        }
    }

    #[test]
    fn only_side_files_in_use_are_selected() {
        let all = contents(&[
            "config.json",
            "README.md",
            "tokenizer.json",
            "tokenizer.model",
            "pytorch_model.bin",
            "consolidated.safetensors",
            "onnx/model.onnx",
            "chat_template.jinja",
            "additional_chat_templates/rag.jinja",
            "additional_chat_templates/notes.txt",
            "model.safetensors.index.json",
        ]);
        assert_eq!(first_files(&all), ["config.json", INDEX]);
        assert_eq!(
            side_files(&all),
            [
                "config.json",
                "tokenizer.json",
                "chat_template.jinja",
                "additional_chat_templates/rag.jinja"
            ]
        );
    }
}
