//! The repository's rules. Each rule is a function from the tree to its violations.

mod families;
mod layers;
mod links;
mod names;
mod rust_code;
mod source;
mod tree;

use std::fmt;
use std::path::Path;

use crate::error::Error;
use tree::Tree;

type Rule = fn(&Tree) -> Vec<Violation>;

const RULES: &[Rule] = &[
    families::family_facts,
    layers::dependency_direction,
    links::dead_links,
    links::dead_paths,
    names::bare_names,
    source::file_size,
    source::cfg_feature_placement,
    source::crate_doc,
    source::unfinished_code,
    source::wire_types_stay_in_server,
];

/// A rule broken at one line.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    path: String,
    line: usize,
    rule: &'static str,
    message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation {
            path,
            line,
            rule,
            message,
        } = self;
        write!(f, "{path}:{line}: {rule}: {message}")
    }
}

/// Prints every violation under `root`; any is an error.
pub fn run(root: &Path) -> Result<(), Error> {
    let tree = Tree::read(root)?;
    let mut violations: Vec<Violation> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    violations.sort();
    for violation in &violations {
        println!("{violation}");
    }
    match violations.len() {
        0 => {
            println!("tidy: {} files read, no violations", tree.files("").count());
            Ok(())
        }
        count => Err(Error::Tidy { count }),
    }
}

/// The 1-based line of byte `offset`.
fn line_of(text: &str, offset: usize) -> usize {
    1 + text
        .bytes()
        .take(offset)
        .filter(|&byte| byte == b'\n')
        .count()
}

/// The files of a tree, as (path, text), and the `path:line` of each expected violation.
#[cfg(test)]
type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str]);

#[cfg(test)]
fn assert_rule(rule: Rule, cases: &[Case]) {
    for (files, expected) in cases {
        let found: Vec<String> = rule(&Tree::from_files(files))
            .iter()
            .map(|violation| format!("{}:{}", violation.path, violation.line))
            .collect();
        assert_eq!(&found, expected, "in {files:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violation_prints_path_line_rule_message() {
        let violation = Violation {
            path: "a/b.rs".into(),
            line: 7,
            rule: "file-size",
            message: "too long".into(),
        };
        assert_eq!(violation.to_string(), "a/b.rs:7: file-size: too long");
    }

    #[test]
    fn broken_rule_fails_the_run() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("README.md"), "[here](README.md)\n").unwrap();
        assert!(run(dir.path()).is_ok());
        std::fs::write(dir.path().join("README.md"), "[gone](gone.md)\n").unwrap();
        assert!(matches!(run(dir.path()), Err(Error::Tidy { count: 1 })));
    }
}
