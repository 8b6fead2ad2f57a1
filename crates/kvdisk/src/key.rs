//! Names of blocks.

use std::fmt;

use sha2::{Digest, Sha256};

/// Changes when the bytes of a block get another meaning.
const VERSION: u32 = 1;

/// Names a block of tokens by everything that its keys and values depend on: a hash of its tokens
/// and of the key of the block before it, the first of which is a [`PrefixIdentity`]'s.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey([u8; 32]);

/// What the keys and values of a prefix depend on besides its tokens, and who may read them.
#[derive(Debug, Clone, Copy)]
pub struct PrefixIdentity<'a> {
    /// The session's fingerprint of backend, model, KV format and arithmetic.
    pub model: u64,
    /// Tokens of a block.
    pub block_tokens: usize,
    /// Requests of different scopes never read each other's blocks.
    pub scope: Option<&'a str>,
    /// The fingerprint of each adapter and the bits of its scale.
    pub adapters: &'a [(u64, u32)],
}

impl PrefixIdentity<'_> {
    /// The key before the first block.
    pub fn root(&self) -> BlockKey {
        let Self {
            model,
            block_tokens,
            scope,
            adapters,
        } = self;
        let mut hasher = Sha256::new();
        hasher.update(b"loquat kv blocks");
        hasher.update(VERSION.to_le_bytes());
        hasher.update(model.to_le_bytes());
        hasher.update((*block_tokens as u64).to_le_bytes());
        // Lengths keep texts apart that could be cut differently.
        let mut text = |text: &str| {
            hasher.update((text.len() as u64).to_le_bytes());
            hasher.update(text);
        };
        text(env!("CARGO_PKG_VERSION"));
        match scope {
            None => text("everyone"),
            Some(scope) => {
                text("scope");
                text(scope);
            }
        }
        // Their order has no effect on what they compute.
        let mut adapters = adapters.to_vec();
        adapters.sort_unstable();
        for (fingerprint, scale) in adapters {
            hasher.update(fingerprint.to_le_bytes());
            hasher.update(scale.to_le_bytes());
        }
        BlockKey(hasher.finalize().into())
    }
}

impl BlockKey {
    /// The key of the block of `tokens` that follows this one.
    pub fn then(&self, tokens: &[u32]) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        let mut bytes = Vec::with_capacity(4 * tokens.len());
        bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        hasher.update(bytes);
        Self(hasher.finalize().into())
    }

    /// The key of the tail of a sequence that ends `tokens` after the block of this key.
    pub fn tail(&self, tokens: &[u32]) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(b"loquat kv tail");
        hasher.update(self.0);
        for token in tokens {
            hasher.update(token.to_le_bytes());
        }
        Self(hasher.finalize().into())
    }

    /// The key of a part of the tail of this key.
    pub fn part(&self, index: u64) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(b"loquat kv part");
        hasher.update(self.0);
        hasher.update(index.to_le_bytes());
        Self(hasher.finalize().into())
    }

    /// The keys of all whole blocks of `tokens`, of which this one is the root.
    pub fn chain(&self, tokens: &[u32], block_tokens: usize) -> Vec<Self> {
        let mut before = *self;
        let keys = tokens.chunks_exact(block_tokens).map(|block| {
            before = before.then(block);
            before
        });
        keys.collect()
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }
}

/// 64 lower-case hexadecimal digits.
impl fmt::Display for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockKey({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: PrefixIdentity<'_> = PrefixIdentity {
        model: 7,
        block_tokens: 4,
        scope: Some("a"),
        adapters: &[],
    };

    #[test]
    fn root_depends_on_everything() {
        let adapted = PrefixIdentity {
            adapters: &[(1, 2), (3, 4)],
            ..IDENTITY
        };
        let reordered = PrefixIdentity {
            adapters: &[(3, 4), (1, 2)],
            ..IDENTITY
        };
        assert_eq!(adapted.root(), reordered.root());
        let others = [
            adapted,
            IDENTITY,
            PrefixIdentity {
                model: 8,
                ..IDENTITY
            },
            PrefixIdentity {
                block_tokens: 8,
                ..IDENTITY
            },
            PrefixIdentity {
                scope: None,
                ..IDENTITY
            },
            PrefixIdentity {
                scope: Some("everyone"),
                ..IDENTITY
            },
            PrefixIdentity {
                scope: Some(""),
                ..IDENTITY
            },
            PrefixIdentity {
                adapters: &[(1, 3)],
                ..IDENTITY
            },
        ];
        let roots: std::collections::BTreeSet<_> =
            others.iter().map(PrefixIdentity::root).collect();
        assert_eq!(roots.len(), others.len());
    }

    #[test]
    fn chain_covers_all_tokens_before_a_block() {
        let root = IDENTITY.root();
        let tokens: Vec<u32> = (0..11).collect();
        let keys = root.chain(&tokens, 4);
        assert_eq!(keys.len(), 2);
        assert_eq!(keys, root.chain(&tokens[..8], 4));
        let mut other = tokens.clone();
        other[0] = 9;
        let changed = root.chain(&other, 4);
        assert!(keys.iter().zip(&changed).all(|(a, b)| a != b));
    }

    #[test]
    fn tails_and_parts_have_their_own_names() {
        let key = IDENTITY.root();
        let tokens: Vec<u32> = (0..4).collect();
        let tail = key.tail(&tokens);
        let names = [
            key,
            key.then(&tokens),
            key.tail(&[]),
            key.tail(&tokens[..3]),
            tail,
            tail.part(0),
            tail.part(1),
        ];
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }

    #[test]
    fn name_is_read_back() {
        let key = IDENTITY.root();
        assert_eq!(BlockKey::from_hex(&key.to_string()), Some(key));
        for wrong in ["", "ab", &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(BlockKey::from_hex(wrong), None, "{wrong}");
        }
    }
}
