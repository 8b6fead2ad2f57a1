//! Writes a grammar in Lark's notation. Lark's groups do not nest deeply, so each gets a name.

use std::fmt::Write;

use super::Class;
use super::tree::{Id, Node, Tree};
use crate::lark::literal;

pub(super) fn write(tree: &Tree) -> String {
    let mut writer = Writer {
        tree,
        out: String::new(),
        named: 0,
    };
    let root = writer.name(tree.root);
    let _ = writeln!(writer.out, "start: {root}");
    for (rule, &body) in tree.rules.iter().enumerate() {
        // A split rule may still be complete within another terminal.
        if tree.is_flat(body) {
            let text = writer.body(body, Level::Terminal);
            let _ = writeln!(writer.out, "R{rule}: {text}");
        }
        if !tree.is_terminal(body) {
            let text = writer.body(body, Level::Rule);
            let _ = writeln!(writer.out, "r{rule}: {text}");
        }
    }
    writer.out
}

/// The context of a node.
#[derive(Clone, Copy, PartialEq)]
enum Level {
    Terminal,
    Rule,
}

struct Writer<'a> {
    tree: &'a Tree,
    out: String,
    /// Named groups.
    named: usize,
}

impl Writer<'_> {
    /// In Lark, names of terminals are in capitals.
    fn name(&self, rule: usize) -> String {
        if self.tree.is_terminal(self.tree.rules[rule]) {
            format!("R{rule}")
        } else {
            format!("r{rule}")
        }
    }

    /// The text after a colon.
    fn body(&mut self, id: Id, level: Level) -> String {
        let tree = self.tree;
        match &tree.nodes[id] {
            Node::Choice(parts) => {
                let parts = parts.iter().map(|part| self.sequence(*part, level));
                parts.collect::<Vec<_>>().join(" | ")
            }
            _ => self.sequence(id, level),
        }
    }

    fn sequence(&mut self, id: Id, level: Level) -> String {
        let tree = self.tree;
        match &tree.nodes[id] {
            Node::Sequence(parts) if parts.is_empty() => "\"\"".to_string(),
            Node::Sequence(parts) if level == Level::Terminal || !tree.is_terminal(id) => {
                let parts = parts.iter().map(|part| self.part(*part, level));
                parts.collect::<Vec<_>>().join(" ")
            }
            _ => self.part(id, level),
        }
    }

    /// An item of a sequence.
    fn part(&mut self, id: Id, level: Level) -> String {
        let tree = self.tree;
        let ends_here = level == Level::Rule && tree.is_terminal(id);
        match (&tree.nodes[id], level) {
            (Node::Class(class), _) => class_regex(class),
            (Node::Rule(rule), Level::Terminal) => format!("R{rule}"),
            (Node::Rule(rule), Level::Rule) => self.name(*rule),
            (Node::Literal(text), _) => literal(text),
            _ if ends_here => {
                let body = self.body(id, Level::Terminal);
                self.named_group('G', &body)
            }
            (Node::Repeat { what, min, max }, level) => {
                let inner = self.part(*what, level);
                let inner = match tree.nodes[*what] {
                    // Lark has no `a**`.
                    Node::Repeat { .. } => self.named_group(group(level), &inner),
                    _ => inner,
                };
                repeated(&inner, *min, *max)
            }
            (Node::Sequence(_) | Node::Choice(_), level) => {
                let body = self.body(id, level);
                self.named_group(group(level), &body)
            }
        }
    }

    fn named_group(&mut self, kind: char, body: &str) -> String {
        let name = format!("{kind}{}", self.named);
        self.named += 1;
        let _ = writeln!(self.out, "{name}: {body}");
        name
    }
}

/// The first letter of a group's name.
fn group(level: Level) -> char {
    match level {
        Level::Terminal => 'G',
        Level::Rule => 'g',
    }
}

fn repeated(what: &str, min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => format!("{what}*"),
        (1, None) => format!("{what}+"),
        (0, Some(1)) => format!("{what}?"),
        (min, None) => format!("{what}{{{min},}}"),
        (min, Some(max)) => format!("{what}{{{min},{max}}}"),
    }
}

fn class_regex(class: &Class) -> String {
    if class.ranges.is_empty() {
        return "/(?s:.)/".to_string();
    }
    let mut regex = String::from(if class.negated { "/[^" } else { "/[" });
    for (first, last) in &class.ranges {
        let (first, last) = (u32::from(*first), u32::from(*last));
        let _ = write!(regex, "\\x{{{first:x}}}-\\x{{{last:x}}}");
    }
    regex.push_str("]/");
    regex
}
