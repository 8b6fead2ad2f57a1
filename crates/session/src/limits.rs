//! Session options with defaults filled in, for backends: how much memory there is, and how
//! weights, KV and recurrent states share it.

use loquat_spec::{MediaAttention, ModelSpec};

use crate::{AdapterLimits, KvGroups, MemoryBound, MemoryBudget, OpenError, SessionOptions};

/// KV may use a quarter of the device's memory by default, which leaves room for weights and
/// other programs.
const KV_SHARE: u64 = 4;
/// If the device does not report its memory.
const ASSUMED_MEMORY: u64 = 8 << 30;
/// A sequence's state before a step and after it.
const STATES_TO_STEP: usize = 2;
/// Besides those, as many snapshots.
const STATES_PER_SEQUENCE: usize = 2 * STATES_TO_STEP;
/// A memory budget must hold a sequence of this many tokens: a short question and its answer.
const MIN_TOKENS: usize = 256;

/// The limits of a session on one device.
#[derive(Debug)]
pub struct Limits {
    /// Longest sequence.
    pub context: usize,
    /// Tokens' worth of KV.
    pub kv_tokens: usize,
    /// Recurrent states, snapshots among them.
    pub states: usize,
    /// Limited by the states that each needs for a step.
    pub max_sequences: usize,
    /// New tokens of a step: those of the options, or more if media must enter a step whole.
    pub step_tokens: usize,
    /// Bytes of weights, KV, states and buffers if all is used.
    pub resident_bytes: u64,
    /// What the limits were computed from.
    pub sizes: Sizes,
}

/// What the parts of a session take, and the memory they share.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// The device's memory; `None` if the system does not report it.
    pub device_bytes: Option<u64>,
    /// Bytes of a token's keys and values, by the reach of layers.
    pub kv_groups: KvGroups,
    /// Tokens of a KV page.
    pub granularity: usize,
    /// Bytes of one recurrent state; 0 without recurrent layers.
    pub state_bytes: u64,
    /// Weights in memory that the session allocates.
    pub weight_bytes: u64,
    /// Weights in the mapped file, which the system can drop and read again.
    pub mapped_bytes: u64,
    /// Bytes of the buffers that a step uses.
    pub buffer_bytes: u64,
    /// The default: the session takes no media.
    pub media: MediaSizes,
    /// Those of the options, or none if the backend takes no adapters.
    pub adapters: AdapterLimits,
}

/// The memory of encoded media.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MediaSizes {
    /// Bytes of one position's features.
    pub bytes_per_position: u64,
    /// Positions that may be encoded at once.
    pub positions: usize,
    /// Patches of a view at most.
    pub max_patches: usize,
    /// Which positions must enter a step together.
    pub attention: MediaAttention,
}

/// Encoded positions of a session by default: several large pictures.
const MEDIA_POSITIONS: usize = 8192;
/// Patches of a view at most, which bounds the buffers of the tower: Qwen2-VL's default.
const MAX_PATCHES: usize = 16384;
/// Positions of the largest views that models read whole: Gemma 4 at its highest resolution.
const WHOLE_VIEW: usize = 1120;
/// The longest prompt that a model reads whole.
const WHOLE_PROMPT: usize = 2048;

impl MediaSizes {
    /// For sessions that keep features of `value_bytes` per value on the device, and run the tower
    /// if the model has one.
    pub fn new(spec: &ModelSpec, options: &SessionOptions, value_bytes: usize) -> Self {
        let default = if spec.vision.is_some() {
            MEDIA_POSITIONS
        } else {
            0
        };
        let positions = options.media_positions.unwrap_or(default);
        if positions == 0 {
            return Self {
                attention: spec.media_attention(),
                ..Self::default()
            };
        }
        let vision = spec.vision.as_ref();
        let features = vision.map_or(spec.hidden_size, |vision| {
            vision.feature_len(spec.hidden_size)
        });
        let side = vision.map_or(1, |vision| vision.projector.merged_side());
        let fixed = vision.and_then(|vision| vision.fixed_patches());
        Self {
            bytes_per_position: (features * value_bytes) as u64,
            positions,
            max_patches: positions
                .saturating_mul(side * side)
                .min(fixed.unwrap_or(MAX_PATCHES)),
            attention: spec.media_attention(),
        }
    }

