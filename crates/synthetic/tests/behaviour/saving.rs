//! A saved model reads back unchanged.

use std::path::Path;

use loquat_synthetic::{Container, FORMATS, Format, Recipe, Shape};
use loquat_weights::{Checkpoint, Dtype, EncodedRow, Format as FileFormat, Matrix, Weights};

use crate::shapes::{QWEN3, every_family};

/// A row's bytes, part by part.
fn parts<'a>(row: EncodedRow<'a>) -> Vec<&'a [u8]> {
    match row {
        EncodedRow::Plain { bytes, .. } => vec![bytes],
        EncodedRow::Mlx {
            codes,
            scales: (scales, _),
            biases,
            ..
        } => vec![codes, scales, biases.map_or(&[], |(biases, _)| biases)],
        EncodedRow::Fp8 { codes, scales, .. } => vec![codes, scales.0],
    }
}

fn rows(matrix: &Matrix) -> impl Iterator<Item = Vec<&[u8]>> {
    (0..matrix.rows()).map(|row| parts(matrix.encoded_row(row).unwrap()))
}

#[track_caller]
fn assert_equal(made: &Weights, read: &Weights, what: &str) {
    let (made_matrices, read_matrices) = (made.matrices(), read.matrices());
    assert_eq!(made_matrices.count(), read_matrices.count(), "{what}");
    for ((role, one), (other_role, other)) in made.matrices().zip(read.matrices()) {
        assert_eq!((role, one.format()), (other_role, other.format()), "{what}");
        assert!(rows(one).eq(rows(other)), "{what}: {role}");
    }
    assert!(made.vectors().eq(read.vectors()), "{what}: vectors");
}

fn saved(recipe: Recipe, container: Container, folder: &Path) -> (Checkpoint, Checkpoint) {
    let path = match container {
        Container::Gguf => folder.join("model.gguf"),
        Container::Safetensors => folder.join("model"),
    };
    assert_eq!(Container::for_path(&path), container);
    let made = recipe.make(container, 3).unwrap();
    let work = tempfile::tempdir_in(folder).unwrap();
    made.save(&path, work.path()).unwrap();
    (made.checkpoint().unwrap(), Checkpoint::open(&path).unwrap())
}

fn round_trip(shape: &'static Shape, format: Format) {
    for container in format.containers() {
        let what = format!("{} {} in {}", shape.name, format.name(), container.name());
        let folder = tempfile::tempdir().unwrap();
        let (made, read) = saved(Recipe { shape, format }, *container, folder.path());
        assert_eq!(made.spec, read.spec, "{what}");
        assert_eq!(made.format, read.format, "{what}");
        let expected = match (container, format) {
            (Container::Gguf, _) => FileFormat::Gguf,
            (_, Format::Affine(_) | Format::Mxfp4) => FileFormat::Mlx,
            _ => FileFormat::Safetensors,
        };
        assert_eq!(read.format, expected, "{what}");
        let (made, read) = (made.bind().unwrap(), read.bind().unwrap());
        assert_equal(&made, &read, &what);
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 1, "{what}: only the model is left");
    }
}

#[test]
fn every_family_round_trips_in_every_format() {
    for shape in every_family() {
        for (_, format) in FORMATS {
            round_trip(shape, *format);
        }
    }
}

#[test]
fn both_containers_describe_one_model() {
    for shape in every_family() {
        let recipe = Recipe {
            shape,
            format: Format::Float(Dtype::BF16),
        };
        let [gguf, plain] = [Container::Gguf, Container::Safetensors].map(|container| {
            let checkpoint = recipe.make(container, 0).unwrap().checkpoint().unwrap();
            checkpoint.bind().unwrap();
            checkpoint.spec
        });
        assert_eq!(gguf.max_context, plain.max_context);
        assert_eq!(gguf.layers.len(), plain.layers.len());
        assert_eq!(gguf.head, plain.head);
        let reach = |spec: &loquat_spec::ModelSpec| -> Vec<_> {
            let attentions = spec.mixers().filter_map(|(_, mixer)| mixer.as_attention());
            attentions
                .map(|attention| (attention.reach, attention.scale))
                .collect()
        };
        assert_eq!(reach(&gguf), reach(&plain), "{}", shape.name);
    }
}

#[test]
fn partial_blocks_get_types_of_llama_cpp() {
    let format = Format::parse("q4_k_m").unwrap();
    let made = Recipe {
        shape: &QWEN3,
        format,
    };
    let made = made.make(Container::Gguf, 0).unwrap();
    let checkpoint = made.checkpoint().unwrap();
    let dtype = |name: &str| {
        let mut tensors = checkpoint.tensors().iter();
        tensors.find(|tensor| tensor.name == name).unwrap().dtype
    };
    for (name, expected) in [
        ("token_embd.weight", Dtype::Q5_0),
        ("output.weight", Dtype::Q8_0),
        ("blk.1.attn_output.weight", Dtype::Q4K),
        ("blk.0.ffn_down.weight", Dtype::Q4K),
        ("blk.2.ffn_down.weight", Dtype::Q6K),
        ("blk.2.attn_v.weight", Dtype::Q8_0),
        ("blk.2.attn_norm.weight", Dtype::F32),
    ] {
        assert_eq!(dtype(name), expected, "{name}");
    }
}

#[test]
fn wrong_container_and_existing_path_are_refused() {
    let recipe: Recipe = "llama-tiny:mlx4".parse().unwrap();
    let error = recipe.make(Container::Gguf, 0).err().unwrap().to_string();
    assert!(
        error.contains("a GGUF file does not support `mlx4`"),
        "{error}"
    );
    assert!(
        error.contains("q4_k_m") && !error.contains("mlx8"),
        "{error}"
    );

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, "mine").unwrap();
    let recipe: Recipe = "llama-tiny:q4_0".parse().unwrap();
    let made = recipe.make(Container::Gguf, 0).unwrap();
    let work = tempfile::tempdir().unwrap();
    let error = made.save(&path, work.path()).unwrap_err().to_string();
    assert!(error.contains("already exists"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");

    let missing = folder.path().join("missing").join("model.gguf");
    let error = made.save(&missing, work.path()).unwrap_err().to_string();
    assert!(error.contains("cannot write"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}
