//! One automaton of all terminals, to find terminals that could end or continue at the same point.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};

use super::Class;
use super::tree::{Id, Node, Tree};

/// A set of characters that the grammar distinguishes, by number.
pub(super) type Letters = BTreeSet<u32>;

/// Numbers the ranges of characters between all boundaries in the grammar.
pub(super) struct Alphabet {
    /// The first character of each range.
    borders: Vec<u32>,
}

impl Alphabet {
    pub(super) fn from_tree(tree: &Tree) -> Self {
        let mut borders = BTreeSet::from([0]);
        for node in &tree.nodes {
            let ranges: Vec<(char, char)> = match node {
                Node::Literal(text) => text.chars().map(|c| (c, c)).collect(),
                Node::Class(class) => class.ranges.clone(),
                _ => Vec::new(),
            };
            for (first, last) in ranges {
                borders.extend([u32::from(first), u32::from(last) + 1]);
            }
        }
        Self {
            borders: borders.into_iter().collect(),
        }
    }

    fn letter(&self, code: u32) -> u32 {
        self.borders.partition_point(|border| *border <= code) as u32 - 1
    }

    fn class(&self, class: &Class) -> Letters {
        let inside: Letters = (class.ranges.iter())
            .flat_map(|(first, last)| self.letter((*first).into())..=self.letter((*last).into()))
            .collect();
        if class.negated {
            (0..self.borders.len() as u32)
                .filter(|letter| !inside.contains(letter))
                .collect()
        } else {
            inside
        }
    }
}

/// Longer repetitions count as unbounded, which may only split a terminal unnecessarily.
const MAX_REPEAT: u32 = 32;

/// The work limit. A grammar that needs more keeps the terminals found by then.
pub(super) struct Budget(Cell<usize>);

impl Budget {
    /// About a second at worst; published grammars need less than a hundredth of it.
    pub(super) fn new() -> Self {
        Self(Cell::new(2_000_000))
    }

    pub(super) fn spend(&self, amount: usize) {
        self.0.set(self.0.get().saturating_sub(amount));
    }

    pub(super) fn is_spent(&self) -> bool {
        self.0.get() == 0
    }
}

/// A position in a terminal that matches one character.
struct CharPosition {
    letters: Letters,
    next: BTreeSet<usize>,
    terminal: Id,
    /// Whether the terminal may end here.
    ends: bool,
}

/// The first and last positions of a part.
#[derive(Clone, Default)]
pub(super) struct Fragment {
    pub nullable: bool,
    first: BTreeSet<usize>,
    last: BTreeSet<usize>,
}

pub(super) struct Automaton<'a> {
    tree: &'a Tree,
    alphabet: &'a Alphabet,
    budget: &'a Budget,
    positions: Vec<CharPosition>,
    terminals: HashMap<Id, Fragment>,
    /// The terminal being added.
    current: Id,
}

impl<'a> Automaton<'a> {
    pub(super) fn new(tree: &'a Tree, alphabet: &'a Alphabet, budget: &'a Budget) -> Self {
        Self {
            tree,
            alphabet,
            budget,
            positions: Vec::new(),
            terminals: HashMap::new(),
            current: 0,
        }
    }

    /// Adds a terminal. Returns whether it may be empty, and its first characters.
    pub(super) fn add(&mut self, terminal: Id) -> (bool, Letters) {
        if !self.terminals.contains_key(&terminal) {
            self.current = terminal;
            let fragment = self.fragment(terminal);
            for &position in &fragment.last {
                self.positions[position].ends = true;
            }
            self.terminals.insert(terminal, fragment);
        }
        let fragment = &self.terminals[&terminal];
        let first = fragment
            .first
            .iter()
            .flat_map(|position| &self.positions[*position].letters);
        (fragment.nullable, first.copied().collect())
    }

    fn fragment(&mut self, id: Id) -> Fragment {
        if self.budget.is_spent() {
            return Fragment::default();
        }
        match &self.tree.nodes[id] {
            Node::Literal(text) => {
                let positions = text.chars().map(|c| {
                    let letter = self.alphabet.letter(c.into());
                    self.position(Letters::from([letter]))
                });
                let positions: Vec<Fragment> = positions.collect();
                positions
                    .into_iter()
                    .fold(empty(), |one, next| self.then(one, next))
            }
            Node::Class(class) => {
                let letters = self.alphabet.class(class);
                self.position(letters)
            }
            Node::Rule(rule) => self.fragment(self.tree.rules[*rule]),
            Node::Sequence(parts) => parts.iter().fold(empty(), |one, part| {
                let next = self.fragment(*part);
                self.then(one, next)
            }),
            Node::Choice(parts) => {
                let parts = parts.iter().map(|part| self.fragment(*part));
                parts.fold(Fragment::default(), either)
            }
            Node::Repeat { what, min, max } => self.repeat(*what, *min, *max),
        }
    }

