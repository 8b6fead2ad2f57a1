//! Writes the fuzz targets' seed files: `cargo run -p loquat-weights --example
//! seeds -- fuzz/seeds`.

#[path = "../tests/behaviour/common.rs"]
mod common;

use std::error::Error;
use std::path::Path;

use loquat_weights::gguf::{Metadata, Value, write_gguf};
use loquat_weights::safetensors::write_safetensors;
use loquat_weights::{Blob, Dtype, RawTensor};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: seeds FOLDER")?;
    let folder = Path::new(&folder);
    let write = |name: &str, bytes: Vec<u8>| {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
        std::fs::write(path, bytes)
    };

    let (metadata, tensors) = common::gguf_content();
    let mut version_2 = write_gguf(&Metadata::default(), &tensors[..2])?;
    version_2[4] = 2;
    write("gguf/every-type", write_gguf(&metadata, &tensors)?)?;
    write("gguf/metadata-only", write_gguf(&metadata, &[])?)?;
    write("gguf/version-2", version_2)?;
    write("gguf/empty", write_gguf(&Metadata::default(), &[])?)?;
    for architecture in ["llama", "gemma3", "qwen3"] {
        let name = format!("gguf/model-{architecture}");
        write(&name, smallest_model(architecture)?)?;
    }

    let tensors = common::safetensors_content();
    let with_metadata = br#"{"__metadata__":{"format":"mlx"}}"#;
    let mut metadata_only = (with_metadata.len() as u64).to_le_bytes().to_vec();
    metadata_only.extend(with_metadata);
    write("safetensors/every-type", write_safetensors(&tensors)?)?;
    write("safetensors/two-tensors", write_safetensors(&tensors[..2])?)?;
    write("safetensors/metadata-only", metadata_only)?;
    write("safetensors/empty", write_safetensors(&[])?)?;

    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit");
    for config in [
        "goldens/llama/config.json",
        "goldens/llama/config.hub_style.json",
        "goldens/gemma3_text/config.json",
        "goldens/smollm3/config.hub_style.json",
        "goldens-mlx/qwen3__affine4_g32/config.json",
    ] {
        let name = config.replace('/', "-");
        write(
            &format!("config/{name}"),
            std::fs::read(goldens.join(config))?,
        )?;
    }
    Ok(())
}

/// One layer, with all sizes as small as possible.
fn smallest_model(architecture: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let sizes = [
        ("context_length", 8),
        ("embedding_length", 2),
        ("block_count", 1),
        ("feed_forward_length", 2),
        ("attention.head_count", 1),
        ("attention.sliding_window", 4),
    ];
    let mut metadata = Metadata::default();
    metadata.insert("general.architecture", Value::String(architecture.into()));
    for (key, size) in sizes {
        metadata.insert(format!("{architecture}.{key}"), Value::U32(size));
    }
    let eps = format!("{architecture}.attention.layer_norm_rms_epsilon");
    metadata.insert(eps, Value::F32(1e-5));
    let vectors = ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"];
    let matrices = [
        "token_embd",
        "blk.0.attn_q",
        "blk.0.attn_k",
        "blk.0.attn_v",
        "blk.0.attn_output",
        "blk.0.ffn_gate",
        "blk.0.ffn_up",
        "blk.0.ffn_down",
    ];
    let shaped = |name: &&str, shape: Vec<usize>| {
        let bytes = vec![0; shape.iter().product::<usize>() * 4];
        let name = format!("{name}.weight");
        RawTensor::new(name, Dtype::F32, shape, Blob::from_vec(bytes))
    };
    let vectors = vectors.iter().map(|name| shaped(name, vec![2]));
    let tensors = vectors.chain(matrices.iter().map(|name| shaped(name, vec![2, 2])));
    Ok(write_gguf(
        &metadata,
        &tensors.collect::<Result<Vec<_>, _>>()?,
    )?)
}
