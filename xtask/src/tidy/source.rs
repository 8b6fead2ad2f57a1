//! Rules about Rust source files, checked on code without comments and strings.

use super::rust_code::{code_only, word_offsets};
use super::tree::Tree;
use super::{Violation, line_of};

const MAX_LINES: usize = 800;
const MAX_KERNEL_LINES: usize = 1200;

/// A file over its limit should be split; kernels unroll, so their limit is higher.
pub fn file_size(tree: &Tree) -> Vec<Violation> {
    let limit = |path: &str| {
        if path.starts_with("backends/") && path.contains("kernels/src/") {
            MAX_KERNEL_LINES
        } else {
            MAX_LINES
        }
    };
    tree.files(".rs")
        .map(|(path, text)| (path, text.lines().count(), limit(path)))
        .filter(|(_, lines, limit)| lines > limit)
        .map(|(path, lines, limit)| Violation {
            path: path.to_string(),
            line: limit + 1,
            rule: "file-size",
            message: format!("{lines} lines, at most {limit} are allowed"),
        })
        .collect()
}

/// Paths that may depend on features, and why.
const MAY_USE_FEATURES: &[(&str, &str)] = &[
    ("backends/", "the device's library"),
    ("crates/cli/src/backends.rs", "the table of backends"),
    ("crates/chat/", "`serde` for messages and events"),
    ("crates/loquat/", "`serde` for messages and events"),
];

/// All other crates are the same in every build.
pub fn cfg_feature_placement(tree: &Tree) -> Vec<Violation> {
    let is_restricted = |path: &str| {
        let mut allowed = MAY_USE_FEATURES.iter();
        !allowed.any(|(prefix, _)| path.starts_with(prefix))
    };
    in_code(tree, "cfg-feature", is_restricted, |code| {
        let message = "only the paths in MAY_USE_FEATURES may ask for a feature";
        ["cfg", "cfg_attr"]
            .into_iter()
            .flat_map(|word| word_offsets(code, word))
            .filter(|&at| asks_for_feature(&code[at..]))
            .map(|at| (at, message.to_string()))
            .collect()
    })
}

/// Placeholders and debugging macros.
pub fn unfinished_code(tree: &Tree) -> Vec<Violation> {
    let in_src = |path: &str| path.contains("/src/");
    in_code(tree, "unfinished-code", in_src, |code| {
        let uses = |name: &'static str| {
            word_offsets(code, name)
                .filter(move |at| code[at + name.len()..].starts_with('!'))
                .map(move |at| (at, format!("`{name}!` must not stay in the source")))
        };
        ["todo", "unimplemented", "dbg"]
            .into_iter()
            .flat_map(uses)
            .collect()
    })
}

/// Only the server knows JSON wire types; engine and session serialize nothing.
pub fn wire_types_stay_in_server(tree: &Tree) -> Vec<Violation> {
    let guarded =
        |path: &str| path.starts_with("crates/engine/") || path.starts_with("crates/session/");
    in_code(tree, "wire-types", guarded, |code| {
        let message = "no `Serialize` here: wire types belong to the server";
        word_offsets(code, "Serialize")
            .map(|at| (at, message.to_string()))
            .collect()
    })
}

/// A crate's root opens with the crate's purpose.
pub fn crate_doc(tree: &Tree) -> Vec<Violation> {
    let manifests = tree
        .files("Cargo.toml")
        .filter(|(_, text)| text.lines().any(|line| line.trim() == "[package]"));
    let roots = manifests.flat_map(|(path, _)| {
        let directory = path.trim_end_matches("Cargo.toml");
        ["lib.rs", "main.rs"].map(|name| format!("{directory}src/{name}"))
    });
    roots
        .filter(|path| tree.text(path).is_some_and(|text| !text.starts_with("//!")))
        .map(|path| Violation {
            path,
            line: 1,
            rule: "crate-doc",
            message: "must open with `//!`: what the crate is for, and what it does not do".into(),
        })
        .collect()
}

/// Applies `find`, from code to (offset, message) pairs, to each Rust file whose path `applies`.
fn in_code(
    tree: &Tree,
    rule: &'static str,
    applies: impl Fn(&str) -> bool,
    find: impl Fn(&str) -> Vec<(usize, String)>,
) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.files(".rs").filter(|(path, _)| applies(path)) {
        let code = code_only(text);
        violations.extend(find(&code).into_iter().map(|(offset, message)| Violation {
            path: path.to_string(),
            line: line_of(&code, offset),
            rule,
            message,
        }));
    }
    violations
}