    fn repeat(&mut self, what: Id, min: u32, max: Option<u32>) -> Fragment {
        let max = max.filter(|max| *max <= MAX_REPEAT);
        let min = min.min(MAX_REPEAT);
        let mut all = empty();
        for _ in 0..min {
            let next = self.fragment(what);
            all = self.then(all, next);
        }
        match max {
            Some(max) => {
                for _ in min..max {
                    let next = either(self.fragment(what), empty());
                    all = self.then(all, next);
                }
            }
            None => {
                let again = self.fragment(what);
                self.connect(&again.last, &again.first);
                all = self.then(all, either(again, empty()));
            }
        }
        all
    }

    fn position(&mut self, letters: Letters) -> Fragment {
        self.budget.spend(letters.len());
        self.positions.push(CharPosition {
            letters,
            next: BTreeSet::new(),
            terminal: self.current,
            ends: false,
        });
        let position = BTreeSet::from([self.positions.len() - 1]);
        Fragment {
            nullable: false,
            first: position.clone(),
            last: position,
        }
    }

    fn then(&mut self, one: Fragment, next: Fragment) -> Fragment {
        self.connect(&one.last, &next.first);
        let mut joined = Fragment {
            nullable: one.nullable && next.nullable,
            first: one.first,
            last: next.last,
        };
        if one.nullable {
            joined.first.extend(next.first);
        }
        if next.nullable {
            joined.last.extend(one.last);
        }
        joined
    }

    fn connect(&mut self, from: &BTreeSet<usize>, to: &BTreeSet<usize>) {
        self.budget.spend(from.len() * to.len());
        if self.budget.is_spent() {
            return;
        }
        for &position in from {
            self.positions[position].next.extend(to);
        }
    }

    /// The terminals that could continue where one ends, with a character that may also follow it:
    /// the lexer would consume that character.
    pub(super) fn conflicts(&self, follow: &HashMap<Id, Letters>) -> BTreeSet<Id> {
        let mut conflicts = BTreeSet::new();
        let start = self.terminals.values().flat_map(|fragment| &fragment.first);
        let start: BTreeSet<usize> = start.copied().collect();
        let mut seen = BTreeSet::new();
        let mut states = self.steps(&start);
        while let Some(state) = states.pop() {
            if self.budget.is_spent() {
                return BTreeSet::new();
            }
            if !seen.insert(state.clone()) {
                continue;
            }
            let next = state
                .iter()
                .flat_map(|position| &self.positions[*position].next);
            let next: BTreeSet<usize> = next.copied().collect();
            let ending = state.iter().map(|position| &self.positions[*position]);
            let ending: BTreeSet<Id> = ending
                .filter(|position| position.ends)
                .map(|position| position.terminal)
                .collect();
            for letters in ending.iter().filter_map(|terminal| follow.get(terminal)) {
                let further = next.iter().map(|position| &self.positions[*position]);
                let further = further.filter(|position| !position.letters.is_disjoint(letters));
                conflicts.extend(further.map(|position| position.terminal));
            }
            states.extend(self.steps(&next));
        }
        conflicts
    }

    /// The sets of positions reached by one more character.
    fn steps(&self, next: &BTreeSet<usize>) -> Vec<BTreeSet<usize>> {
        let mut by_letter: HashMap<u32, BTreeSet<usize>> = HashMap::new();
        for &position in next {
            self.budget.spend(self.positions[position].letters.len());
            for &letter in &self.positions[position].letters {
                by_letter.entry(letter).or_default().insert(position);
            }
        }
        let distinct: BTreeSet<BTreeSet<usize>> = by_letter.into_values().collect();
        distinct.into_iter().collect()
    }
}

fn empty() -> Fragment {
    Fragment {
        nullable: true,
        ..Fragment::default()
    }
}

fn either(one: Fragment, other: Fragment) -> Fragment {
    Fragment {
        nullable: one.nullable || other.nullable,
        first: one.first.into_iter().chain(other.first).collect(),
        last: one.last.into_iter().chain(other.last).collect(),
    }
}
