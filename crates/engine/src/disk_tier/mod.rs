//! Cached prefixes on disk: which are written and when, and which are read for a request.
//!
//! Sequences enter the prefix cache when they end; from then on their blocks are exported, oldest
//! sequence first, and written by a thread of the cache on disk. The session exports on the engine's
//! thread, so that is done in slices: between steps, slices take a small share of the time that the
//! steps take; without anything to compute, one follows the other until a command arrives. What is
//! left when the engine ends is exported then.
//!
//! A request whose prefix is not in memory asks the disk when it arrives, and stays in the queue
//! while blocks are read. They are imported into a sequence of their own, which then enters the
//! prefix cache: admission finds it there like any other.
//!
//! Sessions that can only cut at snapshots need a tail besides the blocks, which exists at the exact
//! end of a cached sequence, and where it replaced a shorter one. A prompt continues the longest
//! sequence that has one.
//!
//! Positions of media are named by their content, whose keys in memory are this process's own. A
//! block also says where they are; their encodings have no files.

mod export;
mod load;

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use loquat_kvdisk::{BlockKey, DiskCache, DiskOptions, DiskStats, PrefixContent, PrefixIdentity};
use loquat_session::{AdapterId, PrefixCopy, SequenceId, Session, SessionError};

use crate::EngineError;
use crate::adapters::Scope;
use crate::prefix_cache::PrefixCache;
use crate::scheduler::StepMix;
use crate::worker::Command;

use export::Export;
use load::Load;

/// Tokens of a block: the next turn of a conversation computes at most this many tokens again, and a
/// file is some megabytes long.
pub(crate) const BLOCK_TOKENS: usize = 64;

/// A step with fewer prompt tokens says little about the speed of prompts.
const MIN_MEASURED_TOKENS: usize = 32;

const FIELD: &str = "kv_disk";

/// The cached prefixes of an engine on disk.
pub(crate) struct DiskTier {
    /// By the request's ordinal. Before the cache, whose reader may wait for one of them.
    loads: BTreeMap<u64, Load>,
    disk: DiskCache,
    model: u64,
    /// Sequences cannot be continued without the tail at their end.
    needs_tails: bool,
    /// A tail was larger than its share of the folder, so that none are stored.
    tails_too_large: bool,
    /// Cached sequences that may have blocks or tails to export, and the lengths of those tails,
    /// oldest first.
    pending: VecDeque<(SequenceId, usize)>,
    current: Option<Export>,
    /// Fingerprints of loaded adapters.
    adapters: BTreeMap<AdapterId, u64>,
    /// Prompt tokens per second.
    prompt_speed: Speed,
    /// Bytes per second.
    import_speed: Speed,
    /// Bytes per second.
    export_speed: Speed,
    bytes_per_token: Option<usize>,
    /// Of the last slice that was exported.
    slice_bytes: Option<usize>,
    /// Time that steps have left for exporting.
    credit: Duration,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    hits: u64,
    hit_tokens: u64,
    lost: u64,
}

impl DiskTier {
    /// Refused if the session cannot export parts of sequences, without a prefix cache, and if the
    /// folder cannot be used. `None` if it is not required then.
    pub fn open(
        options: &DiskOptions,
        session: &dyn Session,
        has_cache: bool,
        commands: mpsc::Sender<Command>,
    ) -> Result<Option<Self>, EngineError> {
        match Self::try_open(options, session, has_cache, commands) {
            Ok(tier) => Ok(Some(tier)),
            Err(error) if options.required => Err(error),
            Err(error) => {
                tracing::info!(%error, "cached prefixes are not stored on disk");
                Ok(None)
            }
        }
    }

