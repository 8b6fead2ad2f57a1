use std::path::PathBuf;

use clap::{Args, ValueEnum};
use loquat_convert::Target;
use loquat_weights::Dtype;

use super::ModelArgs;

#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// A model, as for `run`: bf16, f16 or f32, as safetensors or GGUF.
    #[arg(required_unless_present_any = ["gguf_file", "mlx_file"])]
    pub model: Option<String>,
    #[command(flatten)]
    pub source: ModelArgs,
    /// What it becomes: a folder for mlx-lm, a file for llama.cpp, or a folder as on the hub.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub to: To,
    /// What its matrices become. mlx: q2 q3 q4 q5 q6 q8 mxfp4 mxfp8 nvfp4; gguf: q4_0 q4_1 q5_0
    /// q5_1 q8_0 q4_k q4_k_m q5_k q5_k_m q6_k; any: bf16 f16 f32. When left out: q4 for mlx,
    /// q4_k_m for gguf, and for safetensors what they are.
    #[arg(long, value_name = "TYPE")]
    pub quant: Option<String>,
    /// Values that share a scale in mlx's q types: 32, 64 or 128; 64 when left out.
    #[arg(long, value_name = "VALUES", requires = "quant")]
    pub group_size: Option<usize>,
    /// Where the result goes; nothing is there before it is whole.
    #[arg(long, short, value_name = "PATH")]
    pub output: PathBuf,
    /// What stays plain beside quantized matrices, in this type; the model's own when left out.
    #[arg(long, value_enum, value_name = "TYPE")]
    pub dtype: Option<Float>,
    /// Quantize a model that is quantized already, which adds a second error to its first.
    #[arg(long)]
    pub requantize: bool,
    /// Replace a model that is there already.
    #[arg(long)]
    pub force: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum To {
    Mlx,
    Gguf,
    Safetensors,
}

impl From<To> for Target {
    fn from(to: To) -> Self {
        match to {
            To::Mlx => Target::Mlx,
            To::Gguf => Target::Gguf,
            To::Safetensors => Target::Safetensors,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Float {
    Bf16,
    F16,
    F32,
}

impl From<Float> for Dtype {
    fn from(float: Float) -> Self {
        match float {
            Float::Bf16 => Dtype::BF16,
            Float::F16 => Dtype::F16,
            Float::F32 => Dtype::F32,
        }
    }
}
