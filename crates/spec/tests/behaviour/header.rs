//! A GGUF header in memory.

use std::collections::HashMap;

use loquat_spec::GgufHeader;

#[derive(Clone)]
pub enum Entry {
    Text(&'static str),
    Whole(u64),
    Float(f64),
    Flag(bool),
    List(Vec<u64>),
    /// A type no family asks for.
    Other,
}

use Entry::{Flag, Float, List, Text, Whole};

#[derive(Clone, Default)]
pub struct Header {
    pub entries: HashMap<String, Entry>,
    pub tensors: HashMap<String, Vec<usize>>,
}

impl GgufHeader for Header {
    fn contains(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    fn str(&self, key: &str) -> Option<&str> {
        match self.entries.get(key)? {
            Text(text) => Some(text),
            _ => None,
        }
    }

    fn bool(&self, key: &str) -> Option<bool> {
        match self.entries.get(key)? {
            Flag(flag) => Some(*flag),
            _ => None,
        }
    }

    fn u64(&self, key: &str) -> Option<u64> {
        match self.entries.get(key)? {
            Whole(number) => Some(*number),
            _ => None,
        }
    }

    fn f64(&self, key: &str) -> Option<f64> {
        match self.entries.get(key)? {
            Float(number) => Some(*number),
            _ => None,
        }
    }

    fn u64s(&self, key: &str) -> Option<Vec<u64>> {
        match self.entries.get(key)? {
            List(list) => Some(list.clone()),
            _ => None,
        }
    }

    fn f64s(&self, _: &str) -> Option<Vec<f64>> {
        None
    }

    fn tensor_shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(Vec::as_slice)
    }
}

impl Header {
    pub fn set(&mut self, architecture: &str, key: &str, entry: Entry) {
        self.entries.insert(format!("{architecture}.{key}"), entry);
    }

    pub fn tensor(&mut self, name: &str, shape: &[usize]) {
        self.tensors.insert(name.to_owned(), shape.to_vec());
    }
}

/// A header of eight layers, untied, with the keys that every architecture needs.
pub fn header(architecture: &'static str) -> Header {
    let mut header = Header::default();
    header
        .entries
        .insert("general.architecture".into(), Text(architecture));
    let keys = [
        ("context_length", Whole(4096)),
        ("embedding_length", Whole(64)),
        ("block_count", Whole(8)),
        ("feed_forward_length", Whole(128)),
        ("attention.head_count", Whole(4)),
        ("attention.head_count_kv", Whole(2)),
        ("attention.layer_norm_rms_epsilon", Float(1e-6)),
        ("rope.freq_base", Float(5e5)),
    ];
    for (key, entry) in keys {
        header.set(architecture, key, entry);
    }
    if architecture == "gemma3" {
        header.set(architecture, "attention.sliding_window", Whole(512));
    }
    header.tensor("token_embd.weight", &[288, 64]);
    header.tensor("output.weight", &[288, 64]);
    header
}
