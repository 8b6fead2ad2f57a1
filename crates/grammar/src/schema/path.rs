//! The path of a schema within its document.

use std::fmt;

use serde_json::Value;

/// A JSON pointer that is only written out when something is wrong there.
#[derive(Clone, Copy)]
pub(super) struct SchemaPath<'a> {
    parent: Option<&'a SchemaPath<'a>>,
    step: PathStep<'a>,
}

#[derive(Clone, Copy)]
enum PathStep<'a> {
    /// The target of a reference, as the reference writes it.
    Start(&'a str),
    Key(&'a str),
    Index(usize),
}

impl<'a> SchemaPath<'a> {
    pub(super) fn start(reference: &'a str) -> Self {
        Self {
            parent: None,
            step: PathStep::Start(reference),
        }
    }

    /// Whether this is the root schema.
    pub(super) fn is_root(&self) -> bool {
        self.parent.is_none() && matches!(self.step, PathStep::Start("#"))
    }

    pub(super) fn key<'b>(&'b self, key: &'b str) -> SchemaPath<'b>
    where
        'a: 'b,
    {
        SchemaPath {
            parent: Some(self),
            step: PathStep::Key(key),
        }
    }

    pub(super) fn index<'b>(&'b self, index: usize) -> SchemaPath<'b>
    where
        'a: 'b,
    {
        SchemaPath {
            parent: Some(self),
            step: PathStep::Index(index),
        }
    }
}

impl fmt::Display for SchemaPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            PathStep::Start(reference) => f.write_str(reference),
            PathStep::Key(key) => write!(f, "/{}", key.replace('~', "~0").replace('/', "~1")),
            PathStep::Index(index) => write!(f, "/{index}"),
        }
    }
}

/// The target of a reference, if it is within `root`.
pub(super) fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = percent_decoded(reference.strip_prefix('#')?)?;
    match pointer.as_str() {
        // Some generators write the root this way.
        "/" => Some(root),
        pointer => root.pointer(pointer),
    }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_resolve_as_json_pointers() {
        let root = json!({"$defs": {"a/b": 1, "c~d": 2, "é": [3, 4]}});
        let cases = [
            ("#", Some(&root)),
            ("#/$defs/a~1b", Some(&root["$defs"]["a/b"])),
            ("#/%24defs/c~0d", Some(&root["$defs"]["c~d"])),
            ("#/$defs/%C3%A9/1", Some(&root["$defs"]["é"][1])),
            ("#/$defs/none", None),
            ("#name", None),
            ("other.json#/$defs", None),
            ("#/%2", None),
        ];
        for (reference, target) in cases {
            assert_eq!(resolve(&root, reference), target, "{reference}");
        }
    }

    #[test]
    fn schema_path_prints_as_pointer() {
        let root = SchemaPath::start("#");
        let properties = root.key("properties");
        let name = properties.key("a/b~c");
        assert_eq!(name.index(2).to_string(), "#/properties/a~1b~0c/2");
    }
}
