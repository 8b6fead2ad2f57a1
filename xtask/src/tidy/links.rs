//! Finds dead links, and paths that do not exist, in the documentation.

use super::tree::Tree;
use super::{Violation, line_of};

/// Code that starts with one of these is a path from the repository's root.
const ROOTS: &[&str] = &[
    "backends/",
    "clients/",
    "crates/",
    "docs/",
    "judges/",
    "xtask/",
];

/// Every relative link of a Markdown file whose target does not exist. Fragments are not checked.
pub fn dead_links(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.files(".md") {
        let (prose, _) = separate_code(text);
        for (offset, target) in link_targets(&prose) {
            let Some(file) = file_part(target) else {
                continue;
            };
            if !resolve(path, file).is_some_and(|resolved| tree.exists(&resolved)) {
                violations.push(missing("dead-link", path, line_of(text, offset), target));
            }
        }
    }
    violations
}

/// Every repository path in a code span of a Markdown file that does not exist.
pub fn dead_paths(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.files(".md") {
        let (_, spans) = separate_code(text);
        for (offset, span) in spans.into_iter().filter(|(_, span)| is_path(span)) {
            for name in expand_braces(span) {
                if !tree.exists(name.trim_end_matches('/')) {
                    violations.push(missing("dead-path", path, line_of(text, offset), &name));
                }
            }
        }
    }
    violations
}

fn missing(rule: &'static str, path: &str, line: usize, target: &str) -> Violation {
    Violation {
        path: path.to_string(),
        line,
        rule,
        message: format!("`{target}` does not exist"),
    }
}

/// Whether a code span is a path of this repository, without placeholders such as `<name>`.
fn is_path(span: &str) -> bool {
    let is_path_char = |c: char| c.is_ascii_alphanumeric() || "_-./{,}".contains(c);
    ROOTS.iter().any(|root| span.starts_with(root)) && span.chars().all(is_path_char)
}

/// `a/{b,c}.rs` as `a/b.rs` and `a/c.rs`.
fn expand_braces(path: &str) -> Vec<String> {
    let group = path.split_once('{').and_then(|(before, rest)| {
        let (names, after) = rest.split_once('}')?;
        Some((before, names, after))
    });
    let Some((before, names, after)) = group else {
        return vec![path.to_string()];
    };
    names
        .split(',')
        .flat_map(|name| expand_braces(&format!("{before}{name}{after}")))
        .collect()
}

/// The text with code blocks and code spans replaced by spaces, so that offsets stay the same; and
/// the code spans, with their offsets.
fn separate_code(text: &str) -> (String, Vec<(usize, &str)>) {
    let mut fence: Option<&str> = None;
    let mut prose = String::with_capacity(text.len());
    let mut spans = Vec::new();
    for line in text.split_inclusive('\n') {
        let marker = ["```", "~~~"]
            .into_iter()
            .find(|marker| line.trim_start().starts_with(marker));
        match (fence, marker) {
            (None, None) => separate_spans(line, &mut prose, &mut spans),
            (None, Some(_)) => {
                fence = marker;
                blank(line, &mut prose);
            }
            (Some(_), _) => {
                if marker == fence {
                    fence = None;
                }
                blank(line, &mut prose);
            }
        }
    }
    (prose, spans)
}

fn separate_spans<'a>(line: &'a str, prose: &mut String, spans: &mut Vec<(usize, &'a str)>) {
    let parts: Vec<&str> = line.split('`').collect();
    let last = parts.len() - 1;
    for (index, part) in parts.into_iter().enumerate() {
        // Odd parts are between two backticks, unless the last backtick is never closed.
        if index % 2 == 1 && index != last {
            spans.push((prose.len(), part));
            blank(part, prose);
        } else {
            prose.push_str(part);
        }
        if index != last {
            prose.push(' ');
        }
    }
}

fn blank(text: &str, prose: &mut String) {
    prose.extend(
        text.bytes()
            .map(|byte| if byte == b'\n' { '\n' } else { ' ' }),
    );
}

/// `](target)` of inline links and images, and `[label]: target` of definitions, with offsets.
fn link_targets(prose: &str) -> Vec<(usize, &str)> {
    let inline = prose.match_indices("](").filter_map(|(at, opener)| {
        let start = at + opener.len();
        let target = prose[start..].split(')').next()?;
        Some((start, target))
    });
    let mut line_start = 0;
    let definitions = prose.split_inclusive('\n').filter_map(move |line| {
        let start = line_start;
        line_start += line.len();
        let (label, target) = line.split_once("]:")?;
        let is_definition = label.starts_with('[') && !label.starts_with("[^");
        is_definition.then_some((start, target))
    });
    inline.chain(definitions).collect()
}

/// The target's file, without title and fragment; `None` for other sites.
fn file_part(target: &str) -> Option<&str> {
    let word = target.trim().trim_start_matches('<');
    let word = word.split(|c: char| c.is_whitespace() || c == '>').next()?;
    let file = word.split('#').next()?;
    let is_external = file.contains("://") || file.starts_with("mailto:");
    (!file.is_empty() && !is_external).then_some(file)
}

/// The repository path of `file` relative to the document `from`; a leading `/` is the repository
/// root. `None` if it is outside.
fn resolve(from: &str, file: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    if file.starts_with('/') {
        parts.clear();
    }
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::super::assert_rule;
    use super::*;

    #[test]
    fn links_to_missing_files_are_found() {
        let alive = "[a](b.md) ![i](../README.md#top) [d](/docs) [up](..) <x>\n\
            [w](https://example.org/x) [m](mailto:a@b.c) [self](#here) [t](b.md \"title\")\n\
            `[code](gone.md)`\n```\n[block](gone.md)\n```\n[ref]: <b.md>\n[^1]: note\n";
        assert_rule(
            dead_links,
            &[
                (
                    &[("README.md", ""), ("docs/b.md", ""), ("docs/a.md", alive)],
                    &[],
                ),
                (&[("a.md", "ok\n[x](gone.md)\n")], &["a.md:2"]),
                (&[("a.md", "[x](gone.md#part)")], &["a.md:1"]),
                (&[("a.md", "\n[x]: gone.md\n")], &["a.md:2"]),
                (&[("a.md", "[out](../a.md)")], &["a.md:1"]),
                (
                    &[("d/a.md", "`é` ```\n[x](a.md)\n[y](/a.md)")],
                    &["d/a.md:3"],
                ),
            ],
        );
    }

    #[test]
    fn paths_of_missing_files_are_found() {
        let files = |text| {
            [
                ("crates/a/src/lib.rs", ""),
                ("crates/a/src/b.rs", ""),
                ("docs/a.md", text),
            ]
        };
        let alive = "`crates/a/src/lib.rs` `crates/a/` `crates/a/src/{lib,b}.rs`\n\
            `crates/<name>/src/lib.rs` `crates/*/src` `src/gone.rs` `cargo test -p crates/gone`\n\
            ```\n`crates/gone`\n```\ncrates/gone\n";
        assert_rule(
            dead_paths,
            &[
                (&files(alive), &[]),
                (&files("\nsee `crates/gone.rs`"), &["docs/a.md:2"]),
                (&files("`crates/a/src/{lib,gone}.rs`"), &["docs/a.md:1"]),
                (&files("`{b}` `crates/{a,c}/{d,src}/`"), &["docs/a.md:1"; 3]),
            ],
        );
    }
}
