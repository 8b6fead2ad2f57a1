//! Finds dead links in the documentation.

use super::tree::Tree;
use super::{Violation, line_of};

const RULE: &str = "dead-link";

/// Every relative link of a Markdown file whose target does not exist. Fragments are not checked.
pub fn dead_links(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.files(".md") {
        let prose = blank_code(text);
        for (offset, target) in link_targets(&prose) {
            let Some(file) = file_part(target) else {
                continue;
            };
            if !resolve(path, file).is_some_and(|resolved| tree.exists(&resolved)) {
                violations.push(Violation {
                    path: path.to_string(),
                    line: line_of(text, offset),
                    rule: RULE,
                    message: format!("`{target}` does not exist"),
                });
            }
        }
    }
    violations
}

/// The text with code blocks and code spans replaced by spaces; offsets stay the same.
fn blank_code(text: &str) -> String {
    let mut fence: Option<&str> = None;
    let mut prose = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let marker = ["```", "~~~"]
            .into_iter()
            .find(|marker| line.trim_start().starts_with(marker));
        match (fence, marker) {
            (None, None) => blank_spans(line, &mut prose),
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
    prose
}

fn blank_spans(line: &str, prose: &mut String) {
    let parts: Vec<&str> = line.split('`').collect();
    let last = parts.len() - 1;
    for (index, part) in parts.into_iter().enumerate() {
        // Odd parts are between two backticks, unless the last backtick is never closed.
        if index % 2 == 1 && index != last {
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
}