    /// Bytes of all features.
    pub fn bytes(&self) -> u64 {
        self.bytes_per_position
            .saturating_mul(self.positions as u64)
    }

    /// New tokens of a step, of which `requested` are enough for text.
    pub fn step_tokens(&self, requested: usize, context: usize) -> usize {
        let whole = match self.attention {
            MediaAttention::Causal => 0,
            MediaAttention::View | MediaAttention::WindowedView if self.positions == 0 => 0,
            MediaAttention::View | MediaAttention::WindowedView => WHOLE_VIEW,
            MediaAttention::FirstRow => WHOLE_PROMPT,
        };
        requested.max(whole.min(context))
    }
}

impl Limits {
    /// For a model with a context of `longest` tokens.
    pub fn new(longest: usize, options: &SessionOptions, sizes: &Sizes) -> Result<Self, OpenError> {
        positive("max_sequences", options.max_sequences)?;
        positive("max_step_tokens", options.max_step_tokens)?;
        let context = context(longest, options)?;
        let step_tokens = sizes.media.step_tokens(options.max_step_tokens, context);
        let requested = RequestedKv {
            max_sequences: options.max_sequences,
            context: sizes.tokens_worth(context, (1, step_tokens)),
            short: sizes.tokens_worth(context.min(MIN_TOKENS), (1, step_tokens)),
            kv_tokens: match options.kv_tokens {
                Some(tokens) => {
                    let tokens = positive("kv_tokens", tokens)?;
                    Some(sizes.tokens_worth(tokens, (options.max_sequences, step_tokens)))
                }
                None => None,
            },
        };
        let own_bytes = sizes.weight_bytes.saturating_add(sizes.buffer_bytes);
        let own_bytes = own_bytes.saturating_add(sizes.media.bytes());
        let own_bytes = own_bytes.saturating_add(sizes.adapters.bytes);
        let fixed = own_bytes.saturating_add(sizes.mapped_bytes);
        let room = match budget(options.memory, sizes.device_bytes)? {
            Some(budget) => Room::within(budget, fixed, &requested, sizes)?,
            None => Room::shared(sizes.device_bytes.unwrap_or(ASSUMED_MEMORY), own_bytes),
        };
        let (states, max_sequences) = room.states(&requested, sizes);
        let state_bytes = sizes.state_bytes.saturating_mul(states as u64);
        let kv_tokens = requested.kv_tokens.unwrap_or_else(|| {
            room.kv_tokens(requested.context, max_sequences, state_bytes, sizes)
        });
        let kv = sizes.kv_bytes(kv_tokens);
        Ok(Self {
            context,
            kv_tokens,
            states,
            max_sequences,
            step_tokens,
            resident_bytes: fixed.saturating_add(state_bytes).saturating_add(kv),
            sizes: *sizes,
        })
    }

    /// Refuses a session that the device has no memory for.
    pub fn check_memory(&self) -> Result<(), OpenError> {
        let wanted = self.resident_bytes - self.sizes.mapped_bytes;
        match self.sizes.device_bytes {
            Some(available) if wanted > available => Err(OpenError::OutOfMemory {
                what: "model with its KV memory",
                wanted,
                bound: MemoryBound::Machine,
                available,
            }),
            _ => Ok(()),
        }
    }
}

