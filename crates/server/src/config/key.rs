//! API keys: generated here, shown once, stored as hashes.

use std::fmt;

use sha2::{Digest, Sha256};

use super::option_value::quoted;
use super::{KeyHash, Scope};

const PREFIX: &str = "sha256:";

/// The prefix of every key, for people and secret scanners.
const MARK: &str = "lq-";

impl KeyHash {
    pub fn digest(key: &str) -> Self {
        Self(Sha256::digest(key.as_bytes()).into())
    }

    /// `sha256:` and 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(PREFIX)?.as_bytes();
        let mut hash = [0; 32];
        if digits.len() != 2 * hash.len() {
            return None;
        }
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            let [high, low] = [pair[0], pair[1]].map(|digit| char::from(digit).to_digit(16));
            *byte = u8::try_from(high? * 16 + low?).ok()?;
        }
        Some(Self(hash))
    }

    /// The first digits, enough to distinguish hashes.
    pub fn shortened(&self) -> String {
        let whole = self.to_string();
        let shown = whole.get(..PREFIX.len() + 8);
        format!("{}…", shown.unwrap_or_default())
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A new key with 244 random bits.
pub fn generate() -> String {
    let halves = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()];
    let digits = halves.map(|half| half.simple().to_string());
    format!("{MARK}{}", digits.concat())
}

/// The `[[keys]]` table that allows a key.
pub fn entry(name: &str, hash: &KeyHash, scopes: &[Scope]) -> String {
    let scopes: Vec<_> = scopes.iter().map(|scope| quoted(scope.name())).collect();
    format!(
        "[[keys]]\nname = {}\nhash = \"{hash}\"\nscopes = [{}]\n",
        quoted(name),
        scopes.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sources;

    #[test]
    fn entry_parses_as_its_key() {
        let hash = KeyHash::digest("abc");
        let text = entry("te\"am\n", &hash, &[Scope::Metrics, Scope::Admin]);
        let file = Some(("f.toml".into(), text));
        let sources = Sources {
            file,
            ..Sources::default()
        };
        let key = sources.read().unwrap().config.keys.remove(0);
        assert_eq!((key.name.as_str(), key.hash), ("te\"am\n", hash));
        assert_eq!(key.scopes, [Scope::Metrics, Scope::Admin]);
    }

    #[test]
    fn hashes_are_sha256_in_hexadecimal() {
        // printf abc | sha256sum
        let abc = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(KeyHash::digest("abc").to_string(), abc);
        assert_eq!(KeyHash::parse(abc), Some(KeyHash::digest("abc")));
        assert_eq!(
            KeyHash::parse(&abc.to_uppercase().replace("SHA", "sha")),
            KeyHash::parse(abc)
        );
        assert_eq!(KeyHash::digest("abc").shortened(), "sha256:ba7816bf…");
        for wrong in [
            "",
            "sha256:",
            "abc",
            &abc[..70],
            &abc.replace('b', "g"),
            &abc[7..],
        ] {
            assert_eq!(KeyHash::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn generated_keys_differ() {
        let (one, other) = (generate(), generate());
        assert_ne!(one, other);
        assert_eq!(one.len(), MARK.len() + 64);
    }
}
