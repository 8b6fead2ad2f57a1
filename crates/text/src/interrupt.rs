//! Encoding that stops early.

use std::fmt;
use std::sync::Arc;

use crate::{Result, TextError};

/// Asked again and again while a text is encoded.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Interrupt {
    pub(crate) fn new(is_unwanted: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(is_unwanted)))
    }

    /// An error once the result is not wanted.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.0 {
            Some(is_unwanted) if is_unwanted() => Err(TextError::Interrupted),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Interrupt").field(&self.0.is_some()).finish()
    }
}
