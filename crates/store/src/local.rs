//! Identifies local models by config, then by header, then by name.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use loquat_weights::{MAX_VOCABULARY_BYTES, read_side_file, require_regular_file};

use crate::contents::{CONFIG, Contents, INDEX, NamedFile, SINGLE, gguf_split, quant_in_name};
use crate::error::{ModelCandidate, ModelCandidates};
use crate::reference::path_reference;
use crate::{FileKind, StoreError};

/// A model at a local path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalModel {
    /// The path that `weights` opens.
    pub path: PathBuf,
    /// The format of its files.
    pub kind: FileKind,
}

/// Identifies the model at an existing path. `kind` selects one of several.
pub(crate) fn inspect(path: &Path, kind: Option<FileKind>) -> Result<LocalModel, StoreError> {
    let found = if path.is_dir() {
        in_directory(path, kind)?
    } else {
        LocalModel {
            path: path.to_owned(),
            kind: file_kind(path)?,
        }
    };
    match kind {
        Some(requested) if requested != found.kind => Err(StoreError::KindMismatch {
            reference: path_reference(path),
            requested,
            found: found.kind,
        }),
        _ => Ok(found),
    }
}

/// The files at the top level of a folder.
pub(crate) fn contents(directory: &Path) -> Result<Contents, StoreError> {
    let failed = |cause| StoreError::Unreadable {
        path: directory.to_owned(),
        cause,
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // Follows the links of a hub snapshot; skips dangling ones.
        let Ok(metadata) = fs::metadata(entry.path()) else {
            continue;
        };
        if metadata.is_file() {
            files.push(NamedFile {
                path: entry.file_name().to_string_lossy().into_owned(),
                bytes: Some(metadata.len()),
            });
        }
    }
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(Contents { files })
}

/// The file with this name in [`contents`], which replace what is not valid UTF-8.
fn file_named(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    if path.exists() {
        return path;
    }
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut alike = entries.filter(|entry| entry.file_name().to_string_lossy() == name);
    alike.next().map_or(path, |entry| entry.path())
}

fn in_directory(directory: &Path, kind: Option<FileKind>) -> Result<LocalModel, StoreError> {
    let contents = contents(directory)?;
    let mut found = Vec::new();
    if contents.has_safetensors() {
        let kind = config_kind(directory)?;
        found.push(LocalModel {
            path: directory.to_owned(),
            kind,
        });
    }
    let ggufs = contents.ggufs();
    let ggufs = ggufs.iter().map(|gguf| LocalModel {
        path: file_named(directory, &gguf.path),
        kind: FileKind::Gguf,
    });
    found.extend(ggufs);
    let matches_kind = |model: &&LocalModel| kind.is_none_or(|kind| kind == model.kind);
    let matching: Vec<&LocalModel> = found.iter().filter(matches_kind).collect();
    match (matching.as_slice(), found.as_slice()) {
        ([model], _) if model.kind == FileKind::Gguf => inspect(&model.path, kind),
        ([model], _) => {
            check_shards(directory, &contents)?;
            Ok((*model).clone())
        }
        ([], []) => Err(StoreError::NotAModel {
            path: directory.to_owned(),
            why: contents.unusable_reason(),
        }),
        // The caller reports the mismatch.
        ([], [other, ..]) => Ok(other.clone()),
        _ => Err(ambiguous(directory, &matching)),
    }
}

fn ambiguous(directory: &Path, models: &[&LocalModel]) -> StoreError {
    let ggufs = models.iter().filter(|model| model.kind == FileKind::Gguf);
    let one_gguf = ggufs.count() == 1;
    let candidates = models.iter().map(|model| ModelCandidate {
        kind: model.kind,
        quant: quant_in_name(&model.path.to_string_lossy())
            .filter(|_| model.kind == FileKind::Gguf),
        bytes: fs::metadata(&model.path)
            .ok()
            .filter(fs::Metadata::is_file)
            .map(|metadata| metadata.len()),
        selector: match (model.kind, one_gguf) {
            (FileKind::Gguf, false) => path_reference(&model.path),
            (kind, _) => format!("{} {}", path_reference(directory), kind.flag()),
        },
    });
    StoreError::Ambiguous {
        reference: path_reference(directory),
        candidates: ModelCandidates(candidates.collect()),
    }
}

/// Fails if files that the index names are missing.
fn check_shards(directory: &Path, contents: &Contents) -> Result<(), StoreError> {
    if contents.has(SINGLE) {
        return Ok(());
    }
    let path = directory.join(INDEX);
    let shards = index_shards(&path)?;
    let missing: Vec<&str> = shards
        .iter()
        .map(String::as_str)
        .filter(|shard| !directory.join(shard).is_file())
        .collect();
    match missing.as_slice() {
        [] => Ok(()),
        [first, ..] => Err(StoreError::NotAModel {
            path: directory.to_owned(),
            why: format!(
                "{} of the {} files that {INDEX} names are missing, such as {first}; add them",
                missing.len(),
                shards.len()
            ),
        }),
    }
}

