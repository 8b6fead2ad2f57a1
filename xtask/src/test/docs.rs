//! Builds the documentation with warnings as errors, and dry-runs publishing the crates that other
//! programs depend on.

use super::{Context, Note};
use crate::command::cargo;
use crate::error::Error;

/// The dry run skips the verification build, which would compile every crate again from its
/// package.
pub fn run(context: &Context) -> Result<Note, Error> {
    cargo(context.root, &["doc", "--workspace", "--no-deps"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()?;
    let publish = ["publish", "--workspace", "--dry-run", "--no-verify"];
    cargo(context.root, &[&publish[..], &["--allow-dirty"]].concat()).run()?;
    Ok(None)
}
