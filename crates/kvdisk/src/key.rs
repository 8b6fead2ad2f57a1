//! Names of blocks.

use std::fmt;
use std::ops::Range;

use sha2::{Digest, Sha256};

/// Changes when the bytes of a block get another meaning.
const VERSION: u32 = 2;

/// Names a block of tokens by everything that its keys and values depend on: a hash of its tokens
/// and of the key of the block before it, the first of which is a [`PrefixIdentity`]'s.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey([u8; 32]);

/// Positions of a prefix that show media.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaRun {
    /// The first one.
    pub at: usize,
    /// How many there are, at least one.
    pub len: usize,
    /// A hash of the content.
    pub content: [u8; 32],
    /// Which of the content's positions is the first one.
    pub offset: usize,
}

/// The tokens and media of a prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrefixContent {
    tokens: Vec<u32>,
    media: Vec<MediaRun>,
}

impl PrefixContent {
    /// In place of the tokens of media. No vocabulary has it.
    const MEDIA: u32 = u32::MAX;

    /// `media` are in the order of their positions, and within `tokens`, whose values there have no
    /// meaning.
    pub fn new(mut tokens: Vec<u32>, media: Vec<MediaRun>) -> Self {
        for run in &media {
            tokens[run.at..run.at + run.len].fill(Self::MEDIA);
        }
        Self { tokens, media }
    }

    /// Without media.
    pub fn text(tokens: &[u32]) -> Self {
        Self::new(tokens.to_vec(), Vec::new())
    }

    /// Positions.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Everything that the positions show. Those of media have no token, so which runs follow, and
    /// how many, depends on what comes before.
    fn hash(&self, positions: Range<usize>, hasher: &mut Sha256) {
        let tokens = &self.tokens[positions.clone()];
        let mut bytes = Vec::with_capacity(4 * tokens.len());
        bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        hasher.update(bytes);
        for run in &self.media {
            let start = run.at.max(positions.start);
            let end = (run.at + run.len).min(positions.end);
            if start < end {
                let place = [
                    start - positions.start,
                    end - start,
                    run.offset + start - run.at,
                ];
                for number in place {
                    hasher.update((number as u64).to_le_bytes());
                }
                hasher.update(run.content);
            }
        }
    }
}

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
    /// The key of the block at these positions, which follow this one.
    fn then(&self, prefix: &PrefixContent, positions: Range<usize>) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        prefix.hash(positions, &mut hasher);
        Self(hasher.finalize().into())
    }

    /// The key of the tail of a sequence that ends with these positions, after the block of this key.
    pub fn tail(&self, prefix: &PrefixContent, positions: Range<usize>) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(b"loquat kv tail");
        hasher.update(self.0);
        prefix.hash(positions, &mut hasher);
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

    /// The keys of all whole blocks of a prefix, of which this one is the root.
    pub fn chain(&self, prefix: &PrefixContent, block_tokens: usize) -> Vec<Self> {
        let mut before = *self;
        let blocks = 0..prefix.len() / block_tokens;
        let keys = blocks.map(|block| {
            let start = block * block_tokens;
            before = before.then(prefix, start..start + block_tokens);
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
        let chain = |tokens: &[u32]| root.chain(&PrefixContent::text(tokens), 4);
        let keys = chain(&tokens);
        assert_eq!(keys.len(), 2);
        assert_eq!(keys, chain(&tokens[..8]));
        let mut other = tokens.clone();
        other[0] = 9;
        let changed = chain(&other);
        assert!(keys.iter().zip(&changed).all(|(a, b)| a != b));
    }

    /// In one block, over an edge, and in the tail; equal ones have equal names, whatever ids
    /// their placeholder tokens have.
    #[test]
    fn media_are_told_apart_by_content_and_place() {
        let root = IDENTITY.root();
        let names = |first: u32, media: Vec<MediaRun>| {
            let prefix = PrefixContent::new((first..first + 10).collect(), media);
            let keys = root.chain(&prefix, 4);
            [keys[0], keys[1], keys[1].tail(&prefix, 8..10)]
        };
        let run = |at, len, content, offset| MediaRun {
            at,
            len,
            content: [content; 32],
            offset,
        };
        let whole = names(0, vec![run(0, 10, 1, 0)]);
        assert_eq!(whole, names(50, vec![run(0, 10, 1, 0)]));
        let others = [
            names(0, Vec::new()),
            names(0, vec![run(0, 10, 2, 0)]),
            names(0, vec![run(0, 10, 1, 1)]),
            names(0, vec![run(0, 3, 1, 0), run(3, 7, 1, 0)]),
        ];
        for other in &others {
            assert!(whole.iter().zip(other).all(|(a, b)| a != b), "{other:?}");
        }
        // What precedes the first difference has the same names.
        let later = names(0, vec![run(0, 4, 1, 0), run(4, 6, 2, 0)]);
        assert_eq!((later[0], later[1] == whole[1]), (whole[0], false));
        let last = names(0, vec![run(0, 9, 1, 0), run(9, 1, 1, 8)]);
        assert_eq!(last[..2], whole[..2]);
        assert_ne!(last[2], whole[2]);
    }

    #[test]
    fn tails_and_parts_have_their_own_names() {
        let key = IDENTITY.root();
        let tokens: Vec<u32> = (0..4).collect();
        let tokens = PrefixContent::text(&tokens);
        let tail = key.tail(&tokens, 0..4);
        let names = [
            key,
            key.then(&tokens, 0..4),
            key.tail(&tokens, 0..0),
            key.tail(&tokens, 0..3),
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
