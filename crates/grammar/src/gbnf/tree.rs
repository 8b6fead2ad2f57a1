//! A grammar tree with numbered nodes.

use super::{Class, Expression, Grammar};

/// A part of the grammar.
pub(super) type Id = usize;

#[derive(Debug)]
pub(super) enum Node {
    Literal(String),
    Class(Class),
    Rule(usize),
    Sequence(Vec<Id>),
    Choice(Vec<Id>),
    Repeat {
        what: Id,
        min: u32,
        max: Option<u32>,
    },
}

#[derive(Debug)]
pub(super) struct Tree {
    pub nodes: Vec<Node>,
    /// The body of each rule.
    pub rules: Vec<Id>,
    pub root: usize,
    /// Which nodes lead to no recursive rule.
    flat: Vec<bool>,
    /// Flat nodes that are not terminals nevertheless.
    split: Vec<bool>,
}

impl Tree {
    pub(super) fn new(grammar: &Grammar) -> Self {
        let recursive = recursive(&grammar.rules);
        let mut tree = Self {
            nodes: Vec::new(),
            rules: Vec::new(),
            root: grammar.root,
            flat: Vec::new(),
            split: Vec::new(),
        };
        for rule in &grammar.rules {
            let body = tree.add(rule, &recursive);
            tree.rules.push(body);
        }
        tree
    }

    /// Whether a node is matched by one automaton.
    pub(super) fn is_terminal(&self, id: Id) -> bool {
        let own = self.flat[id] && !self.split[id];
        match self.nodes[id] {
            Node::Rule(rule) => own && self.is_terminal(self.rules[rule]),
            _ => own,
        }
    }

    pub(super) fn is_flat(&self, id: Id) -> bool {
        self.flat[id]
    }

    /// Makes smaller terminals of one; a single character is as small as they get.
    pub(super) fn split(&mut self, id: Id) -> bool {
        let characters: Vec<String> = match &self.nodes[id] {
            _ if self.split[id] => return false,
            Node::Class(_) => return false,
            Node::Literal(text) => text.chars().map(String::from).collect(),
            _ => Vec::new(),
        };
        match characters.len() {
            0 => {}
            1 => return false,
            _ => {
                let characters = characters.into_iter().map(Node::Literal);
                let parts = characters
                    .map(|character| self.push(character, true))
                    .collect();
                self.nodes[id] = Node::Sequence(parts);
            }
        }
        self.split[id] = true;
        true
    }

    /// The node of a terminal: a rule is one terminal wherever it is mentioned.
    pub(super) fn terminal(&self, id: Id) -> Id {
        match self.nodes[id] {
            Node::Rule(rule) => self.terminal(self.rules[rule]),
            _ => id,
        }
    }

    fn add(&mut self, expression: &Expression, recursive: &[bool]) -> Id {
        let node = match expression {
            Expression::Literal(text) => Node::Literal(text.clone()),
            Expression::Class(class) => Node::Class(class.clone()),
            Expression::Rule(rule) => Node::Rule(*rule),
            Expression::Choice(parts) => Node::Choice(self.add_all(parts, recursive)),
            Expression::Sequence(parts) => self.sequence(parts, recursive),
            Expression::Repeat { what, min, max } => Node::Repeat {
                what: self.add(what, recursive),
                min: *min,
                max: *max,
            },
        };
        self.push(node, is_flat(expression, recursive))
    }

    fn add_all(&mut self, parts: &[Expression], recursive: &[bool]) -> Vec<Id> {
        parts.iter().map(|part| self.add(part, recursive)).collect()
    }

    /// Flat neighbours in a recursive sequence are one node, and so one terminal.
    fn sequence(&mut self, parts: &[Expression], recursive: &[bool]) -> Node {
        let flat = |part: &Expression| is_flat(part, recursive);
        if parts.iter().all(flat) {
            return Node::Sequence(self.add_all(parts, recursive));
        }
        let runs = parts.chunk_by(|one, next| flat(one) && flat(next));
        let runs = runs.map(|run| match run {
            [one] => self.add(one, recursive),
            several => {
                let several = Node::Sequence(self.add_all(several, recursive));
                self.push(several, true)
            }
        });
        Node::Sequence(runs.collect())
    }

    fn push(&mut self, node: Node, flat: bool) -> Id {
        self.nodes.push(node);
        self.flat.push(flat);
        self.split.push(false);
        self.nodes.len() - 1
    }
}

fn is_flat(expression: &Expression, recursive: &[bool]) -> bool {
    let mut rules = Vec::new();
    mentioned(expression, &mut rules);
    !rules.iter().any(|rule| recursive[*rule])
}

fn mentioned(expression: &Expression, rules: &mut Vec<usize>) {
    match expression {
        Expression::Literal(_) | Expression::Class(_) => {}
        Expression::Rule(number) => rules.push(*number),
        Expression::Sequence(parts) | Expression::Choice(parts) => {
            parts.iter().for_each(|part| mentioned(part, rules));
        }
        Expression::Repeat { what, .. } => mentioned(what, rules),
    }
}

/// Which rules lead to a cycle. A rule is flat once all that it mentions is.
fn recursive(rules: &[Expression]) -> Vec<bool> {
    let mut waiting = vec![0; rules.len()];
    let mut mentioned_by = vec![Vec::new(); rules.len()];
    for (number, rule) in rules.iter().enumerate() {
        let mut others = Vec::new();
        mentioned(rule, &mut others);
        waiting[number] = others.len();
        for other in others {
            mentioned_by[other].push(number);
        }
    }
    let mut flat: Vec<usize> = (0..rules.len())
        .filter(|rule| waiting[*rule] == 0)
        .collect();
    let mut recursive = vec![true; rules.len()];
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
