//! Mutated files in all formats: each is decoded and preprocessed, or refused, in bounded memory
//! and time. A program of its own, because it measures its peak memory.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use loquat_media::{
    FrameSource, Limits, Processor, ProcessorFiles, Raster, SampleOptions, Video, probe,
};
use serde_json::json;

const FILES: usize = 2_000;
const MOST_SECONDS: Duration = Duration::from_secs(5);
const MOST_MEGABYTES: u64 = 512;

/// A small generator, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        // Numerical Recipes' constants; the high bits are used.
        let next = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = next.wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % below.max(1)
    }
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let ending = path.extension().and_then(|ending| ending.to_str());
            matches!(ending, Some("png" | "jpg" | "webp" | "gif" | "bmp"))
        })
        .collect();
    paths.sort();
    let read = |path: std::path::PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        (name, std::fs::read(path).unwrap())
    };
    paths.into_iter().map(read).collect()
}

fn mutate(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.next(6) {
        let length = bytes.len();
        match random.next(9) {
            0 => bytes.truncate(random.next(length)),
            1 => {
                let at = random.next(length + 1);
                bytes.insert(at, random.next(256) as u8);
            }
            2 if length > 0 => {
                bytes.remove(random.next(length));
            }
            3 => {
                // A piece written twice.
                let at = random.next(length);
                let piece = bytes[at..(at + random.next(64)).min(length)].to_vec();
                bytes.splice(at..at, piece);
            }
            // Sizes and counts near the start are set to extremes.
            4 | 5 if length > 40 => {
                let at = random.next(40);
                let extreme = [0x00, 0x01, 0x3f, 0x7f, 0x80, 0xff][random.next(6)];
                bytes[at..at + 1 + random.next(4)].fill(extreme);
            }
            _ if length > 0 => bytes[random.next(length)] ^= 1 << random.next(8),
            _ => {}
        }
    }
    bytes
}

/// What PNG checks with sums is reached only if the sums are right.
fn repair_png(bytes: &mut [u8]) {
    let mut at = 8;
    while let Some(length) = bytes.get(at..at + 4) {
        let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
        let Some(body) = bytes.get(at + 4..at + 8 + length) else {
            return;
        };
        let crc = body.iter().fold(!0u32, |crc, &byte| {
            (0..8).fold(crc ^ u32::from(byte), |crc, _| {
                (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
            })
        });
        let end = at + 8 + length;
        if let Some(sum) = bytes.get_mut(end..end + 4) {
            sum.copy_from_slice(&(!crc).to_be_bytes());
        }
        at = end + 4;
    }
}

fn processors() -> Vec<Processor> {
    let files = |image: &str, class: &str| {
        let object = |value: serde_json::Value| value.as_object().cloned();
        Processor::from_files(&ProcessorFiles {
            preprocessor: object(json!({"image_processor_type": image})),
            processor: object(json!({"processor_class": class})),
            ..ProcessorFiles::default()
        })
        .unwrap()
    };
    vec![
        files("Gemma3ImageProcessor", "Gemma3Processor"),
        files("Gemma4ImageProcessor", "Gemma4Processor"),
        files("Qwen2VLImageProcessor", "Qwen3VLProcessor"),
        files("SmolVLMImageProcessor", "SmolVLMProcessor"),
        files("Llama4ImageProcessor", "Llama4Processor"),
        files("Lfm2VlImageProcessor", "Lfm2VlProcessor"),
        files("PixtralImageProcessor", "PixtralProcessor"),
    ]
}

/// Whether the file was usable.
fn drive(bytes: &[u8], processor: &Processor) -> bool {
    let limits = Limits::default();
    let info = probe(bytes, &limits);
    let raster = Raster::decode(bytes, &limits);
    if let (Ok(info), Ok(raster)) = (&info, &raster) {
        assert_eq!((info.width, info.height), (raster.width(), raster.height()));
    }
    let media = raster.as_ref().ok().map(|raster| {
        let media = processor.image(raster, 1, &limits);
        let plan = processor.plan_image(raster.width(), raster.height(), 1, &limits);
        match (media, plan) {
            (Ok(media), Ok(plan)) => {
                assert_eq!(media.expansion, plan.expansion);
                assert_eq!(media.values.len(), plan.values);
            }
            (Err(_), Err(_)) => {}
            (media, plan) => panic!("{:?} but {:?}", media.err(), plan.err()),
        }
    });
    // Unknown formats would start a program.
    if info.is_ok()
        && processor.video.is_some()
        && let Ok(source) = FrameSource::open(bytes, &limits)
    {
        let _ = processor.video_file(&source, &SampleOptions::default(), &limits);
    }
    media.is_some()
}

#[cfg(target_os = "linux")]
fn peak_megabytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kilobytes = line.unwrap().split_whitespace().nth(1).unwrap();
    kilobytes.parse::<u64>().unwrap() / 1024
}

