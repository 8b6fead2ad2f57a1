//! Processor files: older spellings, and what is refused by name.

use loquat_media::{MediaError, Processor, ProcessorFiles};
use serde_json::{Map, Value, json};

fn object(value: Value) -> Option<Map<String, Value>> {
    value.as_object().cloned()
}

fn processor(preprocessor: Value, processor: Value) -> Result<Processor, MediaError> {
    Processor::from_files(&ProcessorFiles {
        preprocessor: object(preprocessor),
        processor: object(processor),
        ..ProcessorFiles::default()
    })
}

#[test]
fn older_spellings_mean_the_same() {
    let llava = json!({"processor_class": "LlavaProcessor", "patch_size": 14});
    let clip = |fields: Value| {
        let mut config = json!({"do_resize": true, "resample": 3});
        let fields = object(fields).unwrap();
        config.as_object_mut().unwrap().extend(fields);
        processor(config, llava.clone()).unwrap().image
    };
    let new = clip(json!({
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 336},
        "crop_size": {"height": 336, "width": 336},
    }));
    for older in [
        json!({"feature_extractor_type": "CLIPFeatureExtractor", "size": 336, "crop_size": 336}),
        json!({"image_processor_type": "CLIPImageProcessorFast", "size": {"shortest_edge": 336},
            "crop_size": [336, 336], "_valid_processor_keys": ["images"], "auto_map": {}}),
    ] {
        assert_eq!(clip(older), new);
    }
    let qwen = |fields: Value| {
        let class = json!({"processor_class": "Qwen2_5_VLProcessor"});
        processor(fields, class).unwrap().image
    };
    let new = qwen(json!({
        "image_processor_type": "Qwen2VLImageProcessor",
        "size": {"shortest_edge": 3136, "longest_edge": 12_845_056},
    }));
    let older = json!({
        "image_processor_type": "Qwen2_5_VLImageProcessorFast",
        "min_pixels": 3136,
        "max_pixels": 12_845_056,
        "size": {"shortest_edge": 1, "longest_edge": 2},
    });
    assert_eq!(qwen(older), new);
}

#[test]
fn video_rules_come_from_the_image_file_if_they_have_none() {
    let files = json!({
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2VLProcessor",
        "min_pixels": 3136,
        "max_pixels": 12_845_056,
        "patch_size": 14,
    });
    let video = processor(files, json!({})).unwrap().video.unwrap();
    assert_eq!(video.class, "Qwen2VLVideoProcessor");
}

#[test]
fn what_is_not_implemented_is_refused_by_name() {
    let gemma = json!({"processor_class": "Gemma3Processor"});
    let cases = [
        (
            json!({"image_processor_type": "DonutImageProcessor"}),
            "`DonutImageProcessor`",
        ),
        (json!({}), "`image_processor_type` is missing"),
        (
            json!({"image_processor_type": "Gemma3ImageProcessor", "do_sharpen": true}),
            "`do_sharpen` = true is not implemented",
        ),
        (
            json!({"image_processor_type": "Gemma3ImageProcessor", "resample": 9}),
            "`resample` is 9",
        ),
        (
            json!({"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 0, "width": 1}}),
            "`size.height` is 0",
        ),
        (
            json!({"image_processor_type": "Gemma3ImageProcessor", "image_std": [0.5, 0, 0.5]}),
            "`image_std`",
        ),
        (
            json!({"image_processor_type": "Gemma3ImageProcessor", "image_mean": [0.5]}),
            "`image_mean`",
        ),
        (
            json!({"image_processor_type": "Gemma4ImageProcessor", "do_resize": false}),
            "`do_resize` = false is not implemented",
        ),
    ];
    for (config, expected) in cases {
        let error = processor(config, gemma.clone()).unwrap_err().to_string();
        assert!(
            error.contains(expected),
            "{error} does not contain {expected}"
        );
    }
    let siglip = json!({"image_processor_type": "SiglipImageProcessor"});
    let error = processor(siglip.clone(), json!({"processor_class": "Blip2Processor"}));
    assert_eq!(
        error.unwrap_err().to_string(),
        "the processor class `Blip2Processor` is not implemented"
    );
    let error = processor(siglip, json!({})).unwrap_err();
    assert!(
        error.to_string().contains("`processor_class` is missing"),
        "{error}"
    );
}

#[test]
fn flags_with_no_effect_are_accepted() {
    let config = json!({
        "image_processor_type": "Gemma3ImageProcessor",
        "do_pan_and_scan": true,
        "do_sharpen": false,
        "do_blur": null,
        "image_seq_length": 256,
    });
    assert!(processor(config, json!({})).is_ok());
}
