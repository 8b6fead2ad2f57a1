//! Reading the configuration: the file, over it the environment, over that the flags.

use std::path::PathBuf;

use toml::de::DeTable;

use super::check;
use super::given::Given;
use super::mistakes::{Mistake, Mistakes, Place};
use super::nearest::did_you_mean;
use super::options::{KEYS, MODELS, SECTIONS, Section, Setting, model_variable};
use super::said::{Entry, File, Origins, Said, Target};
use super::{Config, Key, Model};

/// Where a configuration comes from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// A file's path and its text.
    pub file: Option<(PathBuf, String)>,
    /// Variables and their values; others than ours do no harm.
    pub environment: Vec<(String, String)>,
    /// Flags, without their dashes, and their values.
    pub flags: Vec<(String, String)>,
    /// Models that were typed. One with the name of a model of the file is that one; the file's
    /// others are not served then.
    pub models: Vec<Model>,
    /// What to serve where nobody says.
    pub default_model: Option<Model>,
}

/// A configuration, and who said what of it.
#[derive(Debug)]
pub struct Settled {
    pub config: Config,
    pub origins: Origins,
}

impl Sources {
    /// The configuration in force, or all that is wrong with it.
    pub fn read(&self) -> Result<Settled, Mistakes> {
        let mut reading = Reading::default();
        if let Some((path, text)) = &self.file {
            reading.file(File { path, text });
        }
        reading.unknown_variables(&self.environment);
        reading.sections(self);
        let in_file: Vec<_> = reading
            .models
            .iter()
            .map(|m| m.value.name.clone())
            .collect();
        reading.models = self.chosen(std::mem::take(&mut reading.models));
        reading.all_models(self);
        reading.settled(&in_file)
    }

    fn chosen(&self, mut in_file: Vec<Entry<Model>>) -> Vec<Entry<Model>> {
        if self.models.is_empty() {
            if in_file.is_empty() {
                in_file.extend(self.default_model.clone().map(typed));
            }
            return in_file;
        }
        let choose = |wanted: &Model| {
            let place = in_file.iter().position(|entry| {
                let Model { name, aliases, .. } = &entry.value;
                *name == wanted.source || aliases.contains(&wanted.source)
            });
            match place {
                Some(place) => preloaded(in_file.swap_remove(place), &wanted.source),
                None => typed(wanted.clone()),
            }
        };
        self.models.iter().map(choose).collect()
    }

    /// What a variable and a flag say, in this order. A variable that is empty is not set.
    fn overrides(&self, variable: Option<&str>, flag: Option<&str>) -> Vec<(Place, &str)> {
        let variable = variable.and_then(|name| {
            let value = value_of(&self.environment, name).filter(|value| !value.is_empty());
            Some((Place::Variable(name.to_owned()), value?))
        });
        let flag = flag.and_then(|name| {
            let value = value_of(&self.flags, name);
            Some((Place::Flag(name.to_owned()), value?))
        });
        variable.into_iter().chain(flag).collect()
    }
}

fn value_of<'a>(given: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let mut given = given.iter().rev();
    let found = given.find(|(known, _)| known == name);
    found.map(|(_, value)| value.as_str())
}

/// A model that no file describes.
fn typed(model: Model) -> Entry<Model> {
    let place = Place::Argument(model.source.clone());
    let mut said = Said::default();
    for name in ["name", "source"] {
        said.push(name, place.clone());
    }
    let source = model.source.clone();
    let value = model;
    preloaded(Entry { value, place, said }, &source)
}

fn preloaded(mut entry: Entry<Model>, typed: &str) -> Entry<Model> {
    entry.value.preload = true;
    entry
        .said
        .push("preload", Place::Argument(typed.to_owned()));
    entry
}

/// What was read so far.
#[derive(Default)]
struct Reading {
    /// But for keys and models.
    config: Config,
    keys: Vec<Entry<Key>>,
    models: Vec<Entry<Model>>,
    origins: Origins,
    mistakes: Vec<Mistake>,
}

impl Reading {
    fn file(&mut self, file: File<'_>) {
        let (root, errors) = DeTable::parse_recoverable(file.text);
        for error in &errors {
            let place = file.place(error.span().unwrap_or_default());
            let message = error.message().to_owned();
            self.mistakes.push(Mistake { place, message });
        }
        // What does not parse is not worth a second complaint.
        if !errors.is_empty() {
            return;
        }
        for (name, value) in root.get_ref() {
            let given = Given::Toml(value);
            match name.get_ref().as_ref() {
                "keys" => {
                    let (keys, mistakes) = entries(file, "keys", given, KEYS, Key::blank);
                    self.keys = keys;
                    self.mistakes.extend(mistakes);
                }
                "models" => {
                    let (models, mistakes) = entries(file, "models", given, MODELS, Model::blank);
                    self.models = models;
                    self.mistakes.extend(mistakes);
                }
                section => {
                    let place = file.place(name.span());
                    self.section(file, section, place, given);
                }
            }
        }
    }

