//! Which files of a repository make up the model that is wanted.

use crate::contents::{CONFIG, Contents, Gguf, INDEX, SINGLE, TOKENIZER};
use crate::error::{Candidate, Candidates};
use crate::{FileKind, HubReference, RepoPart, StoreError};

/// The quants to take where a repository has several and nobody says, in this order: what most
/// who quantize recommend, and what every tool reads.
const USUAL_QUANTS: [&str; 2] = ["Q4_K_M", "Q4_0"];

/// What stands beside safetensors and is read: by `spec`, `text` and whoever converts.
const SIDE_FILES: [&str; 7] = [
    CONFIG,
    "generation_config.json",
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];
const MORE_TEMPLATES: &str = "additional_chat_templates/";

/// The model that is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    /// One file.
    Gguf {
        path: String,
        /// The quant, where it was taken without being asked for.
        by_default: Option<String>,
    },
    /// The weights at the top, with all that stands beside them.
    Safetensors,
}

/// The one that `wanted` and `kind` mean of what a repository holds.
pub(crate) fn choose(
    contents: &Contents,
    wanted: &HubReference,
    kind: Option<FileKind>,
) -> Result<Choice, StoreError> {
    let offer = Offer {
        contents,
        ggufs: contents.ggufs(),
        wanted,
    };
    let of_gguf = |path: &str| Choice::Gguf {
        path: path.to_owned(),
        by_default: None,
    };
    match (&wanted.part, kind) {
        (Some(RepoPart::File(path)), _) => match offer.gguf_at(path)? {
            Some(gguf) => Ok(of_gguf(&gguf.path)),
            None => Ok(Choice::Safetensors),
        },
        (Some(RepoPart::Quant(quant)), _) => {
            let fits = |gguf: &&Gguf| gguf.has_quant(quant);
            match offer.ggufs.iter().filter(fits).collect::<Vec<_>>()[..] {
                [gguf] => offer.whole(gguf).map(|gguf| of_gguf(&gguf.path)),
                [] => Err(offer.no_such(quant)),
                ref several => Err(offer.ambiguous(several.iter().copied(), false)),
            }
        }
        (None, Some(FileKind::Gguf)) => offer.usual_gguf(),
        (None, Some(kind)) => match contents.has_safetensors() {
            true => Ok(Choice::Safetensors),
            false if offer.ggufs.is_empty() => Err(offer.nothing()),
            false => Err(offer.no_such(kind.name())),
        },
        (None, None) => match (contents.has_safetensors(), offer.ggufs.is_empty()) {
            (true, true) => Ok(Choice::Safetensors),
            (false, false) => offer.usual_gguf(),
            (true, false) => Err(offer.ambiguous(&offer.ggufs, true)),
            (false, true) => Err(offer.nothing()),
        },
    }
}

/// What a repository has, and what is asked of it.
struct Offer<'a> {
    contents: &'a Contents,
    ggufs: Vec<Gguf>,
    wanted: &'a HubReference,
}

