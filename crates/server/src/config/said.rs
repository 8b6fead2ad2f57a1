//! Who said what, and putting what was said into its place.

use std::collections::BTreeMap;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::given::{Given, Wrong};
use super::mistakes::{Mistake, Place, Spot};
use super::nearest::did_you_mean;
use super::options::Setting;

/// Options that somebody spoke of, each with where; of several that spoke, the last is heard.
#[derive(Debug, Clone, Default)]
pub struct Said(Vec<(&'static str, Place)>);

impl Said {
    pub fn push(&mut self, name: &'static str, place: Place) {
        self.0.push((name, place));
    }

    pub fn of(&self, name: &str) -> Option<&Place> {
        let mut said = self.0.iter().rev();
        said.find(|(known, _)| *known == name)
            .map(|(_, place)| place)
    }
}

/// Who said what of a whole configuration; where nobody did, the default is in force.
#[derive(Debug, Default)]
pub struct Origins {
    /// By section.
    pub sections: BTreeMap<&'static str, Said>,
    /// As the configuration's.
    pub keys: Vec<Said>,
    /// As the configuration's.
    pub models: Vec<Said>,
}

/// A key or a model, and who said what of it.
#[derive(Debug, Clone)]
pub struct Entry<T> {
    pub value: T,
    pub place: Place,
    pub said: Said,
}

impl<T> Entry<T> {
    /// Where one of its options was set, or else where it stands.
    pub fn place(&self, name: &str) -> Place {
        self.said.of(name).unwrap_or(&self.place).clone()
    }
}

/// A text with a name.
#[derive(Clone, Copy)]
pub struct File<'a> {
    pub path: &'a Path,
    pub text: &'a str,
}

impl File<'_> {
    pub fn place(&self, span: std::ops::Range<usize>) -> Place {
        Place::File(Spot::of(self.path.to_owned(), self.text, span))
    }
}

/// What is set: an option's full name, and its holder.
pub struct Target<'a, T> {
    /// The section, or `models`, or `keys`.
    pub section: &'a str,
    pub holder: &'a mut T,
    pub said: &'a mut Said,
}

impl<T> Target<'_, T> {
    /// Takes all that a table of a file says, and gives what is wrong with it.
    pub fn fill(
        &mut self,
        file: File<'_>,
        table: &DeTable<'_>,
        settings: &[Setting<T>],
    ) -> Vec<Mistake> {
        let entries = table.iter();
        entries
            .flat_map(|(name, value)| {
                self.entry(file, name.get_ref(), name.span(), value, settings)
            })
            .collect()
    }

    fn entry(
        &mut self,
        file: File<'_>,
        name: &str,
        span: std::ops::Range<usize>,
        value: &Spanned<DeValue<'_>>,
        settings: &[Setting<T>],
    ) -> Vec<Mistake> {
        let Some(setting) = settings.iter().find(|setting| setting.name == name) else {
            let guess = did_you_mean(name, settings.iter().map(|setting| setting.name));
            let message = format!("[{}] has no option `{name}`{guess}", self.section);
            let place = file.place(span);
            return vec![Mistake { place, message }];
        };
        self.set(setting, Given::Toml(value), |span| {
            file.place(span.unwrap_or_default())
        })
    }

    /// Takes the text of a variable or a flag.
    pub fn take(&mut self, setting: &Setting<T>, text: &str, place: &Place) -> Vec<Mistake> {
        self.set(setting, Given::Text(text), |_| place.clone())
    }

    fn set(
        &mut self,
        setting: &Setting<T>,
        given: Given<'_>,
        place: impl Fn(Option<std::ops::Range<usize>>) -> Place,
    ) -> Vec<Mistake> {
        let slot = (setting.slot)(self.holder);
        match slot.set(given, &setting.bounds) {
            Ok(()) => {
                self.said.push(setting.name, place(given.span()));
                Vec::new()
            }
            Err(wrong) => {
                let must = slot.what(&setting.bounds);
                let name = format!("{}.{}", self.section, setting.name);
                let mistake = |Wrong { span, message }| Mistake {
                    message: message.unwrap_or_else(|| format!("`{name}` must be {must}")),
                    place: place(span),
                };
                wrong.into_iter().map(mistake).collect()
            }
        }
    }
}
