//! Every golden's config in the style of transformers 5 and in the older style.

use crate::goldens;
use loquat_spec::{Config, ModelSpec, SpecError, families};

fn read(text: &str) -> Result<ModelSpec, SpecError> {
    families::from_config(&Config::parse(text, "config.json")?).map(|described| described.spec)
}

/// Goldens whose hand-written older style differs from the newer one.
const DIFFERENT_MODELS: &[&str] = &[
    // `sliding_window_size`, which leaves out the position itself, repeats `sliding_window`.
    "mimo_v2_flash",
];

#[test]
fn both_styles_of_a_config_are_one_spec() {
    let folders = goldens::folders();
    assert!(folders.len() >= 8, "{folders:?}");
    let mut wrong = Vec::new();
    for folder in folders {
        let [newer, older] = ["config.json", "config.hub_style.json"]
            .map(|style| read(&goldens::config(&folder, style)));
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        match (newer, older) {
            // Some shared goldens have families that are not supported yet.
            (Err(SpecError::UnknownFamily { .. }), _) => eprintln!("{name}: not a family yet"),
            _ if DIFFERENT_MODELS.contains(&name.as_str()) => {}
            (Ok(newer), Ok(older)) if newer == older => {}
            (newer, older) => wrong.push(format!("{name}:\n{newer:?}\n{older:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