/// Whether the condition at the start of `code` names a `feature` (not a `target_feature`).
fn asks_for_feature(code: &str) -> bool {
    let Some(open) = code.find('(') else {
        return false;
    };
    if !matches!(&code[..open], "cfg" | "cfg!" | "cfg_attr") {
        return false;
    }
    let mut depth = 0usize;
    let end = code[open..].find(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    let condition = &code[open..end.map_or(code.len(), |end| open + end)];
    word_offsets(condition, "feature").any(|at| {
        let after = &condition[at + "feature".len()..];
        after.trim_start().starts_with('=')
    })
}

#[cfg(test)]
mod tests {
    use super::super::assert_rule;
    use super::*;

    #[test]
    fn long_files_are_found() {
        let (ok, long) = ("\n".repeat(800), "\n".repeat(801));
        let (kernel, long_kernel) = ("\n".repeat(1200), "\n".repeat(1201));
        assert_rule(
            file_size,
            &[
                (&[("crates/a/src/x.rs", &ok), ("long.md", &long)], &[]),
                (
                    &[("crates/a/tests/x.rs", &long)],
                    &["crates/a/tests/x.rs:801"],
                ),
                (
                    &[("backends/cpu/src/pool.rs", &long)],
                    &["backends/cpu/src/pool.rs:801"],
                ),
                (&[("backends/cpu-kernels/src/q4.rs", &kernel)], &[]),
                (
                    &[("backends/cpu-kernels/src/q4.rs", &long_kernel)],
                    &["backends/cpu-kernels/src/q4.rs:1201"],
                ),
                (
                    &[("crates/a-kernels/src/x.rs", &long)],
                    &["crates/a-kernels/src/x.rs:801"],
                ),
            ],
        );
    }

    #[test]
    fn features_outside_backends_are_found() {
        let plain = "#[cfg(feature = \"mlx\")]\nfn f() {}";
        let nested = "fn f() {\n    cfg!(all(\n        unix,\n        feature = \"x\"))\n}";
        let innocent = "#[cfg(target_feature = \"avx2\")]\n#[cfg(test)]\n\
            // cfg(feature = \"x\")\nlet feature = f(cfg!(unix));";
        assert_rule(
            cfg_feature_placement,
            &[
                (
                    &[("crates/engine/src/a.rs", plain)],
                    &["crates/engine/src/a.rs:1"],
                ),
                (
                    &[("crates/engine/src/a.rs", nested)],
                    &["crates/engine/src/a.rs:2"],
                ),
                (
                    &[(
                        "crates/cli/src/a.rs",
                        "#[cfg_attr(feature = \"x\", inline)]",
                    )],
                    &["crates/cli/src/a.rs:1"],
                ),
                (&[("crates/engine/src/a.rs", innocent)], &[]),
                (&[("backends/mlx/src/lib.rs", plain)], &[]),
                (&[("crates/cli/src/backends.rs", plain)], &[]),
                (&[("crates/chat/src/message.rs", plain)], &[]),
            ],
        );
    }

    #[test]
    fn crate_without_doc_is_found() {
        let package = ("crates/a/Cargo.toml", "[package]\nname = \"a\"");
        assert_rule(
            crate_doc,
            &[
                (&[package, ("crates/a/src/lib.rs", "//! For x.\n")], &[]),
                (
                    &[package, ("crates/a/src/lib.rs", "mod x;")],
                    &["crates/a/src/lib.rs:1"],
                ),
                (
                    &[package, ("crates/a/src/main.rs", "\n//! x")],
                    &["crates/a/src/main.rs:1"],
                ),
                (&[package, ("crates/a/src/other.rs", "mod x;")], &[]),
            ],
        );
    }

    #[test]
    fn placeholders_are_found() {
        assert_rule(
            unfinished_code,
            &[
                (
                    &[("a/src/x.rs", "fn f() {\n    todo!()\n}")],
                    &["a/src/x.rs:2"],
                ),
                (
                    &[("a/src/x.rs", "unimplemented!(\"x\");")],
                    &["a/src/x.rs:1"],
                ),
                (&[("a/src/x.rs", "let y = dbg![x];")], &["a/src/x.rs:1"]),
                (
                    &[(
                        "a/src/x.rs",
                        "// todo!()\nlet todo = \"dbg!(x)\"; my_todo!();",
                    )],
                    &[],
                ),
            ],
        );
    }

    #[test]
    fn serialize_in_engine_or_session_is_found() {
        let derive = "#[derive(Debug,\n    Serialize)]\nstruct S;";
        assert_rule(
            wire_types_stay_in_server,
            &[
                (
                    &[("crates/engine/src/a.rs", derive)],
                    &["crates/engine/src/a.rs:2"],
                ),
                (
                    &[("crates/session/src/a.rs", "impl serde::Serialize for S {}")],
                    &["crates/session/src/a.rs:1"],
                ),
                (
                    &[(
                        "crates/engine/src/a.rs",
                        "// no Serialize\nstruct Deserialize;",
                    )],
                    &[],
                ),
                (&[("crates/chat/src/a.rs", derive)], &[]),
            ],
        );
    }
}
