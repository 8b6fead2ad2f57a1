//! The numbers of a model that decide whether it fits and how fast it runs.

use loquat::ModelFiles;
use loquat_bench::{Demand, ModelDemand, Workload};
use loquat_session::{Backend, KvGroup, KvGroups, Reach, SessionOptions};
use loquat_store::{CatalogEntry, FileKind, ModelForm, ModelKind};

use crate::error::CliError;

/// Memory and reads of one sequence of [`context`](ModelNumbers::context) tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelNumbers {
    /// A catalog name, or the file's name.
    pub name: String,
    /// The kind of files, if it is not the default.
    pub kind: Option<FileKind>,
    /// The kind of files and their quantization.
    pub files: String,
    pub is_instruct: bool,
    pub parameters: u64,
    /// Parameters used per token.
    pub active_parameters: u64,
    /// The weights are multiplied as int8.
    pub is_quantized: bool,
    /// The model's own limit.
    pub longest_context: u64,
    /// The context that the other numbers are for.
    pub context: u64,
    pub weight_bytes: u64,
    pub kv: KvNumbers,
    /// Everything except weights and KV.
    pub other_bytes: u64,
    /// Bytes of weights that a token reads.
    pub read_weight_bytes: f64,
    /// Bytes of KV that the last token of the context reads.
    pub read_kv_bytes: f64,
    /// Planned by the backend from the files, not estimated from the catalog.
    pub is_exact: bool,
}

/// What the KV of a sequence depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvNumbers {
    pub groups: KvGroups,
    /// Tokens of a page.
    pub granularity: usize,
    /// Tokens of the longest row, by which windows are longer.
    pub row_tokens: usize,
}

impl KvNumbers {
    /// Like the CPU backend with its default options.
    pub fn new(groups: KvGroups) -> Self {
        Self {
            groups,
            granularity: 32,
            row_tokens: SessionOptions::default().max_step_tokens,
        }
    }

    fn of_entry(entry: &CatalogEntry) -> Self {
        let bytes_per_token = entry.kv_bytes_per_token();
        let everywhere = entry.kv_bytes_per_token_everywhere();
        let group = |reach, bytes_per_token| KvGroup {
            reach,
            bytes_per_token,
        };
        Self::new(match entry.kv.window {
            None => KvGroups::uniform(bytes_per_token),
            Some(window) => {
                let windowed = bytes_per_token.saturating_sub(everywhere);
                let window = Reach::Window(window as usize);
                KvGroups::new(&[group(Reach::All, everywhere), group(window, windowed)])
            }
        })
    }

    pub fn bytes_per_token(&self) -> u64 {
        self.groups.bytes_per_token()
    }

    /// For a sequence of so many tokens.
    pub fn bytes(&self, tokens: u64) -> u64 {
        let tokens = usize::try_from(tokens).unwrap_or(usize::MAX);
        let (row, page) = (self.row_tokens, self.granularity);
        let worth = self.groups.sequence_tokens(tokens, row, page) as u64;
        worth.saturating_mul(self.bytes_per_token())
    }

    /// The longest sequence up to `longest` that fits.
    fn tokens_within(&self, bytes: u64, longest: u64) -> u64 {
        let Some(worth) = bytes.checked_div(self.bytes_per_token()) else {
            return longest;
        };
        let [worth, longest] = [worth, longest].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let (row, page) = (self.row_tokens, self.granularity);
        self.groups.longest_sequence(worth, row, page, longest) as u64
    }
}

/// Upper estimate of the CPU backend's buffers: measured 19 MB with SmolLM2-135M (97 MB of
/// weights), and less than 1/40 of the weights with a billion parameters and more.
const MIN_BUFFERS: u64 = 32 << 20;
const BUFFERS_SHARE: u64 = 40;

impl ModelNumbers {
    /// Estimates from a catalog entry.
    pub fn from_entry(entry: &CatalogEntry, form: &ModelForm, context: u64) -> Self {
        let weight_bytes = entry.size(form).bytes;
        let active_parameters = entry.active_parameters.unwrap_or(entry.parameters);
        let active = active_parameters as f64 / entry.parameters.max(1) as f64;
        Self {
            name: entry.to_string(),
            kind: (entry.usual_form().map(|usual| usual.kind) != Some(form.kind))
                .then_some(form.kind),
            files: format!("{} {}", form.kind, form.quant),
            is_instruct: entry.kind == ModelKind::Instruct,
            parameters: entry.parameters,
            active_parameters,
            is_quantized: form.bits_per_weight() < 16.0,
            longest_context: u64::from(entry.context),
            context,
            weight_bytes,
            kv: KvNumbers::of_entry(entry),
            other_bytes: MIN_BUFFERS.max(weight_bytes / BUFFERS_SHARE),
            read_weight_bytes: weight_bytes as f64 * active,
            read_kv_bytes: entry.kv_bytes(context) as f64,
            is_exact: false,
        }
    }

