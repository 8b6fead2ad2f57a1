//! The golden judge, a crate of its own because it names backends; run in the dev profile, for
//! which the tests have built all it needs.

use std::path::Path;

use crate::command::{Run, cargo};
use crate::error::Error;

/// Judges as `args` say. Paths among them are seen from where the caller stands.
pub fn run(args: &[String]) -> Result<(), Error> {
    judge(Path::new("."), args).finish()
}

pub fn judge(directory: &Path, args: &[String]) -> Run {
    let run = ["run", "--quiet", "--package", "loquat-goldens", "--"].map(str::to_owned);
    cargo(directory, &[&run, args].concat())
}