    fn section(&mut self, file: File<'_>, name: &str, place: Place, given: Given<'_>) {
        let known = SECTIONS.iter().find(|section| section.name == name);
        let message = match (known, given.table()) {
            (Some(section), Some(table)) => {
                let mistakes = self.target(section).fill(file, table, section.settings);
                return self.mistakes.extend(mistakes);
            }
            (Some(_), None) => format!("`{name}` must be a table: [{name}]"),
            (None, _) => {
                let known = SECTIONS.iter().map(|section| section.name);
                let guess = did_you_mean(name, known.chain(["keys", "models"]));
                format!("there is no section `{name}`{guess}")
            }
        };
        self.mistakes.push(Mistake { place, message });
    }

    fn target(&mut self, section: &Section) -> Target<'_, Config> {
        Target {
            section: section.name,
            holder: &mut self.config,
            said: self.origins.sections.entry(section.name).or_default(),
        }
    }

    /// Environment and flags over every section.
    fn sections(&mut self, sources: &Sources) {
        for section in SECTIONS {
            for setting in section.settings {
                let variable = section.variable(setting);
                for (place, text) in sources.overrides(Some(&variable), setting.flag) {
                    let mistakes = self.target(section).take(setting, text, &place);
                    self.mistakes.extend(mistakes);
                }
            }
        }
    }

    /// The same over every model.
    fn all_models(&mut self, sources: &Sources) {
        for setting in MODELS {
            let variable = model_variable(setting);
            for (place, text) in sources.overrides(variable.as_deref(), setting.flag) {
                self.every_model(setting, text, &place);
            }
        }
    }

    fn every_model(&mut self, setting: &Setting<Model>, text: &str, place: &Place) {
        // One complaint is enough, and there is one where there is no model too.
        let (mut probe, mut unheard) = (Model::blank(), Said::default());
        let mistakes = of_model(&mut probe, &mut unheard).take(setting, text, place);
        if mistakes.is_empty() {
            for Entry { value, said, .. } in &mut self.models {
                of_model(value, said).take(setting, text, place);
            }
        }
        self.mistakes.extend(mistakes);
    }

    /// A variable that would belong to a section but is no option's.
    fn unknown_variables(&mut self, environment: &[(String, String)]) {
        for (name, _) in environment {
            let belongs = |section: &&Section| {
                let beginning = format!("LOQUAT_{}_", section.name.to_uppercase());
                name.starts_with(&beginning)
            };
            let Some(section) = SECTIONS.iter().find(belongs) else {
                continue;
            };
            let known: Vec<_> = section
                .settings
                .iter()
                .map(|s| section.variable(s))
                .collect();
            if !known.contains(name) {
                let place = Place::Variable(name.clone());
                let known = known.join(", ");
                let message = format!(
                    "no option has this variable; those of [{}] are {known}",
                    section.name
                );
                self.mistakes.push(Mistake { place, message });
            }
        }
    }

    fn settled(mut self, in_file: &[String]) -> Result<Settled, Mistakes> {
        let found = check::all(
            &self.config,
            &self.origins,
            &self.keys,
            &self.models,
            in_file,
        );
        self.mistakes.extend(found);
        if !self.mistakes.is_empty() {
            return Err(Mistakes::sorted(self.mistakes));
        }
        let Self {
            mut config,
            keys,
            models,
            mut origins,
            ..
        } = self;
        (config.keys, origins.keys) = keys.into_iter().map(|key| (key.value, key.said)).unzip();
        (config.models, origins.models) = models
            .into_iter()
            .map(|model| (model.value, model.said))
            .unzip();
        Ok(Settled { config, origins })
    }
}

fn of_model<'a>(holder: &'a mut Model, said: &'a mut Said) -> Target<'a, Model> {
    let section = "models";
    Target {
        section,
        holder,
        said,
    }
}

/// The tables of `[[keys]]` or `[[models]]`.
fn entries<T>(
    file: File<'_>,
    section: &'static str,
    given: Given<'_>,
    settings: &[Setting<T>],
    blank: fn() -> T,
) -> (Vec<Entry<T>>, Vec<Mistake>) {
    let place = |given: Given<'_>| file.place(given.span().unwrap_or_default());
    let not_tables = |given| Mistake {
        place: place(given),
        message: format!("`{section}` must be tables: [[{section}]]"),
    };
    let Some(items) = given.list() else {
        return (Vec::new(), vec![not_tables(given)]);
    };
    let (mut entries, mut mistakes) = (Vec::new(), Vec::new());
    for item in items {
        let Some(table) = item.table() else {
            mistakes.push(not_tables(item));
            continue;
        };
        let (mut value, mut said) = (blank(), Said::default());
        let mut target = Target {
            section,
            holder: &mut value,
            said: &mut said,
        };
        mistakes.extend(target.fill(file, table, settings));
        let missing = settings.iter().filter(|setting| setting.required);
        let missing = missing.filter(|setting| !table.contains_key(setting.name));
        mistakes.extend(missing.map(|setting| Mistake {
            place: place(item),
            message: format!("[[{section}]] needs `{}`: {}", setting.name, setting.help),
        }));
        let place = place(item);
        entries.push(Entry { value, place, said });
    }
    (entries, mistakes)
}
