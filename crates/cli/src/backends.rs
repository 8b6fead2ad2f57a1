//! `loquat backends`, and the library's table of them.

pub use loquat::backends::{backends, has_gpu, introduce, select};

use crate::error::CliError;
use crate::terminal::print;

pub fn list() -> Result<(), CliError> {
    print(&format!("{}\n", loquat::backends::describe().join("\n")))
}
