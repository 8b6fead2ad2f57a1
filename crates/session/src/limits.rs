//! Session options with their gaps filled, for backends: how much memory is there, and how it is
//! divided among weights, KV and recurrent states.

use crate::{MemoryBound, MemoryBudget, OpenError, SessionOptions};

/// KV memory by default: a quarter of the device's, which leaves room for weights and others.
const KV_SHARE: u64 = 4;
/// Where the device's memory cannot be read.
const ASSUMED_MEMORY: u64 = 8 << 30;
/// A sequence's state before a step and after it.
const STATES_TO_STEP: usize = 2;
/// Those, and as many snapshots.
const STATES_PER_SEQUENCE: usize = 2 * STATES_TO_STEP;
/// A memory budget must hold a sequence of so many tokens: a short question and its answer.
const LEAST_TOKENS: usize = 256;

/// What a session's options come to on one device.
#[derive(Debug)]
pub struct Limits {
    pub context: usize,
    /// In whole runs of [`Sizes::granularity`].
    pub kv_tokens: usize,
    /// Recurrent states, snapshots among them.
    pub states: usize,
    /// As many as have states to step with.
    pub max_sequences: usize,
    /// Bytes of weights, KV, states and buffers if all is used.
    pub resident_bytes: u64,
    pub sizes: Sizes,
}

/// What the parts of a session take, and the memory they share.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// The device's memory; `None` if the system does not report it.
    pub device_bytes: Option<u64>,
    pub kv_bytes_per_token: u64,
    /// Tokens of a KV page.
    pub granularity: usize,
    /// Bytes of one recurrent state; 0 without recurrent layers.
    pub state_bytes: u64,
    /// Weights in memory that the session allocates.
    pub weight_bytes: u64,
    /// Weights in the mapped file, which the system can drop and read again.
    pub mapped_bytes: u64,
    pub buffer_bytes: u64,
}

impl Limits {
    /// For a model made for `longest` tokens.
    pub fn new(longest: usize, options: &SessionOptions, sizes: &Sizes) -> Result<Self, OpenError> {
        positive("max_sequences", options.max_sequences)?;
        positive("max_step_tokens", options.max_step_tokens)?;
        let context = context(longest, options)?;
        let wanted = Wanted {
            max_sequences: options.max_sequences,
            context: sizes.whole_runs(context),
            kv_tokens: match options.kv_tokens {
                Some(tokens) => Some(sizes.whole_runs(positive("kv_tokens", tokens)?)),
                None => None,
            },
        };
        let own_bytes = sizes.weight_bytes.saturating_add(sizes.buffer_bytes);
        let fixed = own_bytes.saturating_add(sizes.mapped_bytes);
        let room = match budget(options.memory, sizes.device_bytes)? {
            Some(budget) => Room::within(budget, fixed, &wanted, sizes)?,
            None => Room::shared(sizes.device_bytes.unwrap_or(ASSUMED_MEMORY), own_bytes),
        };
        let (states, max_sequences) = room.states(&wanted, sizes);
        let state_bytes = sizes.state_bytes.saturating_mul(states as u64);
        let kv_tokens = wanted
            .kv_tokens
            .unwrap_or_else(|| room.kv_tokens(wanted.context, max_sequences, state_bytes, sizes));
        let kv = sizes.kv_bytes_per_token.saturating_mul(kv_tokens as u64);
        Ok(Self {
            context,
            kv_tokens,
            states,
            max_sequences,
            resident_bytes: fixed.saturating_add(state_bytes).saturating_add(kv),
            sizes: *sizes,
        })
    }

    /// Refuses what the device could only answer by failing later.
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
    fn whole_runs(&self, tokens: usize) -> usize {
        tokens
            .div_ceil(self.granularity)
            .saturating_mul(self.granularity)
    }
}

/// Bytes that the session may take, where a budget was given: never more than the device has.
fn budget(asked: Option<MemoryBudget>, memory: Option<u64>) -> Result<Option<u64>, OpenError> {
    let Some(asked) = asked else {
        return Ok(None);
    };
    asked.check()?;
    match (asked, memory) {
        (_, Some(memory)) => Ok(Some(asked.bytes(memory).min(memory))),
        (MemoryBudget::Bytes(bytes), None) => Ok(Some(bytes)),
        (MemoryBudget::Percent(percent), None) => Err(OpenError::Option {
            option: "memory",
            found: format!("{percent} %"),
            expected: "in bytes here: the system does not tell how much it has".to_owned(),
        }),
    }
}