#[cfg(not(target_os = "linux"))]
fn peak_megabytes() -> u64 {
    0
}

/// The tests of this program run one at a time, so that they can measure memory.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn mutated_files_are_bounded() {
    let _alone = alone();
    let seeds = seeds();
    let processors = processors();
    let mut random = Random(1);
    let (mut usable, mut slowest) = (0, (Duration::ZERO, String::new()));
    for number in 0..FILES {
        let (name, bytes) = &seeds[number % seeds.len()];
        let mut bytes = mutate(bytes, &mut random);
        if name.ends_with("png") && random.next(4) > 0 {
            repair_png(&mut bytes);
        }
        let processor = &processors[number % processors.len()];
        let start = Instant::now();
        usable += usize::from(drive(&bytes, processor));
        let elapsed = start.elapsed();
        if elapsed > slowest.0 {
            slowest = (elapsed, format!("{name} {number}"));
        }
    }
    let peak = peak_megabytes();
    eprintln!("{usable} of {FILES} usable; slowest {slowest:?}; peak {peak} MB");
    assert!(usable > FILES / 20 && usable < FILES * 9 / 10, "{usable}");
    assert!(slowest.0 <= MOST_SECONDS, "{slowest:?}");
    assert!(peak <= MOST_MEGABYTES, "{peak} MB");
}

#[test]
fn odd_shapes_are_preprocessed_or_refused() {
    let _alone = alone();
    let limits = Limits::default();
    for (width, height) in [
        (1, 1),
        (1, 16_384),
        (16_384, 1),
        (2, 500),
        (4_000, 20),
        (3, 3),
    ] {
        let rgb = vec![200; width as usize * height as usize * 3];
        let raster = Raster::from_rgb8(width, height, rgb, &limits).unwrap();
        for processor in processors() {
            let media = processor.image(&raster, 1, &limits);
            let plan = processor.plan_image(width, height, 1, &limits);
            assert_eq!(media.is_ok(), plan.is_ok(), "{width}x{height}");
            if let Ok(media) = media {
                assert!(media.positions() > 0);
                assert!(media.values.iter().all(|value| value.is_finite()));
            }
            if processor.video.is_some() {
                let frames = vec![raster.clone(); 3];
                let video = Video::from_frames(frames, Some(2.0)).unwrap();
                let _ = processor.video(&video, &limits);
            }
        }
    }
}

#[test]
fn largest_accepted_image_is_bounded() {
    let _alone = alone();
    let limits = Limits::default();
    let rgb = vec![90; 8192 * 6144 * 3];
    let raster = Raster::from_rgb8(8192, 6144, rgb, &limits).unwrap();
    for processor in processors() {
        let start = Instant::now();
        processor.image(&raster, 1, &limits).unwrap();
        assert!(start.elapsed() <= MOST_SECONDS);
    }
    assert!(peak_megabytes() <= MOST_MEGABYTES);
}
