//! Every golden's config, as transformers 5 writes it and as older checkpoints have it.

mod goldens;

use loquat_spec::{Config, ModelSpec, SpecError, families};

fn read(text: &str) -> Result<ModelSpec, SpecError> {
    families::from_config(&Config::parse(text, "config.json")?).map(|described| described.spec)
}

#[test]
fn both_styles_of_a_config_are_one_spec() {
    let folders = goldens::folders();
    assert!(folders.len() >= 8, "{folders:?}");
    for folder in folders {
        let [newer, older] = ["config.json", "config.hub_style.json"]
            .map(|style| read(&goldens::config(&folder, style)));
        let name = folder.display();
        match newer {
            // Goldens go further than the families do; what is missing is said by name.
            Err(SpecError::UnknownFamily { .. }) => eprintln!("{name}: not a family yet"),
            newer => assert_eq!(newer.unwrap(), older.unwrap(), "{name}"),
        }
    }
}
