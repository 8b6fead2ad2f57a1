//! Arguments of a call, and how they meet parameters.

use std::sync::Arc;

use super::budget::Budget;
use super::error::{Result, fail};
use super::value::Value;

#[derive(Default)]
pub(super) struct Args {
    pub positional: Vec<Value>,
    pub keyword: Vec<(Arc<str>, Value)>,
}

impl Args {
    pub fn from_positional(positional: Vec<Value>) -> Self {
        Self {
            positional,
            keyword: Vec::new(),
        }
    }

    /// The same arguments for another call.
    pub fn duplicate(&self, budget: &Budget) -> Result<Self> {
        budget.items::<Value>(self.positional.len(), 0)?;
        budget.items::<(Arc<str>, Value)>(self.keyword.len(), 0)?;
        Ok(Self {
            positional: self.positional.clone(),
            keyword: self.keyword.clone(),
        })
    }

    /// One slot per parameter, filled by position or by name. `function` is named in errors.
    pub fn bind<const N: usize>(
        self,
        function: &str,
        parameters: [&str; N],
    ) -> Result<[Option<Value>; N]> {
        if self.positional.len() > N {
            let given = self.positional.len();
            return fail(format!(
                "{function}() takes at most {N} arguments ({given} given)"
            ));
        }
        let mut slots = [const { None }; N];
        for (slot, value) in slots.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.keyword {
            match parameters.iter().position(|parameter| **parameter == *name) {
                Some(at) if slots[at].is_none() => slots[at] = Some(value),
                Some(_) => {
                    return fail(format!(
                        "{function}() got multiple values for argument '{name}'"
                    ));
                }
                None => {
                    return fail(format!(
                        "{function}() got an unexpected keyword argument '{name}'"
                    ));
                }
            }
        }
        Ok(slots)
    }

    /// At most `N` positional arguments.
    pub fn places<const N: usize>(self, function: &str) -> Result<[Option<Value>; N]> {
        if let Some((name, _)) = self.keyword.first() {
            return fail(format!(
                "{function}() takes no keyword arguments, but got '{name}'"
            ));
        }
        self.bind(function, [""; N])
    }
}

/// An argument that must be there.
pub(super) fn required(value: Option<Value>, function: &str, parameter: &str) -> Result<Value> {
    match value {
        Some(value) => Ok(value),
        None => fail(format!("{function}() needs the argument '{parameter}'")),
    }
}

/// An integer; `default` if the argument is missing.
pub(super) fn int(value: Option<Value>, default: i128) -> Result<i128> {
    match value {
        None => Ok(default),
        Some(Value::Undefined(missing)) => missing.used(),
        Some(value) => match value.as_int() {
            Some(number) => Ok(number),
            None => fail(format!(
                "'{}' object cannot be interpreted as an integer",
                value.type_name()
            )),
        },
    }
}

/// A count: zero if the argument is negative, clamped if it is too large.
pub(super) fn count(number: i128) -> usize {
    usize::try_from(number.max(0)).unwrap_or(usize::MAX)
}

/// A string argument of a string method.
pub(super) fn text(value: Value, function: &str) -> Result<Arc<str>> {
    match value {
        Value::Str(text) => Ok(text.text),
        other => fail(format!(
            "{function}() takes a str, not {}",
            other.type_name()
        )),
    }
}

pub(super) fn flag(value: Option<Value>, default: bool) -> bool {
    value.map_or(default, |value| value.is_true())
}
