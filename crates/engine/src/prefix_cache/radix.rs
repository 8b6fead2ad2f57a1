//! The prefix cache's index: a radix tree over token sequences.
//!
//! It finds common prefixes and nothing else: it knows neither sequences nor memory, and never
//! evicts.
//!
//! Nodes are in an arena and refer to each other by slot. A conversation cached after each turn
//! nests its keys thousands deep, so no walk, not even dropping, may recurse.

use std::collections::BTreeMap;
use std::mem;

/// The root's slot. The root alone has an empty edge, and is never released.
const ROOT: usize = 0;

/// A map from token sequences to values that stores common prefixes once. Every node but the root
/// holds a value or branches, so there are fewer than two nodes per key.
pub(super) struct Radix<T> {
    nodes: Vec<Node<T>>,
    /// Free slots of `nodes`.
    free: Vec<usize>,
}

struct Node<T> {
    /// The tokens between the parent and this node.
    edge: Box<[u32]>,
    value: Option<T>,
    /// Slots by the first token of their edge: ordered, so that walks are
    /// the same in every run.
    children: BTreeMap<u32, usize>,
}

impl<T> Node<T> {
    fn leaf(edge: &[u32]) -> Self {
        Self {
            edge: edge.into(),
            value: None,
            children: BTreeMap::new(),
        }
    }
}

impl<T> Radix<T> {
    pub fn new() -> Self {
        Self {
            nodes: vec![Node::leaf(&[])],
            free: Vec::new(),
        }
    }

    /// Inserts a value; returns the previous one.
    pub fn insert(&mut self, key: &[u32], value: T) -> Option<T> {
        let mut node = ROOT;
        let mut rest = key;
        while let Some(first) = rest.first() {
            let Some(&child) = self.nodes[node].children.get(first) else {
                node = self.grow(node, *first, rest);
                break;
            };
            let shared = shared_len(&self.nodes[child].edge, rest);
            if shared < self.nodes[child].edge.len() {
                self.split(child, shared);
            }
            node = child;
            rest = &rest[shared..];
        }
        self.nodes[node].value.replace(value)
    }

    /// Removes a key and the nodes that only it needed.
    pub fn remove(&mut self, key: &[u32]) -> Option<T> {
        let mut parent = ROOT;
        let mut node = ROOT;
        let mut rest = key;
        while let Some(first) = rest.first() {
            let child = *self.nodes[node].children.get(first)?;
            rest = rest.strip_prefix(&*self.nodes[child].edge)?;
            (parent, node) = (node, child);
        }
        let value = self.nodes[node].value.take()?;
        if node != ROOT && self.nodes[node].children.is_empty() {
            self.prune(parent, node);
            self.merge(parent);
        } else {
            self.merge(node);
        }
        Some(value)
    }

    /// Finds the longest known prefix of `key`.
    pub fn find(&self, key: &[u32]) -> Found<'_, T> {
        let mut node = ROOT;
        let mut len = 0;
        let mut on_path = Vec::new();
        loop {
            let here = &self.nodes[node];
            on_path.extend(here.value.as_ref().map(|value| (len, value)));
            let Some(&child) = key.get(len).and_then(|first| here.children.get(first)) else {
                break;
            };
            let edge = &self.nodes[child].edge;
            let shared = shared_len(edge, &key[len..]);
            node = child;
            len += shared;
            if shared < edge.len() {
                break;
            }
        }
        Found {
            len,
            on_path,
            tree: self,
            node,
        }
    }

    pub fn is_empty(&self) -> bool {
        let root = &self.nodes[ROOT];
        root.value.is_none() && root.children.is_empty()
    }

    /// Adds a leaf under `parent`, which has no child that begins with `first`.
    fn grow(&mut self, parent: usize, first: u32, edge: &[u32]) -> usize {
        let leaf = self.occupy(Node::leaf(edge));
        self.nodes[parent].children.insert(first, leaf);
        leaf
    }

    /// Splits a node's edge after `at` tokens. The upper half keeps the slot, so the parent does
    /// not change.
    fn split(&mut self, node: usize, at: usize) {
        let (upper, lower) = self.nodes[node].edge.split_at(at);
        let (first, upper, lower) = (lower[0], Node::leaf(upper), lower.into());
        let whole = mem::replace(&mut self.nodes[node], upper);
        let child = self.occupy(Node {
            edge: lower,
            ..whole
        });
        self.nodes[node].children.insert(first, child);
    }

    /// Removes a leaf from its parent.
    fn prune(&mut self, parent: usize, leaf: usize) {
        let Node { edge, .. } = self.release(leaf);
        self.nodes[parent].children.remove(&edge[0]);
    }

    /// Merges a node without a value with its only child.
    fn merge(&mut self, node: usize) {
        if node == ROOT || self.nodes[node].value.is_some() {
            return;
        }
        let mut children = self.nodes[node].children.values();
        let (Some(&child), None) = (children.next(), children.next()) else {
            return;
        };
        let lower = self.release(child);
        let edge = [&*self.nodes[node].edge, &*lower.edge].concat().into();
        self.nodes[node] = Node { edge, ..lower };
    }

    fn occupy(&mut self, node: Node<T>) -> usize {
        let Some(slot) = self.free.pop() else {
            self.nodes.push(node);
            return self.nodes.len() - 1;
        };
        self.nodes[slot] = node;
        slot
    }

    fn release(&mut self, slot: usize) -> Node<T> {
        self.free.push(slot);
        mem::replace(&mut self.nodes[slot], Node::leaf(&[]))
    }
}

