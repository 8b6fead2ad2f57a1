//! Checks the dependency tree against `deny.toml`.

use super::{Context, Note};
use crate::command::program;
use crate::error::Error;
use crate::tools::Tool;

const CARGO_DENY: Tool = Tool {
    name: "cargo-deny",
    version: "0.20.2",
};
const NOT_CHECKED: &str = "advisories: NOT CHECKED (database unreachable)";

/// The advisory database is on the network. If it is unreachable, the other checks must still pass
/// and the summary says that advisories were not checked.
pub fn run(context: &Context) -> Result<Note, Error> {
    let root = context.root;
    let deny = CARGO_DENY.find_or_install(root)?;
    let database = program(root, &deny, &["fetch", "db"]).run();
    let (which, note): (&[&str], Note) = match database {
        Ok(()) => (&["all"], None),
        Err(_) => {
            println!("{NOT_CHECKED}");
            (
                &["licenses", "bans", "sources"],
                Some(NOT_CHECKED.to_string()),
            )
        }
    };
    let check = ["--locked", "check", "--hide-inclusion-graph"];
    program(root, &deny, &[&check, which].concat()).run()?;
    Ok(note)
}
