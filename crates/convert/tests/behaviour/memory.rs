//! Memory does not grow with the model: tensors are converted a block at a time.

use std::path::Path;

use loquat_convert::Target;
use loquat_spec::Config;
use loquat_weights::Checkpoint;
use loquat_weights::{Blob, Dtype, RawTensor, safetensors};

use crate::support::to;

const CONFIG: &str = r#"{
    "model_type": "llama", "vocab_size": 64, "hidden_size": 2048, "num_hidden_layers": 6,
    "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 2560,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": true
}"#;

/// A model of about 390 MB whose every tensor is the same few rows.
fn write(folder: &Path) -> u64 {
    let config = Config::parse(CONFIG, "config.json").unwrap();
    let described = loquat_spec::families::from_config(&config).unwrap();
    let pattern: Vec<u8> = (0..2048u32)
        .flat_map(|i| ((i % 97) as f32 - 48.0).to_bits().to_le_bytes()[2..].to_vec())
        .collect();
    let slots = described.namings[0].slots(&described.spec);
    let tensors: Vec<RawTensor> = slots
        .iter()
        .map(|slot| {
            let shape = match slot.kind.cols() {
                1 => vec![slot.kind.rows()],
                cols => vec![slot.kind.rows(), cols],
            };
            let len = shape.iter().product::<usize>() * 2;
            let data = pattern.iter().copied().cycle().take(len).collect();
            RawTensor::new(
                slot.names[0].clone(),
                Dtype::BF16,
                shape,
                Blob::from_vec(data),
            )
            .unwrap()
        })
        .collect();
    std::fs::write(folder.join("config.json"), CONFIG).unwrap();
    safetensors::save_safetensors(&folder.join("model.safetensors"), &tensors).unwrap();
    std::fs::metadata(folder.join("model.safetensors"))
        .unwrap()
        .len()
}

/// Peak memory of this process since the last reset, in bytes.
#[cfg(target_os = "linux")]
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    let kilobytes = line.split_whitespace().nth(1).unwrap();
    kilobytes.parse::<u64>().unwrap() * 1024
}

/// In its own process, so that other tests' memory is not counted.
#[test]
#[cfg(target_os = "linux")]
fn large_model_converts_in_little_memory() {
    const CHILD: &str = "LOQUAT_CONVERT_MEMORY";
    let name = "memory::large_model_converts_in_little_memory";
    if let Some(folder) = std::env::var_os(CHILD) {
        let source = Path::new(&folder);
        Checkpoint::open(source).unwrap();
        to(Target::Mlx, "q4", source).unwrap();
        to(Target::Gguf, "q4_0", source).unwrap();
        println!("peak {}", peak());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let size = write(folder.path());
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(CHILD, folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout).into_owned();
    assert!(child.status.success(), "{said}");
    let peak = said
        .split("peak ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next());
    let peak: u64 = peak.unwrap().parse().unwrap();
    assert!(size > 300 << 20, "{size}");
    assert!(peak < 100 << 20, "{peak} bytes for a model of {size}");
}
