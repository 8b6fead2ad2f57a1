use std::sync::{Arc, Mutex};
use std::time::Duration;

use loquat_session::sequences::{MediaRules, SnapshotPolicy};
use loquat_session::{AdapterLimits, KvGroups};

use super::clock::{Cost, VirtualClock};

/// What the fake session simulates.
#[derive(Debug, Clone)]
pub struct FakeOptions {
    pub vocab_size: usize,
    /// The size of hidden states; `None` if it has none.
    pub hidden_size: Option<usize>,
    /// Whether rows can sample their token.
    pub draws: bool,
    pub max_context: usize,
    pub max_sequences: usize,
    pub max_step_tokens: usize,
    pub kv_capacity: usize,
    pub kv_granularity: usize,
    /// Layers by reach. Groups with windows free what is behind them, so that sequences can be
    /// forked and truncated only inside of them.
    pub kv_groups: KvGroups,
    /// When set, the fake is a recurrent model: sequences hold states besides their KV, and can be
    /// forked and truncated only at snapshots.
    pub snapshots: Option<SnapshotPolicy>,
    /// The number of states of a recurrent model, over all sequences. A row needs one in addition
    /// to its sequence's, so fewer than two per row run out.
    pub max_states: usize,
    /// A view has a position for each of its patches, a raw embedding for each `hidden_size`
    /// values. The default takes no media.
    pub media: MediaRules,
    /// Adapters change a sequence's outputs by their content and scale. The default takes some.
    pub adapters: AdapterLimits,
    /// Wall-clock time of each step.
    pub delay: Duration,
    /// No step runs while a test holds this lock, so that it can submit several requests at once.
    pub hold: Arc<Mutex<()>>,
    /// When set, each step advances this clock by its `cost`.
    pub clock: Option<Arc<VirtualClock>>,
    pub cost: Cost,
    /// When not empty, `script[(n - 1) % script.len()]` is by far the likeliest token after
    /// `n` tokens: a prompt of one token is answered with the script.
    pub script: Vec<u32>,
    /// When not empty, the script starts after the last occurrence of these tokens, such as those
    /// that open an assistant's turn, instead of after the first token.
    pub opening: Vec<u32>,
    /// When not empty, the reply after the n-th `opening` is the n-th of these instead of the
    /// script, and the last one after every further opening.
    pub replies: Vec<Vec<u32>>,
    /// Whether ranges and tails can be exported.
    pub ranges: bool,
    /// A row with this token is refused.
    pub poison: Option<u32>,
    /// Faults by step, counted from zero.
    pub faults: Vec<(usize, Fault)>,
}

impl Default for FakeOptions {
    fn default() -> Self {
        Self {
            vocab_size: 264,
            hidden_size: Some(8),
            draws: false,
            max_context: 4096,
            max_sequences: 64,
            max_step_tokens: 256,
            kv_capacity: 16 * 4096,
            kv_granularity: 16,
            kv_groups: KvGroups::uniform(4),
            snapshots: None,
            max_states: 4 * 64,
            media: MediaRules::default(),
            adapters: AdapterLimits {
                count: 8,
                bytes: 64 << 20,
                rank: 64,
            },
            delay: Duration::ZERO,
            hold: Arc::default(),
            clock: None,
            cost: Cost::default(),
            script: Vec::new(),
            opening: Vec::new(),
            replies: Vec::new(),
            ranges: true,
            poison: None,
            faults: Vec::new(),
        }
    }
}

impl FakeOptions {
    pub(super) fn fault_at(&self, step: usize) -> Option<Fault> {
        let mut faults = self.faults.iter();
        faults.find(|(at, _)| *at == step).map(|(_, fault)| *fault)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The device fails.
    Fail,
    /// The weights are lost.
    WeightsChanged,
    /// The backend has a bug.
    Panic,
    /// The backend breaks the contract: rows emit nothing.
    Withhold,
    /// Memory runs out: every row is refused.
    KvExhausted,
    /// The device fails only for the first row.
    RowFails,
}