/// The longest known prefix of a key.
pub(super) struct Found<'a, T> {
    /// Length of the prefix.
    pub len: usize,
    on_path: Vec<(usize, &'a T)>,
    tree: &'a Radix<T>,
    /// The highest node at or below the end of the prefix.
    node: usize,
}

impl<'a, T> Found<'a, T> {
    /// Values whose keys begin with the prefix, in key order.
    pub fn through(&self) -> impl Iterator<Item = &'a T> + use<'a, T> {
        let nodes = &self.tree.nodes;
        let mut pending = vec![self.node];
        std::iter::from_fn(move || {
            let node = &nodes[pending.pop()?];
            pending.extend(node.children.values().rev());
            Some(&node.value)
        })
        .flatten()
    }

    /// Values whose keys are prefixes of the key, shortest first, each with its key's length.
    pub fn on_path(&self) -> &[(usize, &'a T)] {
        &self.on_path
    }
}

fn shared_len(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use loquat_synthetic::SplitMix64;

    use super::{ROOT, Radix};

    /// A plain map to compare with.
    type Model = BTreeMap<Vec<u32>, u32>;

    fn check_invariants(tree: &Radix<u32>) {
        let mut seen: BTreeSet<usize> = tree.free.iter().copied().collect();
        assert_eq!(seen.len(), tree.free.len(), "a slot is free twice");
        let mut pending = vec![ROOT];
        while let Some(slot) = pending.pop() {
            assert!(seen.insert(slot), "slot {slot} is free or has two parents");
            let node = &tree.nodes[slot];
            assert_eq!(node.edge.is_empty(), slot == ROOT);
            assert!(
                slot == ROOT || node.value.is_some() || node.children.len() >= 2,
                "slot {slot} is of no use"
            );
            for (first, &child) in &node.children {
                assert_eq!(tree.nodes[child].edge.first(), Some(first));
                pending.push(child);
            }
        }
        assert_eq!(seen.len(), tree.nodes.len(), "a slot is lost");
        let mut freed = tree.free.iter().map(|&slot| &tree.nodes[slot]);
        assert!(
            freed.all(|node| node.value.is_none()),
            "a value outlived its key"
        );
    }

    fn check_find(tree: &Radix<u32>, model: &Model, key: &[u32]) {
        let found = tree.find(key);
        let shared = |other: &Vec<u32>| (0..=key.len()).rfind(|&n| other.starts_with(&key[..n]));
        let len = model.keys().filter_map(shared).max().unwrap_or(0);
        assert_eq!(found.len, len, "{key:?} in {model:?}");

        let through = model.iter().filter(|(k, _)| k.starts_with(&key[..len]));
        assert!(
            found.through().eq(through.map(|(_, v)| v)),
            "{key:?} in {model:?}"
        );

        // Beginnings of one key come shortest first in the order of keys, too.
        let on_path = model.iter().filter(|(k, _)| key.starts_with(k));
        let on_path: Vec<_> = on_path.map(|(k, v)| (k.len(), v)).collect();
        assert_eq!(found.on_path(), on_path, "{key:?} in {model:?}");
    }

    /// What the keys come to when shared beginnings count once.
    fn edge_tokens<T>(tree: &Radix<T>) -> usize {
        tree.nodes.iter().map(|node| node.edge.len()).sum()
    }

    fn check(tree: &Radix<u32>, model: &Model) {
        check_invariants(tree);
        assert_eq!(tree.is_empty(), model.is_empty());
        let beginnings = model
            .keys()
            .flat_map(|key| (1..=key.len()).map(|n| &key[..n]));
        let distinct: BTreeSet<&[u32]> = beginnings.collect();
        assert_eq!(edge_tokens(tree), distinct.len(), "{model:?}");
    }

    struct Random(SplitMix64);

    impl Random {
        fn below(&mut self, end: usize) -> usize {
            self.0.below(end)
        }

        /// Few letters and short keys, so that keys often share, nest and meet.
        fn key(&mut self) -> Vec<u32> {
            let (len, letters) = (self.below(9), 1 + self.below(3));
            (0..len).map(|_| self.below(letters) as u32).collect()
        }

        fn key_of(&mut self, model: &Model) -> Option<Vec<u32>> {
            let nth = self.below(model.len());
            model.keys().nth(nth).cloned()
        }
    }

    #[test]
    fn radix_agrees_with_plain_map() {
        for seed in 0..40 {
            let mut random = Random(SplitMix64::new(seed));
            let (mut tree, mut model) = (Radix::new(), Model::new());
            for op in 0..400 {
                let key = random.key();
                match random.below(4) {
                    0 => assert_eq!(tree.remove(&key), model.remove(&key)),
                    1 => {
                        let key = random.key_of(&model).unwrap_or(key);
                        assert_eq!(tree.remove(&key), model.remove(&key));
                    }
                    _ => assert_eq!(tree.insert(&key, op), model.insert(key, op)),
                }
                check(&tree, &model);
                check_find(&tree, &model, &random.key());
            }
            while let Some(key) = random.key_of(&model) {
                assert_eq!(tree.remove(&key), model.remove(&key));
                check(&tree, &model);
                check_find(&tree, &model, &key);
            }
            assert_eq!(tree.free.len() + 1, tree.nodes.len());
        }
    }

    #[test]
    fn find_returns_longest_prefix() {
        let keys: [&[u32]; 5] = [&[1, 2, 3, 4], &[1, 2, 5], &[1, 2], &[], &[7]];
        let mut tree = Radix::new();
        for (at, key) in keys.iter().enumerate() {
            assert_eq!(tree.insert(key, at), None);
        }
        assert_eq!(edge_tokens(&tree), 6);

        type Case<'a> = (&'a [u32], usize, &'a [usize], &'a [(usize, usize)]);
        let cases: [Case; 7] = [
            (&[], 0, &[3, 2, 0, 1, 4], &[(0, 3)]),
            (&[9, 1, 2], 0, &[3, 2, 0, 1, 4], &[(0, 3)]),
            (&[1], 1, &[2, 0, 1], &[(0, 3)]),
            (&[1, 2, 9], 2, &[2, 0, 1], &[(0, 3), (2, 2)]),
            (&[1, 2, 3], 3, &[0], &[(0, 3), (2, 2)]),
            (&[1, 2, 3, 9], 3, &[0], &[(0, 3), (2, 2)]),
            (&[1, 2, 5, 6], 3, &[1], &[(0, 3), (2, 2), (3, 1)]),
        ];
        for (key, len, through, on_path) in cases {
            let found = tree.find(key);
            assert_eq!(found.len, len, "{key:?}");
            assert!(found.through().eq(through), "{key:?}");
            let values = found.on_path().iter().map(|&(len, &value)| (len, value));
            assert!(values.eq(on_path.iter().copied()), "{key:?}");
        }
    }

    fn nest_and_unnest(depth: u32) {
        let longest: Vec<u32> = (0..depth).collect();
        let mut tree = Radix::new();
        // Longest first: each key then splits the top edge instead of walking down to the end.
        for len in (1..=depth).rev() {
            tree.insert(&longest[..len as usize], len);
        }
        assert_eq!(edge_tokens(&tree), longest.len());
        let found = tree.find(&longest);
        assert_eq!(found.len, longest.len());
        assert_eq!(found.on_path().len(), longest.len());
        assert!(tree.find(&[]).through().copied().eq(1..=depth));
        check_invariants(&tree);

        // Half stay, for the drop to go deep as well.
        assert_eq!(tree.remove(&longest), Some(depth));
        for len in 1..depth / 2 {
            assert_eq!(tree.remove(&longest[..len as usize]), Some(len));
        }
        check_invariants(&tree);
    }

    #[test]
    fn deeply_nested_keys_need_no_stack() {
        // Too small for a frame per nested key, however lean the frame.
        let thread = std::thread::Builder::new().stack_size(64 << 10);
        let run = thread.spawn(|| nest_and_unnest(20_000)).unwrap();
        run.join().unwrap();
    }
}
