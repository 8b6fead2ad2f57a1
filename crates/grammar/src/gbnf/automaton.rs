//! Terminals as one automaton, to see where one of them ends and could go on.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};

use super::Class;
use super::tree::{Id, Node, Tree};

/// A set of characters that the grammar tells apart, by number.
pub(super) type Letters = BTreeSet<u32>;

/// Numbers for the stretches of characters between all borders that the grammar mentions.
pub(super) struct Alphabet {
    /// The first character of each stretch.
    borders: Vec<u32>,
}

impl Alphabet {
    pub(super) fn of(tree: &Tree) -> Self {
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

/// Repetitions beyond this are taken for endless ones; what that changes is only that a terminal
/// may be split without need.
const LONGEST_REPEAT: u32 = 32;

/// How much may be looked at; a grammar that needs more keeps the terminals it has by then.
pub(super) struct Budget(Cell<usize>);

impl Budget {
    /// A second or so at worst; published grammars take less than a hundredth of it.
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

/// A place in a terminal where one character stands.
struct Place {
    letters: Letters,
    next: BTreeSet<usize>,
    terminal: Id,
    /// Whether the terminal may end here.
    ends: bool,
}

/// Where something begins and ends.
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
    places: Vec<Place>,
    terminals: HashMap<Id, Fragment>,
    /// The terminal that is being taken in.
    current: Id,
}

impl<'a> Automaton<'a> {
    pub(super) fn new(tree: &'a Tree, alphabet: &'a Alphabet, budget: &'a Budget) -> Self {
        Self {
            tree,
            alphabet,
            budget,
            places: Vec::new(),
            terminals: HashMap::new(),
            current: 0,
        }
    }

    /// Takes a terminal in; says whether it may be empty, and what it may begin with.
    pub(super) fn add(&mut self, terminal: Id) -> (bool, Letters) {
        if !self.terminals.contains_key(&terminal) {
            self.current = terminal;
            let fragment = self.fragment(terminal);
            for &place in &fragment.last {
                self.places[place].ends = true;
            }
            self.terminals.insert(terminal, fragment);
        }
        let fragment = &self.terminals[&terminal];
        let first = fragment
            .first
            .iter()
            .flat_map(|place| &self.places[*place].letters);
        (fragment.nullable, first.copied().collect())
    }

    fn fragment(&mut self, id: Id) -> Fragment {
        if self.budget.is_spent() {
            return Fragment::default();
        }
        match &self.tree.nodes[id] {
            Node::Literal(text) => {
                let places = text.chars().map(|c| {
                    let letter = self.alphabet.letter(c.into());
                    self.place(Letters::from([letter]))
                });
                let places: Vec<Fragment> = places.collect();
                places
                    .into_iter()
                    .fold(empty(), |one, next| self.then(one, next))
            }
            Node::Class(class) => {
                let letters = self.alphabet.class(class);
                self.place(letters)
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
            Node::Repeat { what, least, most } => self.repeat(*what, *least, *most),
        }
    }

    fn repeat(&mut self, what: Id, least: u32, most: Option<u32>) -> Fragment {
        let most = most.filter(|most| *most <= LONGEST_REPEAT);
        let least = least.min(LONGEST_REPEAT);
        let mut all = empty();
        for _ in 0..least {
            let next = self.fragment(what);
            all = self.then(all, next);
        }
        match most {
            Some(most) => {
                for _ in least..most {
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

    fn place(&mut self, letters: Letters) -> Fragment {
        self.budget.spend(letters.len());
        self.places.push(Place {
            letters,
            next: BTreeSet::new(),
            terminal: self.current,
            ends: false,
        });
        let place = BTreeSet::from([self.places.len() - 1]);
        Fragment {
            nullable: false,
            first: place.clone(),
            last: place,
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
        for &place in from {
            self.places[place].next.extend(to);
        }
    }

    /// The terminals that could go on where one ends, with a character that may also follow it:
    /// the lexer would take it for theirs.
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
            let next = state.iter().flat_map(|place| &self.places[*place].next);
            let next: BTreeSet<usize> = next.copied().collect();
            let ending = state.iter().map(|place| &self.places[*place]);
            let ending: BTreeSet<Id> = ending
                .filter(|place| place.ends)
                .map(|place| place.terminal)
                .collect();
            for letters in ending.iter().filter_map(|terminal| follow.get(terminal)) {
                let further = next.iter().map(|place| &self.places[*place]);
                let further = further.filter(|place| !place.letters.is_disjoint(letters));
                conflicts.extend(further.map(|place| place.terminal));
            }
            states.extend(self.steps(&next));
        }
        conflicts
    }

    /// The sets of places that one character more leads to, out of those that may come next.
    fn steps(&self, next: &BTreeSet<usize>) -> Vec<BTreeSet<usize>> {
        let mut by_letter: HashMap<u32, BTreeSet<usize>> = HashMap::new();
        for &place in next {
            self.budget.spend(self.places[place].letters.len());
            for &letter in &self.places[place].letters {
                by_letter.entry(letter).or_default().insert(place);
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
