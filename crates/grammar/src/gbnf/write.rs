//! Writes a grammar in Lark's notation, whose groups do not nest far: each gets a name.

use std::fmt::Write;

use super::{Class, Expression, Grammar};
use crate::lark::literal;

pub(super) fn write(grammar: &Grammar) -> String {
    let mut writer = Writer {
        recursive: recursive(grammar),
        out: String::new(),
        named: 0,
    };
    let root = writer.name(grammar.root);
    let _ = writeln!(writer.out, "start: {root}");
    for (number, rule) in grammar.rules.iter().enumerate() {
        let name = writer.name(number);
        let body = match writer.recursive[number] {
            true => writer.rule_body(rule),
            false => writer.terminal_body(rule),
        };
        let _ = writeln!(writer.out, "{name}: {body}");
    }
    writer.out
}

/// Which rules lead to a cycle, and so cannot be one terminal.
fn recursive(grammar: &Grammar) -> Vec<bool> {
    let mut mentions = vec![Vec::new(); grammar.rules.len()];
    for (rule, mentioned) in grammar.rules.iter().zip(&mut mentions) {
        collect(rule, mentioned);
    }
    // A rule is flat once all that it mentions is.
    let mut waiting: Vec<usize> = mentions.iter().map(Vec::len).collect();
    let mut mentioned_by = vec![Vec::new(); grammar.rules.len()];
    for (number, mentioned) in mentions.iter().enumerate() {
        for &other in mentioned {
            mentioned_by[other].push(number);
        }
    }
    let mut flat: Vec<usize> = (0..waiting.len()).filter(|n| waiting[*n] == 0).collect();
    let mut recursive = vec![true; grammar.rules.len()];
    while let Some(number) = flat.pop() {
        recursive[number] = false;
        for &other in &mentioned_by[number] {
            waiting[other] -= 1;
            if waiting[other] == 0 {
                flat.push(other);
            }
        }
    }
    recursive
}

fn collect(expression: &Expression, rules: &mut Vec<usize>) {
    match expression {
        Expression::Literal(_) | Expression::Class(_) => {}
        Expression::Rule(number) => rules.push(*number),
        Expression::Sequence(parts) | Expression::Choice(parts) => {
            parts.iter().for_each(|part| collect(part, rules));
        }
        Expression::Repeat { what, .. } => collect(what, rules),
    }
}

struct Writer {
    recursive: Vec<bool>,
    out: String,
    /// Groups that were given a name.
    named: usize,
}

impl Writer {
    /// Lark tells terminals by their capitals.
    fn name(&self, number: usize) -> String {
        match self.recursive[number] {
            true => format!("r{number}"),
            false => format!("R{number}"),
        }
    }

    fn is_flat(&self, expression: &Expression) -> bool {
        let mut rules = Vec::new();
        collect(expression, &mut rules);
        !rules.iter().any(|number| self.recursive[*number])
    }

    fn terminal_body(&mut self, expression: &Expression) -> String {
        match expression {
            Expression::Choice(parts) => {
                let parts: Vec<String> = parts.iter().map(|part| self.terminal_sequence(part)).collect();
                parts.join(" | ")
            }
            other => self.terminal_sequence(other),
        }
    }

    fn terminal_sequence(&mut self, expression: &Expression) -> String {
        match expression {
            Expression::Sequence(parts) if parts.is_empty() => "\"\"".to_string(),
            Expression::Sequence(parts) => {
                let parts: Vec<String> = parts.iter().map(|part| self.terminal(part)).collect();
                parts.join(" ")
            }
            other => self.terminal(other),
        }
    }

    /// Something that can stand in a terminal beside others.
    fn terminal(&mut self, expression: &Expression) -> String {
        match expression {
            Expression::Literal(text) => literal(text),
            Expression::Class(class) => class_regex(class),
            Expression::Rule(number) => self.name(*number),
            Expression::Repeat { what, least, most } => {
                let what = self.terminal(what);
                repeated(&what, *least, *most)
            }
            group => {
                let body = self.terminal_body(group);
                self.named_group('G', &body)
            }
        }
    }

    fn rule_body(&mut self, expression: &Expression) -> String {
        match expression {
            Expression::Choice(parts) => {
                let parts: Vec<String> = parts.iter().map(|part| self.rule_sequence(part)).collect();
                parts.join(" | ")
            }
            other => self.rule_sequence(other),
        }
    }

    /// Neighbours that do not recurse are one terminal.
    fn rule_sequence(&mut self, expression: &Expression) -> String {
        let Expression::Sequence(parts) = expression else {
            return self.part(expression);
        };
        let runs: Vec<&[Expression]> = parts
            .chunk_by(|one, next| self.is_flat(one) && self.is_flat(next))
            .collect();
        let written: Vec<String> = runs
            .into_iter()
            .map(|run| match run {
                [one] => self.part(one),
                several => self.part(&Expression::Sequence(several.to_vec())),
            })
            .collect();
        match written.is_empty() {
            true => "\"\"".to_string(),
            false => written.join(" "),
        }
    }

    /// Something that can stand in a rule beside others.
    fn part(&mut self, expression: &Expression) -> String {
        match expression {
            Expression::Rule(number) => self.name(*number),
            flat if self.is_flat(flat) => {
                let body = self.terminal_body(flat);
                self.named_group('G', &body)
            }
            Expression::Repeat { what, least, most } => {
                let what = self.part(what);
                repeated(&what, *least, *most)
            }
            group => {
                let body = self.rule_body(group);
                self.named_group('g', &body)
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

fn repeated(what: &str, least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => format!("{what}*"),
        (1, None) => format!("{what}+"),
        (0, Some(1)) => format!("{what}?"),
        (least, None) => format!("{what}{{{least},}}"),
        (least, Some(most)) => format!("{what}{{{least},{most}}}"),
    }
}

fn class_regex(class: &Class) -> String {
    if class.ranges.is_empty() {
        return "/(?s:.)/".to_string();
    }
    let mut regex = String::from(if class.negated { "/[^" } else { "/[" });
    for (first, last) in &class.ranges {
        let _ = write!(regex, "\\x{{{:x}}}-\\x{{{:x}}}", u32::from(*first), u32::from(*last));
    }
    regex.push_str("]/");
    regex
}
