//! Writes the fuzz targets' seed files: `cargo run -p loquat-weights --example
//! seeds -- fuzz/seeds`.

#[path = "../tests/common/mod.rs"]
mod common;

use std::error::Error;
use std::path::Path;

use loquat_weights::gguf::{Metadata, write_gguf};
use loquat_weights::safetensors::write_safetensors;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args()
        .nth(1)
        .ok_or("name the folder to write to")?;
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

    let tensors = common::safetensors_content();
    let with_metadata = br#"{"__metadata__":{"format":"mlx"}}"#;
    let mut metadata_only = (with_metadata.len() as u64).to_le_bytes().to_vec();
    metadata_only.extend(with_metadata);
    write("safetensors/every-type", write_safetensors(&tensors)?)?;
    write("safetensors/two-tensors", write_safetensors(&tensors[..2])?)?;
    write("safetensors/metadata-only", metadata_only)?;
    write("safetensors/empty", write_safetensors(&[])?)?;
    Ok(())
}
