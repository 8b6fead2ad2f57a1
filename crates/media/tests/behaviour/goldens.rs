//! Against the processors of transformers 5.22.2: pixel values, grids, and expanded prompts of
//! all families in `crates/testkit/goldens-vision`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use loquat_media::resample::Arithmetic;
use loquat_media::{
    Expansion, FrameSource, Layout, Limits, MediaPixels, Piece, Processor, ProcessorFiles, Raster,
    SampleOptions, Video,
};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

const FAMILIES: usize = 19;

/// Pillow's own pixels are normalised in double precision by some classes.
const WORST_PILLOW: f64 = 0.01;

struct Golden {
    name: String,
    images: PathBuf,
    facts: Value,
    tensors: Vec<u8>,
    files: ProcessorFiles,
    vocabulary: Vocabulary,
}

impl Golden {
    fn read(folder: &Path) -> Self {
        let json = |name: &str| -> Value {
            serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap()
        };
        Self {
            name: folder.file_name().unwrap().to_str().unwrap().to_string(),
            images: folder.join("../images"),
            facts: json("golden.json"),
            tensors: std::fs::read(folder.join("golden.safetensors")).unwrap(),
            files: ProcessorFiles::read(folder, &Limits::default()).unwrap(),
            vocabulary: Vocabulary::read(&json("tokenizer.json")),
        }
    }

    fn all() -> Vec<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/goldens-vision");
        let entries = std::fs::read_dir(folder).unwrap();
        let folders = entries.map(|entry| entry.unwrap().path());
        let mut goldens: Vec<Golden> = folders
            .filter(|folder| folder.join("golden.json").is_file())
            .map(|folder| Golden::read(&folder))
            .collect();
        goldens.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(goldens.len(), FAMILIES);
        goldens
    }

    /// Cases whose reference ran, and the rasters of each.
    fn cases(&self) -> Vec<(&str, Vec<Raster>)> {
        let cases = self.facts["images"].as_object().unwrap();
        let raster = |name: &Value| {
            let bytes = std::fs::read(self.images.join(name.as_str().unwrap())).unwrap();
            Raster::decode(&bytes, &Limits::default()).unwrap()
        };
        cases
            .iter()
            .map(|(case, names)| {
                let names = names.as_array().unwrap();
                (case.as_str(), names.iter().map(raster).collect())
            })
            .collect()
    }

    fn tensor(&self, name: &str) -> Option<(Vec<usize>, Vec<f32>)> {
        let tensors = SafeTensors::deserialize(&self.tensors).unwrap();
        let tensor = tensors.tensor(name).ok()?;
        let values = tensor.data().chunks_exact(4).map(|bytes| {
            let bytes: [u8; 4] = bytes.try_into().unwrap();
            match tensor.dtype() {
                Dtype::F32 => f32::from_le_bytes(bytes),
                _ => i32::from_le_bytes(bytes) as f32,
            }
        });
        Some((tensor.shape().to_vec(), values.collect()))
    }
}

/// Bytes and special tokens, as the goldens' tokenizers have them.
struct Vocabulary {
    bytes: Vec<u32>,
    specials: Vec<(String, u32)>,
}

impl Vocabulary {
    fn read(tokenizer: &Value) -> Self {
        let vocabulary = tokenizer["model"]["vocab"].as_object().unwrap();
        // GPT-2's characters for bytes: printable bytes are their own characters.
        let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let mut other = 256;
        let bytes = (0..=255u8).map(|byte| {
            let character = if printable(byte) {
                char::from(byte)
            } else {
                other += 1;
                char::from_u32(other - 1).unwrap()
            };
            vocabulary[&character.to_string()].as_u64().unwrap() as u32
        });
        let bytes = bytes.collect();
        let specials = tokenizer["added_tokens"].as_array().unwrap();
        let specials = specials.iter().map(|token| {
            let text = token["content"].as_str().unwrap().to_string();
            (text, token["id"].as_u64().unwrap() as u32)
        });
        Self {
            bytes,
            specials: specials.collect(),
        }
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut rest = text;
        while let Some(&byte) = rest.as_bytes().first() {
            let special = self
                .specials
                .iter()
                .find(|(text, _)| rest.starts_with(text));
            if let Some((text, id)) = special {
                ids.push(*id);
                rest = &rest[text.len()..];
            } else {
                ids.push(self.bytes[byte as usize]);
                // The prompts are ASCII.
                rest = &rest[1..];
            }
        }
        ids
    }

