//! Splits terminals that would consume what must follow them.

use std::collections::HashMap;

use super::automaton::{Alphabet, Automaton, Budget, Letters};
use super::tree::{Id, Node, Tree};

/// Splits until every terminal ends correctly. Single characters always do.
pub(super) fn split(tree: &mut Tree) {
    let (alphabet, budget) = (Alphabet::from_tree(tree), Budget::new());
    let mut changed = true;
    while std::mem::take(&mut changed) && !budget.is_spent() {
        let mut automaton = Automaton::new(tree, &alphabet, &budget);
        let follow = Follow::compute(tree, &mut automaton, &budget);
        for terminal in automaton.conflicts(&follow) {
            changed |= tree.split(terminal);
        }
    }
}

/// The first characters of a part, and whether it may be empty.
#[derive(Clone, Default, PartialEq)]
struct First {
    nullable: bool,
    letters: Letters,
}

struct Follow<'a> {
    tree: &'a Tree,
    budget: &'a Budget,
    terminals: HashMap<Id, First>,
    first_of_rule: Vec<First>,
    after_rule: Vec<Letters>,
    after_terminal: HashMap<Id, Letters>,
    changed: bool,
}

impl<'a> Follow<'a> {
    /// The characters that may follow each terminal.
    fn compute(
        tree: &'a Tree,
        automaton: &mut Automaton<'_>,
        budget: &'a Budget,
    ) -> HashMap<Id, Letters> {
        let mut follow = Self {
            tree,
            budget,
            terminals: HashMap::new(),
            first_of_rule: vec![First::default(); tree.rules.len()],
            after_rule: vec![Letters::new(); tree.rules.len()],
            after_terminal: HashMap::new(),
            changed: true,
        };
        follow.find_terminals(automaton);
        follow.until_settled(|follow| {
            for rule in 0..follow.tree.rules.len() {
                let first = follow.first(follow.tree.rules[rule]);
                follow.changed |= first != follow.first_of_rule[rule];
                follow.first_of_rule[rule] = first;
            }
        });
        follow.until_settled(|follow| {
            for rule in 0..follow.tree.rules.len() {
                let after = follow.after_rule[rule].clone();
                follow.visit(follow.tree.rules[rule], &after);
            }
        });
        follow.after_terminal
    }

    fn until_settled(&mut self, pass: impl Fn(&mut Self)) {
        self.changed = true;
        while std::mem::take(&mut self.changed) && !self.budget.is_spent() {
            pass(self);
        }
    }

    /// Every terminal that a rule reachable from the root mentions.
    fn find_terminals(&mut self, automaton: &mut Automaton<'_>) {
        let mut waiting = vec![self.tree.rules[self.tree.root]];
        let mut seen = vec![false; self.tree.nodes.len()];
        while let Some(id) = waiting.pop() {
            if std::mem::replace(&mut seen[id], true) {
                continue;
            }
            if self.tree.is_terminal(id) {
                let terminal = self.tree.terminal(id);
                let (nullable, letters) = automaton.add(terminal);
                self.terminals.insert(terminal, First { nullable, letters });
                continue;
            }
            match &self.tree.nodes[id] {
                Node::Literal(_) | Node::Class(_) => {}
                Node::Rule(rule) => waiting.push(self.tree.rules[*rule]),
                Node::Sequence(parts) | Node::Choice(parts) => waiting.extend(parts),
                Node::Repeat { what, .. } => waiting.push(*what),
            }
        }
    }

    fn first(&self, id: Id) -> First {
        if self.budget.is_spent() {
            return First::default();
        }
        if self.tree.is_terminal(id) {
            let known = self.terminals.get(&self.tree.terminal(id));
            let known = known.cloned().unwrap_or_default();
            self.budget.spend(known.letters.len() + 1);
            return known;
        }
        match &self.tree.nodes[id] {
            Node::Literal(_) | Node::Class(_) => First::default(),
            Node::Rule(rule) => {
                let known = self.first_of_rule[*rule].clone();
                self.budget.spend(known.letters.len() + 1);
                known
            }
            Node::Choice(parts) => parts.iter().fold(First::default(), |mut all, part| {
                let first = self.first(*part);
                all.nullable |= first.nullable;
                all.letters.extend(first.letters);
                all
            }),
            Node::Sequence(parts) => {
                let mut all = First {
                    nullable: true,
                    ..First::default()
                };
                for part in parts {
                    if !all.nullable {
                        break;
                    }
                    let first = self.first(*part);
                    all.nullable = first.nullable;
                    all.letters.extend(first.letters);
                }
                all
            }
            Node::Repeat { what, min, .. } => {
                let mut first = self.first(*what);
                first.nullable |= *min == 0;
                first
            }
        }
    }

    fn visit(&mut self, id: Id, after: &Letters) {
        self.budget.spend(after.len() + 1);
        if self.budget.is_spent() {
            return;
        }
        if self.tree.is_terminal(id) {
            let known = self
                .after_terminal
                .entry(self.tree.terminal(id))
                .or_default();
            let before = known.len();
            known.extend(after);
            self.changed |= known.len() != before;
            return;
        }
        let tree = self.tree;
        match &tree.nodes[id] {
            Node::Literal(_) | Node::Class(_) => {}
            Node::Rule(rule) => {
                let known = &mut self.after_rule[*rule];
                let before = known.len();
                known.extend(after);
                self.changed |= known.len() != before;
            }
            Node::Choice(parts) => parts.iter().for_each(|part| self.visit(*part, after)),
            Node::Sequence(parts) => {
                let mut after = after.clone();
                for part in parts.iter().rev() {
                    self.visit(*part, &after);
                    let first = self.first(*part);
                    if !first.nullable {
                        after.clear();
                    }
                    after.extend(first.letters);
                }
            }
            Node::Repeat { what, .. } => {
                let mut after = after.clone();
                after.extend(self.first(*what).letters);
                self.visit(*what, &after);
            }
        }
    }
}