/// What KV and states are to be made for.
struct Wanted {
    max_sequences: usize,
    /// In whole runs.
    context: usize,
    /// In whole runs, where a number was asked for.
    kv_tokens: Option<usize>,
}

/// What is left for KV and states.
struct Room {
    /// All that the session may take.
    ceiling: u64,
    /// Of it, what weights and buffers take.
    fixed: u64,
    /// The most for KV, and the most for states.
    most: u64,
}

impl Room {
    /// For this session alone: refused where it does not suffice.
    fn within(budget: u64, fixed: u64, wanted: &Wanted, sizes: &Sizes) -> Result<Self, OpenError> {
        let room = Self {
            ceiling: budget,
            fixed,
            most: u64::MAX,
        };
        room.check(wanted, sizes)?;
        Ok(room)
    }

    /// On a device that others use too.
    fn shared(memory: u64, fixed: u64) -> Self {
        Self {
            ceiling: memory,
            fixed,
            most: memory / KV_SHARE,
        }
    }

    fn left(&self) -> u64 {
        self.ceiling.saturating_sub(self.fixed)
    }

    /// Whether the KV that was asked for fits, or else enough to work with.
    fn check(&self, wanted: &Wanted, sizes: &Sizes) -> Result<(), OpenError> {
        let kv = sizes
            .kv_bytes_per_token
            .saturating_mul(wanted.least_kv() as u64);
        let states = sizes.state_bytes.saturating_mul(STATES_PER_SEQUENCE as u64);
        let least = self.fixed.saturating_add(states).saturating_add(kv);
        if least <= self.ceiling {
            return Ok(());
        }
        Err(OpenError::OutOfMemory {
            what: match wanted.kv_tokens {
                Some(_) => "model with the `kv_tokens` asked for",
                None => "model with KV memory for one short sequence",
            },
            wanted: least,
            bound: MemoryBound::Budget,
            available: self.ceiling,
        })
    }

    /// As many states as every sequence can use, if KV does not need the room more; and the
    /// sequences that can live with them.
    fn states(&self, wanted: &Wanted, sizes: &Sizes) -> (usize, usize) {
        if sizes.state_bytes == 0 {
            return (0, wanted.max_sequences);
        }
        let least_kv = sizes
            .kv_bytes_per_token
            .saturating_mul(wanted.least_kv() as u64);
        let spare = self.left().saturating_sub(least_kv);
        let share = match wanted.kv_tokens {
            None if sizes.kv_bytes_per_token > 0 => spare / 2,
            _ => spare,
        };
        let affordable = saturated(share.min(self.most) / sizes.state_bytes);
        let states = wanted
            .max_sequences
            .saturating_mul(STATES_PER_SEQUENCE)
            .min(affordable.max(STATES_PER_SEQUENCE));
        (states, wanted.max_sequences.min(states / STATES_TO_STEP))
    }

    /// As many tokens as all sequences can use, within the room that states leave.
    fn kv_tokens(
        &self,
        context: usize,
        max_sequences: usize,
        state_bytes: u64,
        sizes: &Sizes,
    ) -> usize {
        let left = self.left().saturating_sub(state_bytes).min(self.most);
        // A model without attention keeps no keys, and any number of tokens costs nothing.
        let affordable = left.checked_div(sizes.kv_bytes_per_token);
        let affordable = affordable.map_or(usize::MAX, saturated);
        let all = context.saturating_mul(max_sequences);
        let run = sizes.granularity;
        all.min(affordable / run * run).max(run)
    }
}

