//! Checks every row of the tables of options.

use super::*;
use crate::config::options::{KEYS, MODELS, SECTIONS, Setting, model_variable};

#[test]
fn every_option_can_be_set_from_every_source() {
    for section in SECTIONS {
        for setting in section.settings {
            let default = setting.to_toml(&mut Config::default());
            assert_ne!(
                default.as_deref(),
                Some(setting.example),
                "{}",
                setting.name
            );
            // One TLS file needs the other.
            let other = match (section.name, setting.name) {
                ("tls", "certificate") => "private_key = \"k\"\n",
                ("tls", _) => "certificate = \"c\"\n",
                _ => "",
            };
            let file = format!(
                "[{}]\n{other}{} = {}",
                section.name, setting.name, setting.example
            );
            let mut config = read(&file);
            assert_eq!(
                setting.to_toml(&mut config).as_deref(),
                Some(setting.example),
                "{file}"
            );
            let set = (section.variable(setting), plain(setting.example));
            let file = format!("[{}]\n{other}", section.name);
            check_overrides(&file, setting, &set.0, &set.1, |config| config);
        }
    }
    let model = "[[models]]\nname = \"m\"\nsource = \"s\"\n";
    for setting in MODELS.iter().filter(|setting| !setting.required) {
        let file = format!("{model}{} = {}", setting.name, setting.example);
        let mut found = read(&file).models.remove(0);
        assert_eq!(
            setting.to_toml(&mut found).as_deref(),
            Some(setting.example),
            "{file}"
        );
        if let Some(variable) = model_variable(setting) {
            let text = plain(setting.example);
            check_overrides(model, setting, &variable, &text, |config| {
                &mut config.models[0]
            });
        }
    }
    for setting in KEYS.iter().filter(|setting| !setting.required) {
        let model = model.replace("\"m\"", "\"small\"");
        let key = format!("[[keys]]\nname = \"k\"\nhash = \"{HASH}\"\n");
        let file = format!("{model}{key}{} = {}", setting.name, setting.example);
        let mut found = read(&file).keys.remove(0);
        assert_eq!(
            setting.to_toml(&mut found).as_deref(),
            Some(setting.example),
            "{file}"
        );
    }
}

/// The variable and the flag, if any, set the option too.
fn check_overrides<T>(
    file: &str,
    setting: &Setting<T>,
    variable: &str,
    text: &str,
    holder: fn(&mut Config) -> &mut T,
) {
    let by_variable = Sources {
        environment: pairs(&[(variable, text)]),
        ..sources(file)
    };
    let by_flag = setting.flag.map(|flag| Sources {
        flags: pairs(&[(flag, text)]),
        ..sources(file)
    });
    for sources in [Some(by_variable), by_flag].into_iter().flatten() {
        let effective = sources.read();
        let mut config = effective
            .unwrap_or_else(|errors| panic!("{variable}: {errors}"))
            .config;
        let found = setting.to_toml(holder(&mut config));
        assert_eq!(found.as_deref(), Some(setting.example), "{variable}");
    }
}

/// A TOML value as the text of a variable.
fn plain(toml: &str) -> String {
    toml.trim_matches(['[', ']']).replace('"', "")
}

#[test]
fn variables_and_flags_are_unique() {
    let section_variables = SECTIONS
        .iter()
        .flat_map(|section| section.settings.iter().map(|s| section.variable(s)));
    let model_variables = MODELS.iter().filter_map(model_variable);
    let mut variables: Vec<_> = section_variables.chain(model_variables).collect();
    let mut names: Vec<_> = flags()
        .into_iter()
        .map(|flag| flag.name.to_owned())
        .collect();
    for all in [&mut variables, &mut names] {
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count, "{all:?}");
    }
}
