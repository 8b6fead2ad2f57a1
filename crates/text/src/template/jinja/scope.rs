//! Scopes of names.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::budget::Budget;
use super::error::Result;
use super::value::Value;

/// The variables of one block, and the blocks around it.
#[derive(Default)]
pub(super) struct Scope {
    variables: RefCell<HashMap<Arc<str>, Value>>,
    outer: Option<Rc<Scope>>,
}

impl Scope {
    /// A new block inside this one.
    pub fn inner(self: &Rc<Self>) -> Rc<Self> {
        Rc::new(Self {
            variables: RefCell::default(),
            outer: Some(self.clone()),
        })
    }

    /// The variable of this name, in this block or the nearest around it.
    pub fn get(&self, name: &str, budget: &Budget) -> Result<Option<Value>> {
        let mut scope = self;
        loop {
            if let Some(value) = scope.variables.borrow().get(name) {
                return Ok(Some(value.clone()));
            }
            match scope.outer.as_deref() {
                Some(outer) => scope = outer,
                None => return Ok(None),
            }
            budget.scans(name.len() + 1)?;
        }
    }

    /// Sets a variable of this block.
    pub fn set(&self, name: &Arc<str>, value: Value) {
        self.variables.borrow_mut().insert(name.clone(), value);
    }

    /// Removes every variable, which breaks reference cycles.
    pub fn clear(&self) {
        self.variables.take();
    }
}
