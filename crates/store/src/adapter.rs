//! Adapters by reference: from a path, the hub's cache, or the hub.
//!
//! ```text
//! reference = path | url | owner "/" name ["@" revision] [":" (quant | file)]
//! ```
//!
//! A path that exists wins over a repository, as for models.

use loquat_weights::is_adapter;

use crate::contents::{Contents, gguf_split};
use crate::hub_model::{GgufPart, HubQuery, UpdateCheck};
use crate::reference::{path_reference, reference_path};
use crate::{
    FileKind, HubReference, ModelReference, NoProgress, Progress, RepoPart, ResolvedModel, Store,
    StoreError,
};

/// peft's weights.
const PEFT: &str = "adapter_model.safetensors";
/// mlx-lm's weights.
const MLX: &str = "adapters.safetensors";
/// The config of both.
const CONFIG: &str = "adapter_config.json";
const PICKLE: &str = "adapter_model.bin";

/// The files of an adapter in a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AdapterFiles {
    /// The weights, which `weights` opens.
    pub weights: String,
    /// Next to the weights; a GGUF has none.
    pub config: Option<String>,
    pub kind: FileKind,
}

impl AdapterFiles {
    /// Of weights at this path, if their config is there too.
    fn find(contents: &Contents, weights: &str) -> Option<Self> {
        if weights.ends_with(".gguf") {
            return contents.has(weights).then(|| Self {
                weights: weights.to_owned(),
                config: None,
                kind: FileKind::Gguf,
            });
        }
        let (folder, name) = split_folder(weights);
        let config = format!("{folder}{CONFIG}");
        (contents.has(weights) && contents.has(&config)).then(|| Self {
            weights: weights.to_owned(),
            config: Some(config),
            kind: if name == MLX {
                FileKind::Mlx
            } else {
                FileKind::Safetensors
            },
        })
    }

    /// The adapters of peft and mlx-lm in any folder, by their usual names.
    pub(crate) fn all(contents: &Contents) -> Vec<Self> {
        let paths = contents.files.iter().map(|file| file.path.as_str());
        let named = paths.filter(|path| [PEFT, MLX].contains(&split_folder(path).1));
        named
            .filter_map(|path| Self::find(contents, path))
            .collect()
    }

    pub(crate) fn paths(&self) -> Vec<&str> {
        let config = self.config.as_deref();
        config.into_iter().chain([self.weights.as_str()]).collect()
    }
}

/// Whether `owner/name` alone selects the adapter with these weights.
pub(crate) fn is_default(contents: &Contents, weights: &str) -> bool {
    let repository = HubReference {
        repo: String::new(),
        revision: None,
        part: None,
    };
    choose(contents, &repository).is_ok_and(|chosen| chosen.weights == weights)
}

/// The folder with its separator, and the file's name.
fn split_folder(path: &str) -> (&str, &str) {
    path.split_at(path.rfind('/').map_or(0, |at| at + 1))
}

/// Selects the adapter that `reference` describes: the one at the top of the repository, or the
/// file or quant that the reference names.
pub(crate) fn choose(
    contents: &Contents,
    reference: &HubReference,
) -> Result<AdapterFiles, StoreError> {
    let none = |why: String| StoreError::NotAnAdapterRepo {
        repo: reference.repo.clone(),
        why,
    };
    let of = |weights: &str| {
        let (folder, _) = split_folder(weights);
        AdapterFiles::find(contents, weights).ok_or_else(|| {
            none(if contents.has(weights) {
                format!("it has {weights} but no {folder}{CONFIG}")
            } else {
                format!("it has no {weights}")
            })
        })
    };
    let ggufs = contents.ggufs();
    let one_gguf = |paths: &[&str]| match paths {
        [] => Err(none(contents.no_adapter_reason())),
        [only] if gguf_split(only).is_some() => Err(none(format!("{only} is split"))),
        [only] => of(only),
        several => Err(StoreError::AmbiguousAdapter {
            repo: reference.repo.clone(),
            files: several.iter().map(|path| (*path).to_owned()).collect(),
        }),
    };
    match &reference.part {
        Some(RepoPart::File(path)) => of(path),
        Some(RepoPart::Quant(quant)) => {
            let fits = ggufs.iter().filter(|gguf| gguf.has_quant(quant));
            let paths: Vec<&str> = fits.map(|gguf| gguf.path.as_str()).collect();
            one_gguf(&paths)
        }
        None => match (contents.has(PEFT), contents.has(MLX)) {
            (true, true) => Err(StoreError::AmbiguousAdapter {
                repo: reference.repo.clone(),
                files: vec![PEFT.to_owned(), MLX.to_owned()],
            }),
            (true, false) => of(PEFT),
            (false, true) => of(MLX),
            (false, false) => {
                let paths: Vec<&str> = ggufs.iter().map(|gguf| gguf.path.as_str()).collect();
                one_gguf(&paths)
            }
        },
    }
}