    fn try_open(
        options: &DiskOptions,
        session: &dyn Session,
        has_cache: bool,
        commands: mpsc::Sender<Command>,
    ) -> Result<Self, EngineError> {
        let refused = |why| EngineError::Unsupported { field: FIELD, why };
        let model = session.range_fingerprint().map_err(|error| match error {
            SessionError::Unsupported(why) => refused(why),
            error => error.into(),
        })?;
        if !has_cache {
            return Err(refused("the prefix cache is off for this model"));
        }
        // The engine has ended if nobody receives it.
        let wake = move || _ = commands.send(Command::Wake);
        let disk = DiskCache::open(options, (model, BLOCK_TOKENS), wake).map_err(|error| {
            EngineError::OutOfRange {
                field: FIELD,
                found: format!("in {} ({error})", options.folder.display()),
                expected: "in a folder that can be written to".to_owned(),
            }
        })?;
        Ok(Self {
            loads: BTreeMap::new(),
            disk,
            model,
            needs_tails: session.capabilities().prefix_copy == PrefixCopy::AtSnapshots,
            tails_too_large: false,
            pending: VecDeque::new(),
            current: None,
            adapters: BTreeMap::new(),
            prompt_speed: Speed::default(),
            import_speed: Speed::default(),
            export_speed: Speed::default(),
            bytes_per_token: None,
            slice_bytes: None,
            credit: Duration::ZERO,
            counts: Counts::default(),
        })
    }

    /// The keys of the blocks of a prefix in a scope. Empty if an adapter is unknown.
    fn keys(&self, scope: &Scope, prefix: &PrefixContent) -> Vec<BlockKey> {
        let adapters = scope.adapters().iter();
        let known = adapters.map(|(id, scale)| Some((*self.adapters.get(id)?, *scale)));
        let Some(adapters) = known.collect::<Option<Vec<_>>>() else {
            return Vec::new();
        };
        let identity = PrefixIdentity {
            model: self.model,
            block_tokens: BLOCK_TOKENS,
            scope: scope.name.as_deref(),
            adapters: &adapters,
        };
        identity.root().chain(prefix, BLOCK_TOKENS)
    }

    /// The key of the tail of a sequence with these blocks. `None` if it is not stored: because of its
    /// size, and if the sequence is shorter than a block.
    fn tail_key(&self, keys: &[BlockKey], prefix: &PrefixContent) -> Option<BlockKey> {
        let stored = self.needs_tails && !self.tails_too_large;
        let last = keys.last().filter(|_| stored)?;
        Some(last.tail(prefix, keys.len() * BLOCK_TOKENS..prefix.len()))
    }

    pub fn add_adapter(&mut self, id: AdapterId, fingerprint: u64) {
        self.adapters.insert(id, fingerprint);
    }

    /// Learns from a step how fast prompts are computed.
    pub fn record_step(&mut self, mix: StepMix, took: Duration) {
        self.credit += took.mul_f64(export::BUSY_SHARE);
        if mix.prompt_tokens >= MIN_MEASURED_TOKENS {
            self.prompt_speed.record(mix.prompt_tokens, took);
        }
    }

    /// Whether a waiting request gets blocks from the disk.
    pub fn is_loading(&self, ordinal: u64) -> bool {
        self.loads.contains_key(&ordinal)
    }

    /// When to give up the load that waits longest.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.loads.values().map(Load::deadline).min()
    }

    /// Forgets what is stored, and what was to be.
    pub fn clear(&mut self) {
        self.pending.clear();
        self.current = None;
        self.disk.clear();
    }

    pub fn stats(&self, cache: &PrefixCache) -> DiskStats {
        // The first is the current one, if there is one.
        let pending = self
            .pending
            .iter()
            .skip(usize::from(self.current.is_some()));
        let tokens = pending.filter_map(|(id, len)| cache.entry(*id).map(|_| *len));
        let current = self.current.as_ref().map_or(0, Export::pending_tokens);
        let queued = self.disk.queued() * BLOCK_TOKENS;
        DiskStats {
            hits: self.counts.hits,
            hit_tokens: self.counts.hit_tokens,
            lost: self.counts.lost,
            pending_tokens: (tokens.sum::<usize>() + current + queued) as u64,
            ..self.disk.stats()
        }
    }
}

/// A mean of the last few measurements, per second; `None` before the first.
#[derive(Debug, Clone, Copy, Default)]
struct Speed(Option<f64>);

impl Speed {
    /// Under a virtual clock some work takes no time, which says nothing.
    fn record(&mut self, amount: usize, took: Duration) {
        if took.is_zero() || amount == 0 {
            return;
        }
        let speed = amount as f64 / took.as_secs_f64();
        self.0 = Some(self.0.map_or(speed, |mean| mean + (speed - mean) / 8.0));
    }
}
