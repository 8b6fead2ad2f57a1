//! Finds names that do not describe what they name.

use super::rust_code::{code_only, word_offsets};
use super::tree::Tree;
use super::{Violation, line_of};

/// Bare words for types and modules; a qualified name (`SequenceState`) is fine.
const BARE_NAMES: &[&str] = &[
    "Asked", "Either", "Gate", "Given", "Guest", "Heard", "Herd", "Parts", "Place", "Said",
    "State", "Taste", "Wanted", "Wish", "Without",
];
const DECLARATIONS: &[&str] = &["struct", "enum", "union", "trait", "type", "mod"];

/// Types and modules are named for what they hold, functions for what they do.
pub fn bare_names(tree: &Tree) -> Vec<Violation> {
    let is_checked = |path: &str| {
        let roots = ["crates/", "backends/", "xtask/"];
        roots.iter().any(|root| path.starts_with(root))
    };
    let mut violations = Vec::new();
    for (path, text) in tree.files(".rs").filter(|(path, _)| is_checked(path)) {
        let code = code_only(text);
        for (keyword, at, name) in declared(&code) {
            let bare = BARE_NAMES.iter().any(|bare| match keyword {
                "mod" => bare.to_lowercase() == name,
                _ => *bare == name,
            });
            if bare || (keyword == "fn" && name == "of") {
                violations.push(Violation {
                    path: path.to_string(),
                    line: line_of(&code, at),
                    rule: "bare-names",
                    message: format!("`{keyword} {name}` is too vague; name it by its domain"),
                });
            }
        }
    }
    violations
}

/// Every declared name with its keyword and offset.
fn declared(code: &str) -> impl Iterator<Item = (&'static str, usize, &str)> {
    let keywords = DECLARATIONS.iter().copied().chain(["fn"]);
    keywords.flat_map(move |keyword| {
        word_offsets(code, keyword).filter_map(move |at| {
            let after = code[at + keyword.len()..].strip_prefix(' ')?;
            let end = after.find(|c: char| !c.is_alphanumeric() && c != '_')?;
            Some((keyword, at, &after[..end]))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::assert_rule;
    use super::*;

    #[test]
    fn bare_declarations_are_found() {
        let table = [
            ("struct State {}", true),
            ("pub(crate) enum Gate<'a> {}", true),
            ("type Wish = u8;", true),
            ("mod parts;", true),
            ("impl A {\n    pub fn of(x: u8) {}\n}", true),
            ("fn of<T>() {}", true),
            ("struct SequenceState;", false),
            ("mod gate_scale;", false),
            ("fn offset() {}", false),
            ("// struct State\nlet s = \"fn of()\";", false),
            ("type Output = Self::State;", false),
        ];
        for (code, found) in table {
            for (path, guarded) in [("crates/a/src/x.rs", true), ("fuzz/x.rs", false)] {
                let violations = bare_names(&Tree::from_files(&[(path, code)]));
                assert_eq!(violations.len(), usize::from(found && guarded), "{code}");
            }
        }
        assert_rule(
            bare_names,
            &[(&[("xtask/src/x.rs", "\nmod said;")], &["xtask/src/x.rs:2"])],
        );
    }
}