impl Contents {
    fn no_adapter_reason(&self) -> String {
        if self.has(PICKLE) {
            return format!(
                "{PICKLE} is a pickle, which can run code; only {PEFT}, {MLX} and .gguf are read"
            );
        }
        let nested: Vec<_> = AdapterFiles::all(self);
        match nested.first() {
            Some(files) => format!(
                "its adapters are in folders; name one's weights, such as :{}",
                files.weights
            ),
            None if self.has_safetensors() => "it is a model, not an adapter".to_owned(),
            None => format!("it has neither {PEFT}, {MLX} nor a .gguf"),
        }
    }
}

impl Store {
    /// Returns the files of an adapter. Downloads and verifies what is missing, and records that
    /// the adapter was used.
    pub fn locate_adapter(
        &self,
        reference: &str,
        progress: &mut dyn Progress,
    ) -> Result<ResolvedModel, StoreError> {
        let path = reference_path(reference);
        if path.exists() {
            return Ok(ResolvedModel {
                name: path_reference(&path),
                path: path.into_owned(),
                mmproj: Default::default(),
            });
        }
        match ModelReference::parse(reference) {
            Ok(ModelReference::Hub(hub)) => {
                self.fetch_adapter(reference, hub, UpdateCheck::IfMissing, progress)
            }
            _ => Err(StoreError::NoSuchAdapter {
                reference: reference.to_owned(),
            }),
        }
    }

    /// Whether an adapter can be located without the network.
    pub fn has_adapter(&self, reference: &str) -> bool {
        if reference_path(reference).exists() {
            return true;
        }
        let Ok(ModelReference::Hub(hub)) = ModelReference::parse(reference) else {
            return false;
        };
        let query = adapter_query(reference, hub);
        let cached = self.cached_hub_model(&query, &mut NoProgress);
        matches!(cached, Ok(Some(_)))
    }

    pub(crate) fn fetch_adapter(
        &self,
        reference: &str,
        hub: HubReference,
        check: UpdateCheck,
        progress: &mut dyn Progress,
    ) -> Result<ResolvedModel, StoreError> {
        let repo = hub.repo.clone();
        let files = self.fetch_hub_model(&adapter_query(reference, hub), check, progress)?;
        if !is_adapter(&files.path) {
            return Err(StoreError::NotAnAdapterRepo {
                repo,
                why: "it is a model, not an adapter".to_owned(),
            });
        }
        if check == UpdateCheck::IfMissing {
            self.stamp_used(&files.key);
        }
        Ok(files.into())
    }
}

fn adapter_query(name: &str, reference: HubReference) -> HubQuery<'_> {
    HubQuery {
        name,
        reference,
        kind: None,
        sha256: None,
        part: GgufPart::Adapter,
        mmproj: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contents::NamedFile;

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
    fn adapter_is_chosen_or_reason_is_given() {
        let peft = [CONFIG, PEFT, "README.md"];
        let ggufs = ["a-f16.gguf", "a-q8_0.gguf"];
        let nested = [
            "step-5/adapter_config.json",
            "step-5/adapter_model.safetensors",
        ];
        for (names, reference, expected) in [
            (&peft[..], "o/r", Ok(PEFT)),
            (&peft, "o/r:adapter_model.safetensors", Ok(PEFT)),
            (&[CONFIG, MLX], "o/r", Ok(MLX)),
            (&["a.gguf"], "o/r", Ok("a.gguf")),
            (&ggufs, "o/r:q8_0", Ok("a-q8_0.gguf")),
            (&ggufs, "o/r:a-f16.gguf", Ok("a-f16.gguf")),
            (
                &nested,
                "o/r:step-5/adapter_model.safetensors",
                Ok("step-5/adapter_model.safetensors"),
            ),
            (
                &nested,
                "o/r",
                Err("such as :step-5/adapter_model.safetensors"),
            ),
            (&ggufs, "o/r", Err("o/r:a-f16.gguf")),
            (&[CONFIG, PEFT, MLX], "o/r", Err("o/r:adapters.safetensors")),
            (&[PEFT], "o/r", Err("no adapter_config.json")),
            (&[CONFIG, PICKLE], "o/r", Err("pickle")),
            (&["config.json", "model.safetensors"], "o/r", Err("a model")),
            (&["README.md"], "o/r", Err("neither")),
            (&peft, "o/r:b.gguf", Err("no b.gguf")),
        ] {
            let Ok(ModelReference::Hub(parsed)) = ModelReference::parse(reference) else {
                panic!("{reference} is not a repository");
            };
            let found = choose(&contents(names), &parsed).map_err(|error| error.to_string());
            match (found, expected) {
                (Ok(files), Ok(weights)) => assert_eq!(files.weights, weights),
                (Err(message), Err(said)) => assert!(message.contains(said), "{message}"),
                (found, expected) => panic!("{names:?} {reference}: {found:?}, {expected:?}"),
            }
        }
    }
}