    fn encode_pieces(&self, pieces: &[Piece]) -> Vec<u32> {
        let encode = |piece: &Piece| match piece {
            Piece::Text(text) | Piece::Token(text) => self.encode(text),
            Piece::Features { token, count } => self.encode(token).repeat(*count),
        };
        pieces.iter().flat_map(encode).collect()
    }
}

/// Largest and mean difference in levels of 255. What the reference pads must be zero.
fn difference(
    media: &[MediaPixels],
    std: [f64; 3],
    (shape, reference): &(Vec<usize>, Vec<f32>),
) -> (f64, f64) {
    let (mut worst, mut total, mut count) = (0.0_f64, 0.0, 0);
    let mut compare = |ours: f32, reference: f32, channel: usize| {
        let levels = f64::from((ours - reference).abs()) * 255.0 * std[channel];
        worst = worst.max(levels);
        total += levels;
        count += 1;
    };
    let views = media
        .iter()
        .flat_map(|media| media.views.iter().map(move |view| (media, view)));
    let mut at = 0;
    for (media, view) in views {
        let ours = media.view_values(view);
        match media.layout {
            Layout::Planar => {
                let [height, width] = [shape[shape.len() - 2], shape[shape.len() - 1]];
                let (rows, columns) = (view.height as usize, view.width as usize);
                for channel in 0..3 {
                    for row in 0..height {
                        for column in 0..width {
                            let ours = if row < rows && column < columns {
                                ours[(channel * rows + row) * columns + column]
                            } else {
                                0.0
                            };
                            compare(ours, reference[at], channel);
                            at += 1;
                        }
                    }
                }
            }
            Layout::Patches { .. } => {
                let padded = shape[shape.len() - 2] * shape[shape.len() - 1];
                for index in 0..padded {
                    let ours = ours.get(index).copied().unwrap_or_default();
                    compare(ours, reference[at + index], index % 3);
                }
                at += padded;
            }
            Layout::MergedPatches {
                patch, temporal, ..
            } => {
                let each = (patch * patch * temporal) as usize;
                let ours = media.repeated_values();
                for (index, &value) in ours.iter().enumerate() {
                    compare(value, reference[at + index], index / each % 3);
                }
                at += ours.len();
            }
        }
    }
    assert_eq!(at, reference.len(), "{shape:?}");
    (worst, total / f64::from(count))
}

fn std(processor: &Processor) -> [f64; 3] {
    let values = &processor.image.pixels.values;
    values.normalize.map_or([1.0; 3], |(_, std)| std)
}

fn preprocess(processor: &Processor, rasters: &[Raster]) -> Vec<MediaPixels> {
    let limits = Limits::default();
    let image = |raster| processor.image(raster, rasters.len(), &limits).unwrap();
    rasters.iter().map(image).collect()
}

fn video(golden: &Golden, frames: Vec<Raster>) -> Video {
    let fps = golden.facts["video"].get("fps").and_then(Value::as_f64);
    Video::from_frames(frames, fps).unwrap()
}

#[test]
fn image_values_agree() {
    for golden in Golden::all() {
        let processor = Processor::from_files(&golden.files).unwrap();
        for (case, rasters) in golden.cases() {
            if !matches!(case, "one" | "two") {
                continue;
            }
            let media = preprocess(&processor, &rasters);
            let reference = golden.tensor(&format!("{case}.pixel_values")).unwrap();
            let (worst, mean) = difference(&media, std(&processor), &reference);
            eprintln!("{} {case}: worst {worst:.5}, mean {mean:.7}", golden.name);
            // The arithmetic is that of torchvision, so the values are equal.
            assert_eq!(worst, 0.0, "{} {case}", golden.name);
        }
    }
}

#[test]
fn pillow_values_agree() {
    for golden in Golden::all() {
        let Some(reference) = golden.tensor("one.pixel_values_pil") else {
            continue;
        };
        let processor = Processor::from_files(&golden.files).unwrap();
        let processor = processor.with_arithmetic(Arithmetic::Pillow);
        for (case, rasters) in golden.cases() {
            if case != "one" {
                continue;
            }
            let media = preprocess(&processor, &rasters);
            let (worst, mean) = difference(&media, std(&processor), &reference);
            eprintln!("{} {case}: worst {worst:.5}, mean {mean:.7}", golden.name);
            assert!(
                worst <= WORST_PILLOW,
                "{} {case}: {worst} {mean}",
                golden.name
            );
        }
    }
}