impl Offer<'_> {
    /// The GGUF at a path; `None` where it names the safetensors.
    fn gguf_at(&self, path: &str) -> Result<Option<&Gguf>, StoreError> {
        if let Some(gguf) = self.ggufs.iter().find(|gguf| gguf.path == path) {
            return self.whole(gguf).map(Some);
        }
        if [SINGLE, INDEX].contains(&path) && self.contents.has_safetensors() {
            Ok(None)
        } else {
            Err(self.no_such(path))
        }
    }

    fn usual_gguf(&self) -> Result<Choice, StoreError> {
        let choice = |gguf: &Gguf, by_default| Choice::Gguf {
            path: gguf.path.clone(),
            by_default,
        };
        match &self.ggufs[..] {
            [] if self.contents.has_safetensors() => return Err(self.no_such("gguf")),
            [] => return Err(self.nothing()),
            [only] => return self.whole(only).map(|gguf| choice(gguf, None)),
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

    fn whole<'g>(&self, gguf: &'g Gguf) -> Result<&'g Gguf, StoreError> {
        if gguf.is_split() {
            Err(StoreError::SplitGguf {
                name: self.say(gguf),
                of: gguf.files,
            })
        } else {
            Ok(gguf)
        }
    }

    fn nothing(&self) -> StoreError {
        StoreError::NotAModelRepo {
            repo: self.repo(),
            why: self.contents.why_not(),
        }
    }

    fn no_such(&self, wanted: &str) -> StoreError {
        let candidates = self.candidates(&self.ggufs, self.contents.has_safetensors());
        if candidates.0.is_empty() {
            return self.nothing();
        }
        StoreError::NoSuchPart {
            reference: self.repo(),
            wanted: wanted.to_owned(),
            candidates,
        }
    }

    fn ambiguous<'g>(
        &self,
        ggufs: impl IntoIterator<Item = &'g Gguf>,
        safetensors: bool,
    ) -> StoreError {
        StoreError::Ambiguous {
            reference: self.wanted.to_string(),
            candidates: self.candidates(ggufs, safetensors),
        }
    }

    fn candidates<'g>(
        &self,
        ggufs: impl IntoIterator<Item = &'g Gguf>,
        safetensors: bool,
    ) -> Candidates {
        let of_gguf = |gguf: &Gguf| Candidate {
            kind: FileKind::Gguf,
            quant: gguf.quant.clone(),
            bytes: gguf.bytes,
            say: self.say(gguf),
        };
        let mut all: Vec<Candidate> = ggufs.into_iter().map(of_gguf).collect();
        if safetensors {
            // Whether MLX quantized them stands in a file that is not here yet.
            let kind = if self.wanted.repo.to_ascii_lowercase().contains("mlx") {
                FileKind::Mlx
            } else {
                FileKind::Safetensors
            };
            all.push(Candidate {
                kind,
                quant: None,
                bytes: self.contents.safetensors_bytes(),
                say: format!("{} {}", self.repo(), kind.flag()),
            });
        }
        Candidates(all)
    }

    /// The reference that means just this one.
    fn say(&self, gguf: &Gguf) -> String {
        let same = |quant: &&String| {
            let others = self.ggufs.iter().filter(|other| other.has_quant(quant));
            others.count() == 1
        };
        match gguf.quant.as_ref().filter(same) {
            Some(quant) => format!("{}:{quant}", self.repo()),
            None => format!("{}:{}", self.repo(), gguf.path),
        }
    }

    /// Without the part.
    fn repo(&self) -> String {
        HubReference {
            part: None,
            ..self.wanted.clone()
        }
        .to_string()
    }
}

/// The small files to read before it is known what else a model of safetensors needs.
pub(crate) fn first_files(contents: &Contents) -> Vec<&str> {
    let index = (!contents.has(SINGLE)).then_some(INDEX);
    std::iter::once(CONFIG).chain(index).collect()
}

/// Everything beside the weights that is read.
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
    use crate::Reference;
    use crate::contents::Named;

    fn contents(names: &[&str]) -> Contents {
        let files = names.iter().map(|name| Named {
            path: (*name).to_owned(),
            bytes: Some(1_500_000_000),
        });
        Contents {
            files: files.collect(),
        }
    }

    fn asked(names: &[&str], reference: &str, kind: Option<FileKind>) -> Result<Choice, String> {
        let Ok(Reference::Hub(wanted)) = Reference::parse(reference) else {
            panic!("{reference} is no repository");
        };
        choose(&contents(names), &wanted, kind).map_err(|error| error.to_string())
    }

    const QUANTS: [&str; 3] = ["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q2_K.gguf"];
    const PLAIN: [&str; 3] = ["config.json", "model.safetensors", "pytorch_model.bin"];

    #[test]
    fn the_model_meant_is_chosen() {
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
                asked(names, reference, kind),
                Ok(expected),
                "{reference} {kind:?}"
            );
        }
    }

    #[test]
    fn what_cannot_be_chosen_is_refused_with_what_could() {
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
            let message = asked(names, reference, kind).unwrap_err();
            for part in said {
                assert!(
                    message.contains(part),
                    "{reference}: {part} not in {message}"
                );
            }
        }
    }

    #[test]
    fn only_what_is_read_is_taken() {
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