/// The files that an index names, without duplicates.
pub(crate) fn index_shards(index: &Path) -> Result<Vec<String>, StoreError> {
    let json = read_json(index)?;
    let map = json.get("weight_map").and_then(|map| map.as_object());
    let Some(map) = map else {
        return Err(StoreError::NotAModel {
            path: index.to_owned(),
            why: "it has no weight_map".to_owned(),
        });
    };
    let mut shards: Vec<String> = map
        .values()
        .filter_map(|shard| shard.as_str().map(str::to_owned))
        .collect();
    shards.sort();
    shards.dedup();
    Ok(shards)
}

fn read_json(path: &Path) -> Result<serde_json::Value, StoreError> {
    let text =
        read_side_file(path, MAX_VOCABULARY_BYTES).map_err(|cause| StoreError::Unreadable {
            path: path.to_owned(),
            cause,
        })?;
    serde_json::from_slice(&text).map_err(|error| StoreError::NotAModel {
        path: path.to_owned(),
        why: format!("it is not valid JSON: {error}"),
    })
}

/// MLX writes a `quantization` table, or a `quantization_config` without the `quant_method` that
/// other tools add.
pub(crate) fn config_kind(directory: &Path) -> Result<FileKind, StoreError> {
    let config = read_json(&directory.join(CONFIG))?;
    let is_table = |key: &str| config.get(key).filter(|value| value.is_object());
    let by_mlx = is_table("quantization").is_some()
        || is_table("quantization_config").is_some_and(|table| table.get("quant_method").is_none());
    Ok(if by_mlx {
        FileKind::Mlx
    } else {
        FileKind::Safetensors
    })
}

/// The quantization by the name MLX repositories use (`4bit`), or the dtype.
pub(crate) fn config_quant(directory: &Path) -> Option<String> {
    let config = read_json(&directory.join(CONFIG)).ok()?;
    let table = config
        .get("quantization")
        .or_else(|| config.get("quantization_config"));
    if let Some(table) = table {
        let mode = table.get("mode").and_then(|mode| mode.as_str());
        if let Some(mode) = mode.filter(|mode| *mode != "affine") {
            return Some(mode.to_owned());
        }
        if let Some(bits) = table.get("bits").and_then(|bits| bits.as_u64()) {
            return Some(format!("{bits}bit"));
        }
        let method = table.get("quant_method").and_then(|method| method.as_str());
        return method.map(str::to_owned);
    }
    let dtype = config.get("dtype").or_else(|| config.get("torch_dtype"))?;
    Some(match dtype.as_str()? {
        "bfloat16" => "bf16".to_owned(),
        "float16" => "f16".to_owned(),
        "float32" => "f32".to_owned(),
        other => other.to_owned(),
    })
}

const HEAD: usize = 64;

fn file_kind(path: &Path) -> Result<FileKind, StoreError> {
    let not = |why: String| StoreError::NotAModel {
        path: path.to_owned(),
        why,
    };
    let (head, length) = read_head(path).map_err(|cause| StoreError::Unreadable {
        path: path.to_owned(),
        cause,
    })?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if head.starts_with(b"GGUF") {
        return match gguf_split(&name) {
            Some((_, of)) if of > 1 => Err(StoreError::SplitGguf {
                name: path.display().to_string(),
                of,
            }),
            _ => Ok(FileKind::Gguf),
        };
    }
    if name.ends_with(".safetensors") || name.ends_with(".index.json") {
        if name.starts_with("adapter_model") {
            return Err(not(
                "it is a LoRA adapter; run its base model with --adapter".to_owned(),
            ));
        }
        if name.ends_with(".safetensors") && !is_safetensors(&head, length) {
            return Err(not(mismatch_reason(&head, length, "safetensors")));
        }
        let directory = path.parent().unwrap_or(Path::new("."));
        if !directory.join(CONFIG).is_file() {
            return Err(not(format!("{CONFIG} is missing in the same folder")));
        }
        return config_kind(directory);
    }
    if name.ends_with(".gguf") {
        return Err(not(mismatch_reason(&head, length, "GGUF")));
    }
    if is_safetensors(&head, length) {
        return Err(not(
            "its header is safetensors; rename it to end in .safetensors".to_owned(),
        ));
    }
    Err(not(
        "use a directory, a .gguf file, a .safetensors file or a .safetensors.index.json file"
            .to_owned(),
    ))
}

fn read_head(path: &Path) -> io::Result<(Vec<u8>, u64)> {
    require_regular_file(path)?;
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut head = Vec::new();
    file.take(HEAD as u64).read_to_end(&mut head)?;
    Ok((head, length))
}

/// Whether the head is a plausible header length followed by JSON.
fn is_safetensors(head: &[u8], length: u64) -> bool {
    match head.split_first_chunk::<8>() {
        Some((header, rest)) => {
            u64::from_le_bytes(*header) <= length.saturating_sub(8) && rest.starts_with(b"{")
        }
        None => false,
    }
}

/// Explains why a file's content does not match its name.
fn mismatch_reason(head: &[u8], length: u64, named: &str) -> String {
    if length == 0 {
        return format!("it is named {named} but is empty; download it again");
    }
    if head.starts_with(b"version https://git-lfs") {
        return "it is a Git LFS pointer, not the file itself; run `git lfs pull`".to_owned();
    }
    let looks_like = match head.first() {
        Some(b'<') => " and looks like a web page",
        _ => "",
    };
    format!("it is named {named} but has another header{looks_like}; download it again")
}