    /// Plans with `backend` for one sequence of `context` tokens.
    pub fn from_files(
        model: &ModelFiles,
        backend: &dyn Backend,
        context: usize,
    ) -> Result<Self, CliError> {
        let options = SessionOptions {
            context: Some(context),
            kv_tokens: Some(context),
            max_sequences: 1,
            ..SessionOptions::default()
        };
        let plan = backend.plan(&model.source, &options)?;
        let memory = &plan.memory;
        let kv = memory
            .kv_bytes_per_token
            .saturating_mul(memory.kv_capacity as u64);
        let demand = ModelDemand::new(&model.source.spec, &model.source.weights);
        let at = |depth| {
            demand.per_token(Workload::Decode {
                tokens: 0,
                depth,
                batch: 1,
            })
        };
        let Demand {
            read_bytes,
            multiply_adds,
        } = at(0);
        let matrices = model.source.weights.matrices();
        let bytes: u64 = matrices.map(|(_, matrix)| matrix.bytes()).sum();
        let parameters = model.parameters() as u64;
        Ok(Self {
            name: model.name.clone(),
            kind: None,
            files: model.checkpoint.format.name().to_owned(),
            is_instruct: true,
            parameters,
            active_parameters: multiply_adds as u64,
            is_quantized: bytes < parameters.saturating_mul(2),
            longest_context: model.source.spec.max_context as u64,
            context: context as u64,
            weight_bytes: memory.weight_bytes,
            kv: KvNumbers {
                groups: memory.kv_groups,
                granularity: memory.kv_granularity.max(1),
                row_tokens: memory.kv_row_tokens,
            },
            other_bytes: plan
                .resident_bytes
                .saturating_sub(memory.weight_bytes)
                .saturating_sub(kv),
            read_weight_bytes: read_bytes,
            read_kv_bytes: at(context).read_bytes - read_bytes,
            is_exact: true,
        })
    }

    /// The argument of `loquat run`.
    pub fn reference(&self) -> String {
        match self.kind {
            Some(kind) => format!("{} {}", self.name, kind.flag()),
            None => self.name.clone(),
        }
    }

    /// Total memory with a sequence of so many tokens.
    pub fn need(&self, context: u64) -> u64 {
        self.weight_bytes
            .saturating_add(self.other_bytes)
            .saturating_add(self.kv.bytes(context))
    }

    /// The longest context that fits into this much memory, up to the model's limit.
    pub fn context_within(&self, memory: u64) -> u64 {
        let left = memory.saturating_sub(self.need(0));
        if self.need(0) > memory {
            0
        } else {
            self.kv.tokens_within(left, self.longest_context)
        }
    }

    /// A rough measure of quality: the parameters; for a mixture of experts the geometric mean of
    /// all and active parameters, which is about the size of an equally good dense model.
    pub fn capability(&self) -> f64 {
        (self.parameters as f64 * self.active_parameters as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use loquat_store::Catalog;

    use super::*;

    const CATALOG: &str = r#"
[[model]]
name = "mixed"
tags = ["8b"]
family = "qwen3_moe"
parameters = 8_000_000_000
active_parameters = 2_000_000_000
context = 32768
licence = "MIT"
kind = "base"
kv = { layers = 10, heads = 2, width = 100, window = 1000, full_layers = 5 }

[[model.forms]]
kind = "gguf"
quant = "Q4_0"
file = "m.gguf"
bytes = 4_000_000_000
sources = [{ type = "hub", repo = "o/m" }]

[[model.forms]]
kind = "safetensors"
quant = "bf16"
sources = [{ type = "hub", repo = "o/m" }]
"#;

    #[test]
    fn catalog_entry_is_estimated() {
        let catalog = Catalog::parse("test", CATALOG).unwrap();
        let entry = &catalog.entries()[0];
        let [quantized, plain] =
            [0, 1].map(|at| ModelNumbers::from_entry(entry, &entry.forms[at], 8000));
        assert_eq!(quantized.reference(), "mixed:8b");
        assert_eq!(quantized.weight_bytes, 4_000_000_000);
        assert_eq!(quantized.read_weight_bytes, 1e9, "a quarter is active");
        // 10 layers × 2 heads × 100 numbers × 2 × 2 bytes; half of the layers see 1,000 tokens.
        assert_eq!(quantized.kv.bytes_per_token(), 8000);
        // Windows of 1,000 tokens and a row of 512, in pages of 32.
        assert_eq!(quantized.kv.bytes(8000), 4000 * (8000 + 49 * 32));
        assert_eq!(quantized.read_kv_bytes, 4000.0 * 9000.0);
        assert_eq!(
            quantized.need(1000),
            4_000_000_000 + 100_000_000 + 8000 * 1024
        );
        assert_eq!(quantized.capability(), 4e9);
        assert!(quantized.is_quantized && !quantized.is_instruct);
        assert_eq!(plain.name, "mixed:8b");
        assert_eq!(plain.reference(), "mixed:8b --safetensors");
        assert_eq!(plain.weight_bytes, 16_000_000_000);
        assert!(!plain.is_quantized);
    }

    #[test]
    fn memory_converts_to_context() {
        let catalog = Catalog::parse("test", CATALOG).unwrap();
        let entry = &catalog.entries()[0];
        let subject = ModelNumbers::from_entry(entry, &entry.forms[0], 8000);
        let bare = subject.need(0);
        for (memory, expected) in [
            (0, 0),
            (bare - 1, 0),
            (bare, 0),
            (bare + 8000 * 32 * 5 - 1, 128),
            (bare + 8000 * 32 * 5, 160),
            (bare * 2, 32768),
            (u64::MAX, 32768),
        ] {
            assert_eq!(subject.context_within(memory), expected, "{memory}");
        }
        // A model without attention has no KV.
        let recurrent = ModelNumbers {
            kv: KvNumbers::new(KvGroups::uniform(0)),
            ..subject
        };
        assert_eq!(recurrent.context_within(bare), 32768);
        assert_eq!(recurrent.context_within(bare - 1), 0);
    }
}