impl Sizes {
    /// Tokens' worth of KV for so many tokens in up to so many sequences, whose rows have up to
    /// `row_tokens`.
    fn tokens_worth(&self, tokens: usize, (sequences, row_tokens): (usize, usize)) -> usize {
        let page = self.granularity;
        let worth = self.kv_groups.tokens_in_pages(page, |group| {
            let most = group.max_pages(usize::MAX, row_tokens, page);
            tokens.div_ceil(page).min(most.saturating_mul(sequences))
        });
        if worth < tokens {
            // Each sequence's share is rounded up to whole tokens when it is reserved.
            worth.saturating_add(sequences)
        } else {
            worth
        }
    }

    fn kv_bytes(&self, tokens: usize) -> u64 {
        let bytes = self.kv_groups.bytes_per_token();
        bytes.saturating_mul(tokens as u64)
    }
}

/// Bytes that the session may use, if there is a budget: never more than the device has.
fn budget(option: Option<MemoryBudget>, memory: Option<u64>) -> Result<Option<u64>, OpenError> {
    let Some(option) = option else {
        return Ok(None);
    };
    option.check()?;
    match (option, memory) {
        (_, Some(memory)) => Ok(Some(option.bytes(memory).min(memory))),
        (MemoryBudget::Bytes(bytes), None) => Ok(Some(bytes)),
        (MemoryBudget::Percent(percent), None) => Err(OpenError::Option {
            option: "memory",
            found: format!("{percent} %"),
            expected: "in bytes: this system does not report its memory".to_owned(),
        }),
    }
}

/// The KV that the options request, in tokens' worth.
struct RequestedKv {
    max_sequences: usize,
    /// For a sequence of the whole context.
    context: usize,
    /// For a short sequence.
    short: usize,
    /// If the options have a number.
    kv_tokens: Option<usize>,
}

/// The memory for KV and states.
struct Room {
    /// All that the session may use.
    ceiling: u64,
    /// Weights and buffers.
    fixed: u64,
    /// The most for KV, and the most for states.
    max: u64,
}

impl Room {
    /// For this session alone; refused if it is too small.
    fn within(
        budget: u64,
        fixed: u64,
        requested: &RequestedKv,
        sizes: &Sizes,
    ) -> Result<Self, OpenError> {
        let room = Self {
            ceiling: budget,
            fixed,
            max: u64::MAX,
        };
        room.check(requested, sizes)?;
        Ok(room)
    }

    /// On a device that other programs use too.
    fn shared(memory: u64, fixed: u64) -> Self {
        Self {
            ceiling: memory,
            fixed,
            max: memory / KV_SHARE,
        }
    }

    fn left(&self) -> u64 {
        self.ceiling.saturating_sub(self.fixed)
    }

    /// Checks that the requested KV fits, or else a short sequence.
    fn check(&self, requested: &RequestedKv, sizes: &Sizes) -> Result<(), OpenError> {
        let kv = sizes.kv_bytes(requested.min_kv());
        let states = sizes.state_bytes.saturating_mul(STATES_PER_SEQUENCE as u64);
        let least = self.fixed.saturating_add(states).saturating_add(kv);
        if least <= self.ceiling {
            return Ok(());
        }
        Err(OpenError::OutOfMemory {
            what: match requested.kv_tokens {
                Some(_) => "model with the requested `kv_tokens`",
                None => "model with KV memory for one short sequence",
            },
            wanted: least,
            bound: MemoryBound::Budget,
            available: self.ceiling,
        })
    }

    /// As many states as all sequences can use and KV leaves, and the sequences that can step with
    /// them.
    fn states(&self, requested: &RequestedKv, sizes: &Sizes) -> (usize, usize) {
        if sizes.state_bytes == 0 {
            return (0, requested.max_sequences);
        }
        let min_kv = sizes.kv_bytes(requested.min_kv());
        let spare = self.left().saturating_sub(min_kv);
        let share = match requested.kv_tokens {
            None if sizes.kv_groups.bytes_per_token() > 0 => spare / 2,
            _ => spare,
        };
        let affordable = saturated(share.min(self.max) / sizes.state_bytes);
        let states = requested
            .max_sequences
            .saturating_mul(STATES_PER_SEQUENCE)
            .min(affordable.max(STATES_PER_SEQUENCE));
        (states, requested.max_sequences.min(states / STATES_TO_STEP))
    }

