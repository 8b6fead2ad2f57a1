//! Dicts: entries in order of insertion, found by keys that are equal to Python.

use std::collections::HashMap;
use std::sync::Arc;

use super::budget::{Budget, SMALL};
use super::error::{Result, fail};
use super::value::{Value, deeper};

/// The cost of an entry and its place.
const ENTRY_BYTES: usize = size_of::<(Value, Value)>() + size_of::<(Key, usize)>();

/// A dict in insertion order.
#[derive(Default)]
pub(super) struct Dict {
    entries: Vec<(Value, Value)>,
    places: HashMap<Key, usize>,
    depth: u32,
}

/// A key's identity: in Python `1`, `1.0` and `True` are one key.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Undefined,
    None,
    Int(i128),
    Float(u64),
    Str(Arc<str>),
    Tuple(Vec<Key>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    Keys,
    Values,
    Items,
}

impl Dict {
    /// How deep lists and dicts lie in it.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds or replaces. A key keeps its first spelling and position.
    pub fn insert(&mut self, key: Value, value: Value, budget: &Budget) -> Result<()> {
        let place = Key::from_value(&key, budget)?;
        self.depth = self.depth.max(deeper([&key, &value].into_iter())?);
        match self.places.get(&place) {
            Some(at) => self.entries[*at].1 = value,
            None => {
                budget.bytes(ENTRY_BYTES)?;
                self.places.insert(place, self.entries.len());
                self.entries.push((key, value));
            }
        }
        Ok(())
    }

    /// `dict[key]`; an error if the key is not hashable.
    pub fn get(&self, key: &Value, budget: &Budget) -> Result<Option<&Value>> {
        let at = self.places.get(&Key::from_value(key, budget)?);
        Ok(at.map(|at| &self.entries[*at].1))
    }

    pub fn get_str(&self, key: &str) -> Option<&Value> {
        let at = self.places.get(&Key::Str(key.into()))?;
        Some(&self.entries[*at].1)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Value, &Value)> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    pub fn view(&self, view: View, budget: &Budget) -> Result<Vec<Value>> {
        let pair_bytes = if view == View::Items {
            2 * size_of::<Value>() + SMALL
        } else {
            0
        };
        budget.steps(self.len())?;
        budget.items::<Value>(self.len(), pair_bytes)?;
        match view {
            View::Keys => Ok(self.iter().map(|(key, _)| key.clone()).collect()),
            View::Values => Ok(self.iter().map(|(_, value)| value.clone()).collect()),
            View::Items => {
                let pair =
                    |(key, value): (&Value, &Value)| Value::tuple(vec![key.clone(), value.clone()]);
                self.iter().map(pair).collect()
            }
        }
    }

    /// A copy with the same entries.
    pub fn copy(&self, budget: &Budget) -> Result<Self> {
        let mut copy = Self::default();
        for (key, value) in self.iter() {
            copy.insert(key.clone(), value.clone(), budget)?;
        }
        Ok(copy)
    }
}

impl Key {
    fn from_value(value: &Value, budget: &Budget) -> Result<Self> {
        budget.steps(1)?;
        Ok(match value {
            Value::Undefined(_) => Self::Undefined,
            Value::None => Self::None,
            Value::Bool(flag) => Self::Int((*flag).into()),
            Value::Int(number) => Self::Int(*number),
            Value::Float(number) if number.fract() == 0.0 && number.abs() < 1e30 => {
                Self::Int(*number as i128)
            }
            Value::Float(number) => Self::Float(number.to_bits()),
            Value::Str(text) => {
                budget.reads(text.text.len())?;
                Self::Str(text.text.clone())
            }
            Value::Tuple(seq) => {
                budget.bytes(seq.items.len() * size_of::<Self>())?;
                let keys = seq.items.iter().map(|item| Self::from_value(item, budget));
                Self::Tuple(keys.collect::<Result<_>>()?)
            }
            other => return fail(format!("unhashable type: '{}'", other.type_name())),
        })
    }
}
