//! llama.cpp's field `samplers`: the steps of sampling, in order.

use loquat_engine::{DEFAULT_ORDER, SamplingStep};
use serde_json::Value;

use crate::error::ApiError;
use crate::sampling::{invalid, wrong_type};

pub const SAMPLERS: &str = "samplers";

/// The sampler that has no effect, as the header names it, with the reason.
pub const IGNORED: (&str, &str) = (
    "samplers[infill]",
    "the model's own probabilities end what is filled in",
);
const INFILL: &str = "infill";

/// llama.cpp's letters for the steps.
const LETTERS: [(char, &str); 10] = [
    ('e', "penalties"),
    ('d', "dry"),
    ('s', "top_n_sigma"),
    ('k', "top_k"),
    ('y', "typical_p"),
    ('p', "top_p"),
    ('m', "min_p"),
    ('x', "xtc"),
    ('t', "temperature"),
    ('i', INFILL),
];

/// The steps of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Samplers {
    pub steps: Vec<SamplingStep>,
    /// Whether `infill` was left out.
    pub ignores_infill: bool,
}

impl Samplers {
    /// Reads a list of names, or a text of letters.
    pub fn read(value: &Value) -> Result<Self, ApiError> {
        let mut samplers = Self {
            steps: Vec::new(),
            ignores_infill: false,
        };
        match value {
            Value::String(letters) => {
                for letter in letters.chars() {
                    let name = LETTERS.iter().find(|(known, _)| *known == letter);
                    let (_, name) = name.ok_or_else(|| unknown(&letter.to_string()))?;
                    samplers.add(name)?;
                }
            }
            Value::Array(names) => {
                for name in names {
                    let name = name.as_str();
                    samplers.add(name.ok_or_else(|| wrong(value))?)?;
                }
            }
            _ => return Err(wrong(value)),
        }
        Ok(samplers)
    }

    fn add(&mut self, name: &str) -> Result<(), ApiError> {
        if name == INFILL {
            self.ignores_infill = true;
            return Ok(());
        }
        let step = SamplingStep::from_name(name).map_err(|_| unknown(name))?;
        if self.steps.contains(&step) {
            return Err(invalid(SAMPLERS, &format!("names `{name}` twice")));
        }
        self.steps.push(step);
        Ok(())
    }
}

fn wrong(value: &Value) -> ApiError {
    wrong_type(SAMPLERS, value, "a list of samplers")
}

fn unknown(name: &str) -> ApiError {
    let known = DEFAULT_ORDER.map(SamplingStep::name).join(", ");
    let problem = format!("names `{name}`; use {known} or {INFILL}");
    invalid(SAMPLERS, &problem)
}
