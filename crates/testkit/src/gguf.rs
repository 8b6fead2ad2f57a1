//! Golden checkpoints as GGUF files in the layout of llama.cpp's converter: its names and keys,
//! its order of query and key rows, its norms and rope divisors.
//!
//! Names do not come from `loquat_spec`, so that tests find a wrong table there.

use std::f64::consts::TAU;

use loquat_weights::gguf::{Metadata, Value, write_gguf};
use loquat_weights::{Blob, Dtype, RawTensor, decode, safetensors};
use serde_json::Value as Json;

use crate::goldens;

/// Goldens that can be written as GGUF. `goldens-gguf` has files from the real converter; these are
/// for tests that need other encodings or damaged files.
pub const FAMILIES: &[&str] = &["gemma3_text", "llama", "qwen2"];

/// Whether llama.cpp rotates adjacent values together where transformers rotates a head's halves,
/// so that its converter reorders the rows of queries and keys.
pub fn is_interleaved(family: &str) -> bool {
    family == "llama"
}

/// How a file stores its matrices; vectors are `F32`, as the converter writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matrices {
    /// In the golden's type.
    Golden,
    Q8_0,
    /// The values that `Q8_0` would hold, as `F32`.
    Q8_0Values,
}

/// A golden checkpoint as a whole GGUF file.
pub fn from_golden(family: &str) -> Vec<u8> {
    from_golden_as(family, Matrices::Golden)
}

pub fn from_golden_as(family: &str, matrices: Matrices) -> Vec<u8> {
    let folder = goldens::family(family);
    let text = std::fs::read_to_string(folder.join("config.json"));
    let text = text.unwrap_or_else(|error| panic!("golden {family}: {error}"));
    let config: Json = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("golden {family}: config.json: {error}"));
    let tensors = safetensors::open(&folder.join("model.safetensors"))
        .unwrap_or_else(|error| panic!("golden {family}: {error}"));
    let golden = Golden { config };
    let mut converted: Vec<RawTensor> = tensors
        .iter()
        .map(|tensor| golden.tensor(tensor, matrices))
        .collect();
    converted.extend(golden.rope_factors());
    write_gguf(&golden.metadata(), &converted)
        .unwrap_or_else(|error| panic!("golden {family}: {error}"))
}

struct Golden {
    config: Json,
}

/// The converter's names for modules of a layer; Gemma's norms differ.
const MODULES: &[(&str, &str)] = &[
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("input_layernorm", "attn_norm"),
];
const PLAIN_NORMS: &[(&str, &str)] = &[("post_attention_layernorm", "ffn_norm")];
const GEMMA_NORMS: &[(&str, &str)] = &[
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

impl Golden {
    fn architecture(&self) -> &'static str {
        match self.config["model_type"].as_str() {
            Some("llama") => "llama",
            Some("qwen2") => "qwen2",
            Some("gemma3_text") => "gemma3",
            other => panic!("no GGUF architecture for {other:?}"),
        }
    }

    fn count(&self, field: &str) -> usize {
        let number = self.config[field].as_u64();
        number.unwrap_or_else(|| panic!("golden config: `{field}`")) as usize
    }

    /// Rope of the layers without a window.
    fn rope(&self) -> &Json {
        match &self.config["rope_parameters"]["full_attention"] {
            Json::Null => &self.config["rope_parameters"],
            nested => nested,
        }
    }

    fn metadata(&self) -> Metadata {
        let architecture = self.architecture();
        let mut metadata = Metadata::default();
        metadata.insert(
            "general.architecture",
            Value::String(architecture.to_owned()),
        );
        let count = |field: &str| Value::U32(self.count(field) as u32);
        let float = |value: &Json| match value.as_f64() {
            Some(value) => Value::F32(value as f32),
            None => panic!("golden config: {value} is not a number"),
        };
        let mut set = |key: &str, value| metadata.insert(format!("{architecture}.{key}"), value);
        set("context_length", count("max_position_embeddings"));
        set("embedding_length", count("hidden_size"));
        set("block_count", count("num_hidden_layers"));
        set("feed_forward_length", count("intermediate_size"));
        set("attention.head_count", count("num_attention_heads"));
        set("attention.head_count_kv", count("num_key_value_heads"));
        set("attention.key_length", count("head_dim"));
        set("attention.value_length", count("head_dim"));
        set(
            "attention.layer_norm_rms_epsilon",
            float(&self.config["rms_norm_eps"]),
        );
        set("rope.dimension_count", count("head_dim"));
        set("rope.freq_base", float(&self.rope()["rope_theta"]));
        if !self.config["sliding_window"].is_null() {
            set("attention.sliding_window", count("sliding_window"));
        }
        if architecture == "gemma3" {
            let local = &self.config["rope_parameters"]["sliding_attention"];
            set("rope.freq_base_swa", float(&local["rope_theta"]));
            set(
                "attention.sliding_window_pattern",
                count("sliding_window_pattern"),
            );
        }
        metadata
    }

    fn tensor(&self, tensor: &RawTensor, matrices: Matrices) -> RawTensor {
        let mut rows: Vec<Vec<f32>> = (0..tensor.rows()).map(|row| values(tensor, row)).collect();
        let name = self.name(&tensor.name);
        let heads = match name.rsplit('.').nth(1) {
            Some("attn_q") => Some(self.count("num_attention_heads")),
            Some("attn_k") => Some(self.count("num_key_value_heads")),
            _ => None,
        };
        let vector = tensor.shape.len() == 1;
        if let Some(heads) = heads
            && is_interleaved(self.architecture())
        {
            if vector {
                rows = vec![interleaved(&rows[0], heads)];
            } else {
                rows = interleaved(&rows, heads);
            }
        }
        if self.architecture() == "gemma3" && name.ends_with("norm.weight") {
            rows.iter_mut().flatten().for_each(|value| *value += 1.0);
        }
        let (dtype, bytes) = match matrices {
            _ if vector => (Dtype::F32, encode(&rows, f32_bytes)),
            Matrices::Golden => (Dtype::BF16, encode(&rows, bf16_bytes)),
            Matrices::Q8_0 => (Dtype::Q8_0, encode(&rows, q8_0_bytes)),
            Matrices::Q8_0Values => {
                let rounded: Vec<_> = rows.iter().map(|row| q8_0_values(row)).collect();
                (Dtype::F32, encode(&rounded, f32_bytes))
            }
        };
        RawTensor::new(name, dtype, tensor.shape.clone(), Blob::from_vec(bytes))
            .unwrap_or_else(|error| panic!("{error}"))
    }

    fn name(&self, name: &str) -> String {
        match name {
            "model.embed_tokens.weight" => return "token_embd.weight".into(),
            "model.norm.weight" => return "output_norm.weight".into(),
            "lm_head.weight" => return "output.weight".into(),
            _ => {}
        }
        let norms = match self.architecture() {
            "gemma3" => GEMMA_NORMS,
            _ => PLAIN_NORMS,
        };
        let renamed = || {
            let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
            let (module, ending) = rest.rsplit_once('.')?;
            let mut modules = MODULES.iter().chain(norms);
            let (_, gguf) = modules.find(|(hf_name, _)| *hf_name == module)?;
            Some(format!("blk.{layer}.{gguf}.{ending}"))
        };
        renamed().unwrap_or_else(|| panic!("no GGUF name for `{name}`"))
    }

    /// Llama 3's scaling, which GGUF stores as a divisor per frequency.
    fn rope_factors(&self) -> Option<RawTensor> {
        let rope = self.rope();
        if rope["rope_type"] != "llama3" {
            return None;
        }
        let number = |field: &str| rope[field].as_f64().unwrap_or(f64::NAN);
        let [theta, factor] = ["rope_theta", "factor"].map(number);
        let [low, high] = ["low_freq_factor", "high_freq_factor"].map(number);
        let context = number("original_max_position_embeddings");
        let dims = self.count("head_dim");
        let divisors: Vec<f32> = (0..dims)
            .step_by(2)
            .map(|i| {
                let wavelength = TAU * theta.powf(i as f64 / dims as f64);
                let divisor = if wavelength < context / high {
                    1.0
                } else if wavelength > context / low {
                    factor
                } else {
                    let smooth = (context / wavelength - low) / (high - low);
                    1.0 / ((1.0 - smooth) / factor + smooth)
                };
                divisor as f32
            })
            .collect();
        let bytes = Blob::from_vec(encode(&[divisors], f32_bytes));
        let tensor = RawTensor::new("rope_freqs.weight", Dtype::F32, vec![dims / 2], bytes);
        Some(tensor.unwrap_or_else(|error| panic!("{error}")))
    }
}

