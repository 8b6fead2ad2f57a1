//! Flags of `loquat convert`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use loquat::AdapterFile;
use loquat_convert::Target;
use loquat_weights::Dtype;

use super::ModelArgs;
use super::values::{adapter, reference};

#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// A model, as for `run`: bf16, f16 or f32, as safetensors or GGUF.
    #[arg(required_unless_present_any = ["gguf_file", "mlx_file"])]
    #[arg(value_parser = reference())]
    pub model: Option<String>,
    #[command(flatten)]
    pub source: ModelArgs,
    /// The target format: a directory for mlx-lm, a file for llama.cpp, or a hub-style directory.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub to: TargetFormat,
    /// The type of the matrices. mlx: q2 q3 q4 q5 q6 q8 mxfp4 mxfp8 nvfp4; gguf: q4_0 q4_1 q5_0
    /// q5_1 q8_0 q4_k q4_k_m q5_k q5_k_m q6_k; any: bf16 f16 f32 [default: q4 for mlx, q4_k_m for
    /// gguf, unchanged for safetensors].
    #[arg(long, value_name = "TYPE")]
    pub quant: Option<String>,
    /// Values per scale in mlx's q types: 32, 64 or 128 [default: 64].
    #[arg(long, value_name = "VALUES", requires = "quant")]
    pub group_size: Option<usize>,
    /// Merge an adapter into the model: a directory of peft or mlx-lm, a GGUF adapter, or
    /// owner/name[@REVISION] on the hub. @SCALE, a number, multiplies its strength. Repeat the flag
    /// to merge several.
    #[arg(long = "adapter", value_name = "PATH_OR_REF[@SCALE]", value_parser = adapter())]
    pub adapters: Vec<AdapterFile>,
    /// The output path; written only when the conversion is complete.
    #[arg(long, short, value_name = "PATH")]
    pub output: PathBuf,
    /// The type of tensors that are not quantized [default: the model's].
    #[arg(long, value_enum, value_name = "TYPE")]
    pub dtype: Option<FloatType>,
    /// Allow quantizing a model that is already quantized, which adds to its error.
    #[arg(long)]
    pub requantize: bool,
    /// Overwrite an existing model.
    #[arg(long)]
    pub force: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum TargetFormat {
    Mlx,
    Gguf,
    Safetensors,
}

impl From<TargetFormat> for Target {
    fn from(to: TargetFormat) -> Self {
        match to {
            TargetFormat::Mlx => Target::Mlx,
            TargetFormat::Gguf => Target::Gguf,
            TargetFormat::Safetensors => Target::Safetensors,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum FloatType {
    Bf16,
    F16,
    F32,
}

impl From<FloatType> for Dtype {
    fn from(float: FloatType) -> Self {
        match float {
            FloatType::Bf16 => Dtype::BF16,
            FloatType::F16 => Dtype::F16,
            FloatType::F32 => Dtype::F32,
        }
    }
}
