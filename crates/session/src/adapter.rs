//! Adapters of a session: loaded once, used by any number of sequences.
//!
//! A sequence gets its adapters when it is created and keeps them: its keys and values depend on
//! them. Rows of sequences with different adapters mix in one step.

use loquat_weights::AdapterWeights;

/// Names an adapter inside the session that loaded it. Never reused within a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdapterId(pub u64);

/// An adapter of a sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AppliedAdapter {
    /// Loaded by the same session.
    pub id: AdapterId,
    /// Multiplies the adapter's own scale; finite. 0 is as if the adapter were not listed. Weights
    /// that the adapter replaces as a whole are replaced with any other scale.
    pub scale: f32,
}

impl AppliedAdapter {
    /// At the strength it was trained with.
    pub fn whole(id: AdapterId) -> Self {
        Self { id, scale: 1.0 }
    }
}

/// What bounds the adapters of a session. The default is [`NONE`](Self::NONE).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AdapterLimits {
    /// Loaded at once.
    pub count: usize,
    /// Bytes of all that are loaded, on the device.
    pub bytes: u64,
    /// The largest rank.
    pub rank: usize,
}

impl AdapterLimits {
    /// The session takes no adapters.
    pub const NONE: Self = Self {
        count: 0,
        bytes: 0,
        rank: 0,
    };

    /// Adapters of one sequence.
    pub const PER_SEQUENCE: usize = 8;

    /// Room for exactly these adapters.
    pub fn holding<'a>(adapters: impl IntoIterator<Item = &'a AdapterWeights>) -> Self {
        let mut limits = Self::NONE;
        for adapter in adapters {
            limits.count += 1;
            limits.bytes += adapter.bytes();
            limits.rank = limits.rank.max(adapter.rank());
        }
        limits
    }

    /// Whether the session takes adapters.
    pub fn any(&self) -> bool {
        self.count > 0
    }
}
