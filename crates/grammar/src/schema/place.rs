//! Where in a schema something stands.

use std::fmt;

use serde_json::Value;

/// A JSON pointer that is only written out when something is wrong there.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    parent: Option<&'a Place<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    /// The target of a reference, as the reference writes it.
    Start(&'a str),
    Key(&'a str),
    Index(usize),
}

impl<'a> Place<'a> {
    pub(super) fn start(reference: &'a str) -> Self {
        Self {
            parent: None,
            step: Step::Start(reference),
        }
    }

    /// Whether this is the whole schema.
    pub(super) fn is_root(&self) -> bool {
        self.parent.is_none() && matches!(self.step, Step::Start("#"))
    }

    pub(super) fn key<'b>(&'b self, key: &'b str) -> Place<'b>
    where
        'a: 'b,
    {
        Place {
            parent: Some(self),
            step: Step::Key(key),
        }
    }

    pub(super) fn index<'b>(&'b self, index: usize) -> Place<'b>
    where
        'a: 'b,
    {
        Place {
            parent: Some(self),
            step: Step::Index(index),
        }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Start(reference) => f.write_str(reference),
            Step::Key(key) => write!(f, "/{}", key.replace('~', "~0").replace('/', "~1")),
            Step::Index(index) => write!(f, "/{index}"),
        }
    }
}

/// What a reference points to, if it points into `root` at all.
pub(super) fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = percent_decoded(reference.strip_prefix('#')?)?;
    match pointer.as_str() {
        // Some generators write the root so.
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
    fn references_are_pointers_into_the_document() {
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
    fn a_place_is_written_as_a_pointer() {
        let root = Place::start("#");
        let properties = root.key("properties");
        let name = properties.key("a/b~c");
        assert_eq!(name.index(2).to_string(), "#/properties/a~1b~0c/2");
    }
}