/// Rows of each head reordered so that the two that rotate together are adjacent.
pub fn interleaved<T: Clone>(rows: &[T], heads: usize) -> Vec<T> {
    let head = rows.len() / heads;
    (0..rows.len())
        .map(|to| {
            let (start, pair, half) = (to / head * head, to % head / 2, to % 2);
            rows[start + half * (head / 2) + pair].clone()
        })
        .collect()
}

fn values(tensor: &RawTensor, row: usize) -> Vec<f32> {
    let mut out = vec![0.0; tensor.cols()];
    decode::decode_row(tensor.dtype, tensor.row(row).unwrap_or_default(), &mut out)
        .unwrap_or_else(|error| panic!("`{}`: {error}", tensor.name));
    out
}

fn encode(rows: &[Vec<f32>], row: fn(&[f32]) -> Vec<u8>) -> Vec<u8> {
    rows.iter().flat_map(|values| row(values)).collect()
}

fn f32_bytes(row: &[f32]) -> Vec<u8> {
    row.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The golden's values, which need no rounding.
fn bf16_bytes(row: &[f32]) -> Vec<u8> {
    row.iter()
        .flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes())
        .collect()
}

const BLOCK: usize = 32;

/// One block's scale as a power of two, whose half-precision bits need no rounding, and codes.
fn q8_0_block(block: &[f32]) -> (i32, Vec<i8>) {
    let largest = block.iter().fold(0f32, |max, value| max.max(value.abs()));
    // The smallest exponent that brings the largest value within 127; half precision's normal
    // numbers begin at 2^-14.
    let exponent = ((largest / 127.0).log2().ceil() as i32).clamp(-14, 15);
    let scale = (exponent as f32).exp2();
    let codes = block
        .iter()
        .map(|value| (value / scale).round() as i8)
        .collect();
    (exponent, codes)
}

fn q8_0_bytes(row: &[f32]) -> Vec<u8> {
    row.chunks(BLOCK)
        .flat_map(|block| {
            let (exponent, codes) = q8_0_block(block);
            let half = ((exponent + 15) as u16) << 10;
            let codes = codes.into_iter().map(|code| code as u8);
            half.to_le_bytes().into_iter().chain(codes)
        })
        .collect()
}

fn q8_0_values(row: &[f32]) -> Vec<f32> {
    row.chunks(BLOCK)
        .flat_map(|block| {
            let (exponent, codes) = q8_0_block(block);
            let scale = (exponent as f32).exp2();
            codes.into_iter().map(move |code| scale * f32::from(code))
        })
        .collect()
}
