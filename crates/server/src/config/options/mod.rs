//! Every option, defined once: its field, valid values, help, variable and flag. Parsing, help texts
//! and the reference page all use these tables.

mod entries;
mod sections;

use super::option_value::{Bounds, Slot};
use super::{Config, ModelConfig};

pub use entries::{KEYS, MODELS};
pub use sections::SECTIONS;

/// One option of a `T`: the whole configuration, a key or a model.
pub struct Setting<T> {
    pub name: &'static str,
    pub help: &'static str,
    pub bounds: Bounds,
    /// A value other than the default, as TOML, for the reference page.
    pub example: &'static str,
    /// Its flag of `loquat serve`, without the dashes.
    pub flag: Option<&'static str>,
    /// Its variable if the name does not follow the rule.
    pub variable: Option<&'static str>,
    pub required: bool,
    pub slot: fn(&mut T) -> &mut dyn Slot,
}

/// A group of options.
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

    /// Describes valid values.
    pub fn expected(&self, holder: &mut T) -> String {
        (self.slot)(holder).expected(&self.bounds)
    }

    fn as_flag(&self, section: &'static str, variable: String, default: &mut T) -> Option<Flag> {
        // For free text the description adds nothing.
        let what = match self.expected(default).as_str() {
            "text" | "a path" => String::new(),
            what => format!(" [{what}]"),
        };
        let default = self.to_toml(default);
        let default = default.map(|value| format!(" [default: {}]", value.trim_matches('"')));
        Some(Flag {
            name: self.flag?,
            section,
            help: format!("{}{what}{}", self.help, default.unwrap_or_default()),
            variable,
        })
    }

    /// Its value as TOML; `None` if unset.
    pub fn to_toml(&self, holder: &mut T) -> Option<String> {
        (self.slot)(holder).to_toml(&self.bounds)
    }
}

impl Section {
    /// The environment variable of one of its options.
    pub fn variable(&self, setting: &Setting<Config>) -> String {
        let own = setting.variable.map(str::to_owned);
        own.unwrap_or_else(|| variable(&[self.name, setting.name]))
    }
}

/// The variable that sets the option for every model, if it has a flag.
pub fn model_variable(setting: &Setting<ModelConfig>) -> Option<String> {
    setting.flag.map(|_| variable(&[setting.name]))
}

fn variable(words: &[&str]) -> String {
    format!("LOQUAT_{}", words.join("_").to_uppercase())
}

/// A flag of `loquat serve`.
pub struct Flag {
    /// Without dashes.
    pub name: &'static str,
    pub section: &'static str,
    pub help: String,
    pub variable: String,
}

/// The flags of all options that have one.
pub fn flags() -> Vec<Flag> {
    let section_flags = SECTIONS.iter().flat_map(|section| {
        let settings = section.settings.iter();
        settings.filter_map(|setting| {
            let variable = section.variable(setting);
            setting.as_flag(section.name, variable, &mut Config::default())
        })
    });
    let model_flags = MODELS.iter().filter_map(|setting| {
        let variable = model_variable(setting)?;
        setting.as_flag("models", variable, &mut ModelConfig::blank())
    });
    section_flags.chain(model_flags).collect()
}

const COUNT: Bounds = Bounds::Whole(0, u32::MAX as u64);
const AT_LEAST_ONE: Bounds = Bounds::Whole(1, u32::MAX as u64);
