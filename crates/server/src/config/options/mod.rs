//! Every option, defined once: its place, what it may be, what it means, and by which variable
//! and flag it is set. Parsing, help texts and the reference page all come from here.

mod entries;
mod sections;

use super::kinds::{Bounds, Slot};
use super::{Config, Model};

pub use entries::{KEYS, MODELS};
pub use sections::SECTIONS;

/// One option of a `T`: the whole configuration, a key or a model.
pub struct Setting<T> {
    pub name: &'static str,
    pub help: &'static str,
    pub bounds: Bounds,
    /// A value for the reference page, as TOML, that is not the default.
    pub example: &'static str,
    /// Its flag of `loquat serve`, without the dashes.
    pub flag: Option<&'static str>,
    /// Its variable where that has another name than the rule gives.
    pub variable: Option<&'static str>,
    /// Nothing works without it.
    pub required: bool,
    pub slot: fn(&mut T) -> &mut dyn Slot,
}

/// Options that stand together.
pub struct Section {
    pub name: &'static str,
    pub help: &'static str,
    pub settings: &'static [Setting<Config>],
}

impl<T> Setting<T> {
    const fn new(
        name: &'static str,
        slot: fn(&mut T) -> &mut dyn Slot,
        example: &'static str,
        help: &'static str,
    ) -> Self {
        Self {
            name,
            help,
            bounds: Bounds::Any,
            example,
            flag: None,
            variable: None,
            required: false,
            slot,
        }
    }

    const fn within(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self
    }

    const fn flag(mut self, flag: &'static str) -> Self {
        self.flag = Some(flag);
        self
    }

    const fn variable(mut self, variable: &'static str) -> Self {
        self.variable = Some(variable);
        self
    }

    const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// What its value must be.
    pub fn what(&self, of: &mut T) -> String {
        (self.slot)(of).what(&self.bounds)
    }

    fn as_flag(&self, section: &'static str, variable: String, default: &mut T) -> Option<Flag> {
        // That a text is a text helps nobody.
        let what = match self.what(default).as_str() {
            "a text" | "a path" => String::new(),
            what => format!(" [{what}]"),
        };
        let default = self.written(default);
        let default = default.map(|value| format!(" [default: {}]", value.trim_matches('"')));
        Some(Flag {
            name: self.flag?,
            section,
            help: format!("{}{what}{}", self.help, default.unwrap_or_default()),
            variable,
        })
    }

    /// Its value as TOML; `None` where it has none.
    pub fn written(&self, of: &mut T) -> Option<String> {
        (self.slot)(of).written(&self.bounds)
    }
}

impl Section {
    /// The environment variable of one of its options.
    pub fn variable(&self, setting: &Setting<Config>) -> String {
        let given = setting.variable.map(str::to_owned);
        given.unwrap_or_else(|| variable(&[self.name, setting.name]))
    }
}

/// That of an option which every model has; only what has a flag has one.
pub fn model_variable(setting: &Setting<Model>) -> Option<String> {
    setting.flag.map(|_| variable(&[setting.name]))
}

fn variable(words: &[&str]) -> String {
    format!("LOQUAT_{}", words.join("_").to_uppercase())
}

/// What a flag of `loquat serve` is, and says of itself.
pub struct Flag {
    /// Without its dashes.
    pub name: &'static str,
    pub section: &'static str,
    pub help: String,
    pub variable: String,
}

/// The flags of all options that have one.
pub fn flags() -> Vec<Flag> {
    let of_sections = SECTIONS.iter().flat_map(|section| {
        let settings = section.settings.iter();
        settings.filter_map(|setting| {
            let variable = section.variable(setting);
            setting.as_flag(section.name, variable, &mut Config::default())
        })
    });
    let of_models = MODELS.iter().filter_map(|setting| {
        let variable = model_variable(setting)?;
        setting.as_flag("models", variable, &mut Model::blank())
    });
    of_sections.chain(of_models).collect()
}

const COUNT: Bounds = Bounds::Whole(0, u32::MAX as u64);
const AT_LEAST_ONE: Bounds = Bounds::Whole(1, u32::MAX as u64);