impl Wanted {
    fn least_kv(&self) -> usize {
        let short = self.context.min(LEAST_TOKENS);
        self.kv_tokens.unwrap_or(short)
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
    const RUN: usize = 32;
    const LONGEST: usize = 4096;

    fn sizes(device_bytes: Option<u64>, kv_bytes_per_token: u64, state_bytes: u64) -> Sizes {
        Sizes {
            device_bytes,
            kv_bytes_per_token,
            granularity: RUN,
            state_bytes,
            weight_bytes: 15 * MIB,
            buffer_bytes: 5 * MIB,
            mapped_bytes: 10 * MIB,
        }
    }

    fn with(memory: MemoryBudget) -> SessionOptions {
        SessionOptions {
            memory: Some(memory),
            max_step_tokens: 64,
            ..SessionOptions::default()
        }
    }

    /// What the budget would have to be at least, and what it was.
    fn missing(result: Result<Limits, OpenError>) -> (u64, u64) {
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
    fn a_budget_is_kept_from_the_least_to_the_most() {
        for (per_token, state) in [(4096, 0), (4096, 300_000), (0, 300_000), (100, 7)] {
            let sizes = sizes(Some(1 << 40), per_token, state);
            let on = |bytes| {
                let options = with(MemoryBudget::Bytes(bytes));
                Limits::new(LONGEST, &options, &sizes)
            };
            let (least, _) = missing(on(1));
            assert_eq!(missing(on(least - 1)), (least, least - 1));
            let mut before = 0;
            for more in [0, 1, 4095, 4096, 131_072, MIB, 50 * MIB, 1 << 30, 1 << 39] {
                let limits = on(least + more).unwrap();
                assert!(
                    limits.resident_bytes <= least + more,
                    "{per_token} {state} {more}"
                );
                assert!(limits.kv_tokens >= LEAST_TOKENS && limits.max_sequences >= 1);
                assert_eq!(limits.kv_tokens % RUN, 0);
                assert!(limits.resident_bytes >= before, "more room was used less");
                before = limits.resident_bytes;
            }
            let most = on(1 << 39).unwrap();
            let options = SessionOptions::default();
            assert_eq!(most.kv_tokens, LONGEST * options.max_sequences);
            assert_eq!(most.max_sequences, options.max_sequences);
        }
    }

    #[test]
    fn a_budget_is_used_up_to_the_last_run() {
        let budget = 60 * MIB;
        let options = with(MemoryBudget::Bytes(budget));
        let limits = Limits::new(LONGEST, &options, &sizes(Some(1 << 40), 4096, 0)).unwrap();
        let run = 4096 * RUN as u64;
        assert!(limits.resident_bytes > budget - run);
        // A quarter of the machine binds those who named no budget, and them alone.
        let options = SessionOptions::default();
        let limits = Limits::new(LONGEST, &options, &sizes(Some(budget), 4096, 0)).unwrap();
        assert_eq!(limits.kv_tokens as u64, 15 * MIB / run * RUN as u64);
    }

    #[test]
    fn a_percentage_is_of_the_machine_which_bounds_bytes_too() {
        let on = |machine, memory| Limits::new(LONGEST, &with(memory), &sizes(machine, 4096, 0));
        let half = on(Some(120 * MIB), MemoryBudget::Percent(50)).unwrap();
        let bytes = on(Some(120 * MIB), MemoryBudget::Bytes(60 * MIB)).unwrap();
        assert_eq!(half.resident_bytes, bytes.resident_bytes);
        let beyond = on(Some(60 * MIB), MemoryBudget::Bytes(u64::MAX)).unwrap();
        assert_eq!(beyond.resident_bytes, bytes.resident_bytes);
        let untold = on(None, MemoryBudget::Bytes(60 * MIB)).unwrap();
        assert_eq!(untold.resident_bytes, bytes.resident_bytes);
        let refused = on(None, MemoryBudget::Percent(50)).err().unwrap();
        assert!(
            refused.to_string().contains("must be in bytes"),
            "{refused}"
        );
    }

    #[test]
    fn tokens_asked_for_must_fit_the_budget() {
        let sizes = sizes(Some(1 << 40), 4096, 300_000);
        let on = |bytes, kv_tokens| {
            let options = SessionOptions {
                kv_tokens: Some(kv_tokens),
                ..with(MemoryBudget::Bytes(bytes))
            };
            Limits::new(LONGEST, &options, &sizes)
        };
        let (least, _) = missing(on(1, 1000));
        let limits = on(least, 1000).unwrap();
        assert_eq!((limits.kv_tokens, limits.resident_bytes), (1024, least));
        assert_eq!(missing(on(least - 1, 1000)), (least, least - 1));
        let error = on(least, usize::MAX).err().unwrap().to_string();
        assert!(
            error.contains("`kv_tokens`") && error.contains("`memory` allows"),
            "{error}"
        );
    }

    #[test]
    fn the_largest_options_are_refused_not_wrapped() {
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
        assert_eq!(missing(refused), (u64::MAX, 1 << 39));
    }

    #[test]
    fn many_states_do_not_keep_a_large_model_from_opening() {
        let sizes = sizes(Some(30 * MIB), 4096, 300_000);
        let limits = Limits::new(LONGEST, &SessionOptions::default(), &sizes);
        let limits = limits.unwrap();
        assert!(limits.resident_bytes - limits.sizes.mapped_bytes <= 30 * MIB);
        assert!(limits.max_sequences > 1 && limits.kv_tokens > LEAST_TOKENS);
    }
}
