//! Any bytes are an error, or an image that can be preprocessed and frames that can be sampled.

#![no_main]

use libfuzzer_sys::fuzz_target;
use loquat_media::decode;
use loquat_media::{ImageFormat, Limits, Processor, ProcessorFiles, Raster, probe};
use serde_json::json;

/// Small limits keep the inputs per second high; they are checked in the same places.
fn limits() -> Limits {
    Limits {
        pixels: 1 << 20,
        decoded_bytes: 8 << 20,
        scanned_pixels: 2 << 20,
        ..Limits::default()
    }
}

fn processor() -> Processor {
    let object = |value: serde_json::Value| value.as_object().cloned();
    let files = ProcessorFiles {
        preprocessor: object(json!({
            "image_processor_type": "SmolVLMImageProcessor",
            "size": {"longest_edge": 64},
            "max_image_size": {"longest_edge": 32},
        })),
        processor: object(json!({"processor_class": "SmolVLMProcessor"})),
        ..ProcessorFiles::default()
    };
    Processor::from_files(&files).expect("the files are valid")
}

fuzz_target!(|bytes: &[u8]| {
    let limits = limits();
    if ImageFormat::detect(bytes).is_err() {
        return;
    }
    let info = probe(bytes, &limits);
    if let Ok(raster) = Raster::decode(bytes, &limits) {
        let info = info.expect("what is decoded has a header");
        assert_eq!((info.width, info.height), (raster.width(), raster.height()));
        let _ = processor().image(&raster, 1, &limits);
    }
    if let Ok(animation) = decode::scan(bytes, &limits) {
        let numbers: Vec<(usize, usize)> = (0..animation.frames.min(4)).map(|n| (n, 1)).collect();
        let mut size = |raster: Raster, _| {
            assert_eq!(
                (raster.width(), raster.height()),
                (animation.width, animation.height)
            );
        };
        let _ = decode::frames(bytes, &numbers, &limits, &mut size);
    }
});
