//! Facts about a model family belong to its row in `crates/spec`.

use std::collections::BTreeSet;

use super::rust_code::{code_only, string_literals, test_lines, word_offsets};
use super::tree::Tree;
use super::{Violation, line_of};

const RULE: &str = "family-facts";
const ROWS: &str = "crates/spec/src/families/";
/// Development only; they build checkpoints of named families.
const KITS: &[&str] = &["crates/testkit/", "crates/hubkit/"];

/// Paths that may read `spec.family`, and why.
const MAY_READ_FAMILY: &[(&str, &str)] = &[
    ("crates/cli/src/inspect/", "prints it"),
    (
        "crates/cli/src/serve/opener.rs",
        "the server's API shows it",
    ),
    (
        "crates/cli/src/fit/advice.rs",
        "the catalog lists models by family",
    ),
    ("crates/convert/src/convert.rs", "refusals name it"),
    (
        "crates/convert/src/describe/mod.rs",
        "comparisons leave it out",
    ),
    ("crates/goldens/src/judge.rs", "reports name it"),
    (
        "crates/weights/src/adapter/peft.rs",
        "the refusal of another family's adapter names it",
    ),
];

/// Paths with literals that equal a family's name, and what they are.
const MAY_SPELL_FAMILIES: &[(&str, &str)] = &[
    (
        "crates/convert/src/vocabulary/",
        "GGUF's kinds of tokenizer",
    ),
    (
        "crates/goldens/src/notes.rs",
        "notes for the support matrix",
    ),
    ("crates/synthetic/src/", "shapes of published models"),
    (
        "crates/text/src/format/",
        "formats named for their first model",
    ),
    ("crates/text/src/gguf_vocab.rs", "GGUF's kinds of tokenizer"),
    ("crates/text/src/pretokenizer.rs", "GGUF's pre-tokenizers"),
    (
        "crates/text/src/template/builtin.rs",
        "templates named for their first model",
    ),
];

/// Production code outside `spec` neither reads `spec.family` nor lists families.
pub fn family_facts(tree: &Tree) -> Vec<Violation> {
    let names = family_names(tree);
    let mut violations = Vec::new();
    for (path, text) in tree.files(".rs").filter(|(path, _)| is_guarded(path)) {
        let code = code_only(text);
        let tests = test_lines(&code);
        let mut add = |line: usize, message: String| {
            if !tests.contains(&line) {
                violations.push(Violation {
                    path: path.to_string(),
                    line,
                    rule: RULE,
                    message,
                });
            }
        };
        if !is_listed(MAY_READ_FAMILY, path) {
            for at in word_offsets(&code, "family").filter(|&at| reads_spec(&code[..at])) {
                let message = "read the spec or its `facts()` instead of the family name";
                add(line_of(&code, at), message.to_string());
            }
        }
        if !is_listed(MAY_SPELL_FAMILIES, path) {
            for (line, literal) in string_literals(text) {
                if names.contains(literal) {
                    add(
                        line,
                        format!("\"{literal}\" is a family: its facts belong to {ROWS}"),
                    );
                }
            }
        }
    }
    violations
}

fn is_guarded(path: &str) -> bool {
    let is_test = |part: &str| matches!(part, "tests" | "tests.rs" | "testing" | "testing.rs");
    path.contains("/src/")
        && !path.starts_with("crates/spec/")
        && !path.starts_with("xtask/")
        && !KITS.iter().any(|kit| path.starts_with(kit))
        && !path.split('/').any(is_test)
}

fn is_listed(list: &[(&str, &str)], path: &str) -> bool {
    list.iter().any(|(prefix, _)| path.starts_with(prefix))
}

fn reads_spec(before: &str) -> bool {
    before.ends_with("spec.") || before.ends_with("spec().")
}

/// The `model_types` and `architectures` of all rows.
fn family_names(tree: &Tree) -> BTreeSet<&str> {
    let rows = tree.files(".rs").filter(|(path, _)| path.starts_with(ROWS));
    let lists = rows.flat_map(|(_, text)| {
        ["model_types: &[", "architectures: &["]
            .into_iter()
            .flat_map(|field| text.split(field).skip(1))
            .filter_map(|rest| Some(&rest[..rest.find(']')?]))
    });
    lists
        .flat_map(string_literals)
        .map(|(_, name)| name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::assert_rule;
    use super::*;

    const ROW: (&str, &str) = (
        "crates/spec/src/families/llama.rs",
        "const FAMILY: Family = Family {\n    model_types: &[\"llama\", \"alpaca\"],\n\
         gguf: Some(GgufFamily { architectures: &[\"llama.cpp\"] }) };",
    );

    #[test]
    fn family_names_outside_spec_are_found() {
        assert_rule(
            family_facts,
            &[
                (&[ROW], &[]),
                (
                    &[
                        ROW,
                        (
                            "crates/a/src/x.rs",
                            "const X: &[&str] =\n    &[\"alpaca\"];",
                        ),
                    ],
                    &["crates/a/src/x.rs:2"],
                ),
                (
                    &[ROW, ("backends/a/src/x.rs", "f(r#\"llama.cpp\"#)")],
                    &["backends/a/src/x.rs:1"],
                ),
                (
                    &[
                        ROW,
                        ("crates/a/src/x.rs", "// \"llama\"\nf(\"llamas\", 'l')"),
                    ],
                    &[],
                ),
                (
                    &[
                        ROW,
                        (
                            "crates/a/src/x.rs",
                            "#[cfg(test)]\nmod tests {\n    fn f() { g(\"llama\") }\n}",
                        ),
                    ],
                    &[],
                ),
                (&[ROW, ("crates/a/tests/x.rs", "f(\"llama\")")], &[]),
                (&[ROW, ("crates/text/src/format/x.rs", "f(\"llama\")")], &[]),
            ],
        );
    }

    #[test]
    fn readers_of_spec_family_are_found() {
        let read = "fn f() {\n    g(source.spec().family, spec.family)\n}";
        assert_rule(
            family_facts,
            &[
                (
                    &[("crates/a/src/x.rs", read)],
                    &["crates/a/src/x.rs:2", "crates/a/src/x.rs:2"],
                ),
                (&[("crates/spec/src/x.rs", read)], &[]),
                (&[("crates/cli/src/inspect/mod.rs", read)], &[]),
                (
                    &[("crates/a/src/x.rs", "entry.family; spec.family_count")],
                    &[],
                ),
            ],
        );
    }
}
