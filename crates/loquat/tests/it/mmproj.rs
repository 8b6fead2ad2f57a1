//! Preprocessing of GGUF models: the rules from an mmproj file's metadata are those of the hub's
//! processor files, as far as the metadata can say.

use std::path::{Path, PathBuf};

use loquat::ModelFiles;
use loquat_media::{Limits, Processor, ProcessorFiles};
use loquat_weights::Checkpoint;

fn kit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit")
}

fn processors(family: &str) -> (Processor, Processor) {
    let hub = ProcessorFiles::read(
        &kit().join("goldens-vision").join(family),
        &Limits::default(),
    );
    let hub = Processor::from_files(&hub.unwrap()).unwrap();
    let model = kit().join(format!("goldens-vision-gguf/{family}/{family}.gguf"));
    let files = ModelFiles::from_checkpoint(family.to_owned(), Checkpoint::open(&model).unwrap());
    let own = files.unwrap().processor().unwrap().unwrap();
    (in_single_precision(hub), in_single_precision(own))
}

/// The means and deviations of these files are in single precision, in which values are computed.
fn in_single_precision(mut processor: Processor) -> Processor {
    if let Some((mean, std)) = &mut processor.image.pixels.values.normalize {
        for value in mean.iter_mut().chain(std) {
            *value = f64::from(*value as f32);
        }
    }
    processor
}

#[test]
fn metadata_give_the_rules_of_processor_files() {
    for family in ["gemma3", "idefics3", "internvl", "llava"] {
        let (hub, own) = processors(family);
        assert_eq!(own.image, hub.image, "{family}");
        assert_eq!(own.prompt, hub.prompt, "{family}");
    }
}

/// These files do not say how far pictures are resized; the goldens' bounds differ from those
/// of the published models, which are taken instead.
#[test]
fn rules_without_metadata_are_the_published_ones() {
    for family in [
        "gemma4",
        "gemma4_e",
        "glm4v",
        "lfm2_vl",
        "mistral3",
        "pixtral",
        "qwen2_5_vl",
        "qwen2_vl",
        "qwen3_5",
        "qwen3_vl",
        "qwen3_vl_moe",
    ] {
        let (hub, own) = processors(family);
        assert_eq!(own.image.class, hub.image.class, "{family}");
        assert_eq!(own.image.pixels, hub.image.pixels, "{family}");
        assert_ne!(own.image.geometry, hub.image.geometry, "{family}");
        assert_eq!(own.prompt, hub.prompt, "{family}");
    }
}