#[test]
fn video_values_agree() {
    let mut videos = 0;
    for golden in Golden::all() {
        let processor = Processor::from_files(&golden.files).unwrap();
        for (case, frames) in golden.cases() {
            if !case.starts_with("video") {
                continue;
            }
            videos += 1;
            let limits = Limits::default();
            let video = video(&golden, frames);
            let media = [processor.video(&video, &limits).unwrap()];
            let reference = golden
                .tensor(&format!("{case}.pixel_values_videos"))
                .or_else(|| golden.tensor(&format!("{case}.pixel_values")))
                .unwrap();
            let (worst, mean) = difference(&media, std(&processor), &reference);
            eprintln!("{} {case}: worst {worst:.5}, mean {mean:.7}", golden.name);
            // The arithmetic is that of torchvision, so the values are equal.
            assert_eq!(worst, 0.0, "{} {case}", golden.name);
            if let Some((_, grid)) = golden.tensor(&format!("{case}.video_grid_thw")) {
                assert_eq!(media[0].views[0].grid.map(|side| side as f32)[..], grid);
            }
            if let Some((_, seconds)) = golden.tensor(&format!("{case}.second_per_grid_ts")) {
                assert_eq!(media[0].seconds_per_grid, Some(f64::from(seconds[0])));
            }
            if let Some((_, frames)) = golden.tensor(&format!("{case}.num_frames_per_video")) {
                assert_eq!(media[0].views.len() as f32, frames[0]);
            }
        }
    }
    assert_eq!(videos, 13);
}

#[test]
fn grids_and_sizes_agree() {
    for golden in Golden::all() {
        let processor = Processor::from_files(&golden.files).unwrap();
        for (case, rasters) in golden.cases() {
            if !matches!(case, "one" | "two") {
                continue;
            }
            let media = preprocess(&processor, &rasters);
            let views = || media.iter().flat_map(|media| &media.views);
            let expect = |tensor: &str, ours: Vec<f32>| {
                if let Some((shape, reference)) = golden.tensor(&format!("{case}.{tensor}")) {
                    assert_eq!(ours, reference, "{} {case}.{tensor} {shape:?}", golden.name);
                }
            };
            let numbers = |numbers: &[u32]| numbers.iter().map(|&n| n as f32).collect::<Vec<_>>();
            let grids = views().flat_map(|view| numbers(&view.grid)).collect();
            expect("image_grid_thw", grids);
            let shapes = views().flat_map(|view| numbers(&view.grid[1..])).collect();
            expect("spatial_shapes", shapes);
            let sizes = media.iter().flat_map(|media| {
                if golden.name == "llava_onevision" {
                    numbers(&[media.height, media.width])
                } else {
                    numbers(&[media.views[0].height, media.views[0].width])
                }
            });
            expect("image_sizes", sizes.collect());
            if let Some((shape, positions)) = golden.tensor(&format!("{case}.image_position_ids")) {
                for (view, reference) in views().zip(positions.chunks_exact(shape[1] * 2)) {
                    let mut ours: Vec<f32> = view
                        .patch_positions()
                        .flat_map(|position| numbers(&position))
                        .collect();
                    ours.resize(reference.len(), -1.0);
                    assert_eq!(ours, reference, "{} {case}", golden.name);
                }
            }
            if let Some((shape, mask)) = golden.tensor(&format!("{case}.pixel_attention_mask")) {
                let each = shape.iter().rev().take(shape.len() - 1).product::<usize>();
                let each = if shape.len() == 4 {
                    each / shape[1]
                } else {
                    each
                };
                for (view, reference) in views().zip(mask.chunks_exact(each)) {
                    let ours = match media[0].layout {
                        Layout::Planar => view.width as usize * view.height as usize,
                        _ => view.grid.iter().product::<u32>() as usize,
                    };
                    let valid = reference.iter().filter(|&&valid| valid == 1.0).count();
                    assert_eq!(ours, valid, "{} {case}", golden.name);
                }
            }
        }
    }
}