    /// As many tokens as all sequences can use and states leave.
    fn kv_tokens(
        &self,
        context: usize,
        max_sequences: usize,
        state_bytes: u64,
        sizes: &Sizes,
    ) -> usize {
        let left = self.left().saturating_sub(state_bytes).min(self.max);
        // A model without attention stores no keys: any number of tokens is free.
        let affordable = left.checked_div(sizes.kv_groups.bytes_per_token());
        let affordable = affordable.map_or(usize::MAX, saturated);
        let all = context.saturating_mul(max_sequences);
        let page = sizes.granularity;
        all.min(affordable / page * page).max(page)
    }
}

impl RequestedKv {
    fn min_kv(&self) -> usize {
        self.kv_tokens.unwrap_or(self.short)
    }
}

fn context(longest: usize, options: &SessionOptions) -> Result<usize, OpenError> {
    let context = positive("context", options.context.unwrap_or(longest))?;
    if context > longest {
        let expected = format!("at most the model's {longest}");
        return Err(refuse("context", context, expected));
    }
    Ok(context)
}

fn saturated(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn positive(option: &'static str, value: usize) -> Result<usize, OpenError> {
    match value {
        0 => Err(refuse(option, 0, "at least 1".to_owned())),
        value => Ok(value),
    }
}

fn refuse(option: &'static str, found: usize, expected: String) -> OpenError {
    OpenError::Option {
        option,
        found: found.to_string(),
        expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const PAGE: usize = 32;
    const LONGEST: usize = 4096;

    fn sizes(device_bytes: Option<u64>, kv_bytes_per_token: u64, state_bytes: u64) -> Sizes {
        Sizes {
            device_bytes,
            kv_groups: KvGroups::uniform(kv_bytes_per_token),
            granularity: PAGE,
            state_bytes,
            weight_bytes: 15 * MIB,
            buffer_bytes: 5 * MIB,
            mapped_bytes: 10 * MIB,
            media: MediaSizes::default(),
            adapters: AdapterLimits::NONE,
        }
    }

    fn with(memory: MemoryBudget) -> SessionOptions {
        SessionOptions {
            memory: Some(memory),
            max_step_tokens: 64,
            ..SessionOptions::default()
        }
    }

    /// The budget that is needed, and the one that was set.
    fn needed_budget(result: Result<Limits, OpenError>) -> (u64, u64) {
        match result.err() {
            Some(OpenError::OutOfMemory {
                wanted,
                bound: MemoryBound::Budget,
                available,
                ..
            }) => (wanted, available),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn resident_bytes_stay_within_any_budget() {
        for (per_token, state) in [(4096, 0), (4096, 300_000), (0, 300_000), (100, 7)] {
            let sizes = sizes(Some(1 << 40), per_token, state);
            let on = |bytes| {
                let options = with(MemoryBudget::Bytes(bytes));
                Limits::new(LONGEST, &options, &sizes)
            };
            let (least, _) = needed_budget(on(1));
            assert_eq!(needed_budget(on(least - 1)), (least, least - 1));
            let mut before = 0;
            for more in [0, 1, 4095, 4096, 131_072, MIB, 50 * MIB, 1 << 30, 1 << 39] {
                let limits = on(least + more).unwrap();
                assert!(
                    limits.resident_bytes <= least + more,
                    "{per_token} {state} {more}"
                );
                assert!(limits.kv_tokens >= MIN_TOKENS && limits.max_sequences >= 1);
                assert_eq!(limits.kv_tokens % PAGE, 0);
                assert!(
                    limits.resident_bytes >= before,
                    "a larger budget is used less"
                );
                before = limits.resident_bytes;
            }
            let most = on(1 << 39).unwrap();
            let options = SessionOptions::default();
            assert_eq!(most.kv_tokens, LONGEST * options.max_sequences);
            assert_eq!(most.max_sequences, options.max_sequences);
        }
    }

    #[test]
    fn budget_is_used_to_the_last_page() {
        let budget = 60 * MIB;
        let options = with(MemoryBudget::Bytes(budget));
        let limits = Limits::new(LONGEST, &options, &sizes(Some(1 << 40), 4096, 0)).unwrap();
        let page = 4096 * PAGE as u64;
        assert!(limits.resident_bytes > budget - page);
        // Without a budget, KV uses at most a quarter of the machine.
        let options = SessionOptions::default();
        let limits = Limits::new(LONGEST, &options, &sizes(Some(budget), 4096, 0)).unwrap();
        assert_eq!(limits.kv_tokens as u64, 15 * MIB / page * PAGE as u64);
    }

    #[test]
    fn percentage_and_bytes_are_bounded_by_machine() {
        let on = |machine, memory| Limits::new(LONGEST, &with(memory), &sizes(machine, 4096, 0));
        let half = on(Some(120 * MIB), MemoryBudget::Percent(50)).unwrap();
        let bytes = on(Some(120 * MIB), MemoryBudget::Bytes(60 * MIB)).unwrap();
        assert_eq!(half.resident_bytes, bytes.resident_bytes);
        let beyond = on(Some(60 * MIB), MemoryBudget::Bytes(u64::MAX)).unwrap();
        assert_eq!(beyond.resident_bytes, bytes.resident_bytes);
        let unreported = on(None, MemoryBudget::Bytes(60 * MIB)).unwrap();
        assert_eq!(unreported.resident_bytes, bytes.resident_bytes);
        let refused = on(None, MemoryBudget::Percent(50)).err().unwrap();
        assert!(
            refused.to_string().contains("must be in bytes"),
            "{refused}"
        );
    }

    #[test]
    fn requested_tokens_must_fit_the_budget() {
        let sizes = sizes(Some(1 << 40), 4096, 300_000);
        let on = |bytes, kv_tokens| {
            let options = SessionOptions {
                kv_tokens: Some(kv_tokens),
                ..with(MemoryBudget::Bytes(bytes))
            };
            Limits::new(LONGEST, &options, &sizes)
        };
        let (least, _) = needed_budget(on(1, 1000));
        let limits = on(least, 1000).unwrap();
        assert_eq!((limits.kv_tokens, limits.resident_bytes), (1024, least));
        assert_eq!(needed_budget(on(least - 1, 1000)), (least, least - 1));
        let error = on(least, usize::MAX).err().unwrap().to_string();
        assert!(
            error.contains("`kv_tokens`") && error.contains("`memory` allows"),
            "{error}"
        );
    }

    #[test]
    fn huge_options_are_refused_without_overflow() {
        let sizes = sizes(Some(1 << 40), u64::MAX / 2, u64::MAX / 2);
        let options = SessionOptions {
            max_sequences: usize::MAX,
            max_step_tokens: usize::MAX,
            kv_tokens: Some(usize::MAX),
            ..SessionOptions::default()
        };
        let limits = Limits::new(LONGEST, &options, &sizes).unwrap();
        assert_eq!(limits.resident_bytes, u64::MAX);
        let options = SessionOptions {
            memory: Some(MemoryBudget::Bytes(1 << 39)),
            ..options
        };
        let refused = Limits::new(LONGEST, &options, &sizes);
        assert_eq!(needed_budget(refused), (u64::MAX, 1 << 39));
    }

    #[test]
    fn many_states_leave_room_for_kv() {
        let sizes = sizes(Some(30 * MIB), 4096, 300_000);
        let limits = Limits::new(LONGEST, &SessionOptions::default(), &sizes);
        let limits = limits.unwrap();
        assert!(limits.resident_bytes - limits.sizes.mapped_bytes <= 30 * MIB);
        assert!(limits.max_sequences > 1 && limits.kv_tokens > MIN_TOKENS);
    }
}