#[test]
fn expanded_prompts_agree() {
    for golden in Golden::all() {
        let processor = Processor::from_files(&golden.files).unwrap();
        let placeholders: Vec<f32> = golden.facts["placeholder_ids"]
            .as_array()
            .unwrap()
            .iter()
            .map(|id| id.as_f64().unwrap() as f32)
            .collect();
        for (case, rasters) in golden.cases() {
            let prompt = golden.facts["prompts"][case].as_str().unwrap();
            let (_, reference) = golden.tensor(&format!("{case}.input_ids")).unwrap();
            let limits = Limits::default();
            let (images, videos): (Vec<MediaPixels>, Vec<MediaPixels>) =
                if case.starts_with("video") {
                    let video = video(&golden, rasters);
                    let metadata = &video.metadata;
                    let plan = processor
                        .plan_video(metadata, &video.indices, &limits)
                        .unwrap();
                    let media = processor.video(&video, &limits).unwrap();
                    assert_eq!(plan.expansion, media.expansion);
                    assert_eq!(
                        (plan.values, plan.views),
                        (media.values.len(), media.views.len())
                    );
                    (Vec::new(), vec![media])
                } else {
                    let media = preprocess(&processor, &rasters);
                    for (raster, media) in rasters.iter().zip(&media) {
                        let (width, height) = (raster.width(), raster.height());
                        let plan = processor.plan_image(width, height, rasters.len(), &limits);
                        let plan = plan.unwrap();
                        assert_eq!(plan.expansion, media.expansion);
                        assert_eq!(
                            (plan.values, plan.views),
                            (media.values.len(), media.views.len())
                        );
                    }
                    (media, Vec::new())
                };
            let expansions = |media: &[MediaPixels]| -> Vec<Expansion> {
                media.iter().map(|media| media.expansion.clone()).collect()
            };
            let (image_texts, video_texts) = (expansions(&images), expansions(&videos));
            let pieces = processor
                .expand_prompt(
                    prompt,
                    &image_texts.iter().collect::<Vec<_>>(),
                    &video_texts.iter().collect::<Vec<_>>(),
                )
                .unwrap();
            let ids = golden.vocabulary.encode_pieces(&pieces);
            let ids: Vec<f32> = ids.into_iter().map(|id| id as f32).collect();
            assert_eq!(ids, reference, "{} {case}: {pieces:?}", golden.name);
            let positions: usize = images
                .iter()
                .chain(&videos)
                .map(MediaPixels::positions)
                .sum();
            let expected = reference
                .iter()
                .filter(|id| placeholders.contains(id))
                .count();
            assert_eq!(positions, expected, "{} {case}", golden.name);
        }
    }
}

#[test]
fn equal_inputs_have_equal_hashes() {
    for golden in Golden::all() {
        let processor = Processor::from_files(&golden.files).unwrap();
        let mut seen: BTreeMap<[u8; 32], String> = BTreeMap::new();
        for (case, rasters) in golden.cases() {
            if case.starts_with("video") {
                continue;
            }
            for (index, media) in preprocess(&processor, &rasters).iter().enumerate() {
                let again = preprocess(&processor, &rasters).remove(index);
                assert_eq!(media.hash, again.hash);
                let other = seen.insert(media.hash, format!("{case} {index}"));
                assert_eq!(other, None, "{} {case} {index}", golden.name);
            }
        }
    }
}

#[test]
fn missing_and_surplus_markers_are_refused() {
    for golden in Golden::all() {
        let processor = Processor::from_files(&golden.files).unwrap();
        let prompt = golden.facts["prompts"]["one"].as_str().unwrap();
        let one = Expansion::default();
        assert!(processor.expand_prompt(prompt, &[], &[]).is_err());
        assert!(processor.expand_prompt(prompt, &[&one], &[]).is_ok());
        assert!(processor.expand_prompt(prompt, &[&one, &one], &[]).is_err());
        assert!(processor.expand_prompt("text", &[&one], &[]).is_err());
        assert!(processor.expand_prompt("text", &[], &[&one]).is_err());
    }
}

#[test]
fn sampled_animation_becomes_patches() {
    // The golden images are still: an animation of one frame.
    for golden in Golden::all() {
        let processor = Processor::from_files(&golden.files).unwrap();
        let limits = Limits::default();
        let bytes = std::fs::read(golden.images.join("img0_48x48.png")).unwrap();
        let source = FrameSource::open(&bytes, &limits).unwrap();
        let media = processor.video_file(&source, &SampleOptions::default(), &limits);
        assert_eq!(media.is_ok(), processor.video.is_some(), "{}", golden.name);
    }
}
