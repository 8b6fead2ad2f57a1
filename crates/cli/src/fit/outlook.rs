//! What a model would be like on a machine, and which of several is the best.

use std::cmp::Ordering;

use super::machine::{Machine, Pace};
use super::subject::Subject;

/// What is to be expected.
#[derive(Debug, Clone, PartialEq)]
pub struct Outlook {
    pub subject: Subject,
    pub fits: Fits,
    /// Bytes at the context that was asked for.
    pub need_bytes: u64,
    /// The longest context that fits comfortably.
    pub roomy_context: u64,
    /// `None` where the machine was not measured.
    pub speed: Option<Speed>,
}

/// From good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fits {
    /// It leaves others enough.
    Well,
    /// It can run, if little else does.
    Tightly,
    /// The machine does not tell what it has.
    Unknown,
    No,
    /// The model takes no context as long as was asked for.
    Short,
}

impl Fits {
    pub fn name(self) -> &'static str {
        match self {
            Self::Well => "well",
            Self::Tightly => "tightly",
            Self::Unknown => "unknown",
            Self::No => "no",
            Self::Short => "short",
        }
    }

    pub fn runs(self) -> bool {
        self < Self::No
    }
}

/// Tokens per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Written at the beginning of a conversation.
    pub fresh: f64,
    /// Written at the end of the context.
    pub full: f64,
    /// Read of a prompt.
    pub prompt: f64,
}

/// In per cent of the device's memory: a quarter is left to the system and to others, as sessions
/// leave it that are opened without a budget.
pub const COMFORT: u64 = 75;
/// The rest is what a system without anything else takes.
const UTMOST: u64 = 95;

/// A person reads some four words in a second, which are five or six tokens.
pub const USABLE: f64 = 5.0;

/// Shares of what was measured that whole models reach, on the two Zen 4 cores of
/// docs/benchmarks.md with SmolLM2-135M: decoding reads weights at 0.57 of the memory's speed;
/// 2,080 tokens of KV (47.9 MB) make a token 2.30 ms longer, which is 0.32 of it. Larger models do
/// better (a billion parameters in Q4_0: 0.83, in Q4_K_M: 0.59).
const WEIGHTS_SHARE: f64 = 0.57;
const KV_SHARE: f64 = 0.32;
/// Likewise, of the int8 multiply-adds, for a prompt of 512 tokens; and of plain weights, which
/// are multiplied as floats.
const QUANTIZED_PROMPT_SHARE: f64 = 0.41;
const PLAIN_PROMPT_SHARE: f64 = 0.26;

impl Outlook {
    /// `asked` is the context that somebody insists on.
    pub fn of(subject: Subject, machine: &Machine, asked: Option<u64>) -> Self {
        let need_bytes = subject.need(subject.context);
        let memory = machine.memory_bytes;
        let share = |percent: u64| memory.map(|memory| memory / 100 * percent);
        let fits = match (share(COMFORT), share(UTMOST)) {
            _ if asked.is_some_and(|asked| asked > subject.longest_context) => Fits::Short,
            (Some(comfort), _) if need_bytes <= comfort => Fits::Well,
            (_, Some(utmost)) if need_bytes <= utmost => Fits::Tightly,
            (_, Some(_)) => Fits::No,
            _ => Fits::Unknown,
        };
        let roomy_context = match share(COMFORT) {
            Some(comfort) => subject.context_within(comfort),
            None => subject.longest_context,
        };
        Self {
            speed: machine.pace.map(|pace| Speed::of(&subject, &pace)),
            fits,
            need_bytes,
            roomy_context,
            subject,
        }
    }

    /// Fast enough to be read as it is written; unknown counts.
    pub fn is_usable(&self) -> bool {
        self.speed.is_none_or(|speed| speed.full >= USABLE)
    }

    /// Best first: what fits comfortably and is usable; what is slow or tight; what does not fit.
    /// Among these, models that follow instructions first, then the worthiest, then the fastest.
    pub fn better(&self, other: &Self) -> Ordering {
        let group = |outlook: &Self| match (outlook.fits, outlook.is_usable()) {
            (Fits::Well | Fits::Unknown, true) => 0,
            (Fits::Well | Fits::Unknown, false) => 1,
            (Fits::Tightly, true) => 2,
            (Fits::Tightly, false) => 3,
            (Fits::No | Fits::Short, _) => 4,
        };
        let fresh = |outlook: &Self| outlook.speed.map_or(0.0, |speed| speed.fresh);
        group(self)
            .cmp(&group(other))
            .then(other.subject.is_instruct.cmp(&self.subject.is_instruct))
            .then(other.subject.worth().total_cmp(&self.subject.worth()))
            .then(fresh(other).total_cmp(&fresh(self)))
    }
}

impl Speed {
    fn of(subject: &Subject, pace: &Pace) -> Self {
        let read = pace.read_bytes_per_second;
        let weights = subject.read_weight_bytes / (read * WEIGHTS_SHARE);
        let kv = subject.read_kv_bytes / (read * KV_SHARE);
        let prompt_share = if subject.is_quantized {
            QUANTIZED_PROMPT_SHARE
        } else {
            PLAIN_PROMPT_SHARE
        };
        let products = pace.multiply_adds_per_second * prompt_share;
        Self {
            fresh: 1.0 / weights,
            full: 1.0 / (weights + kv),
            prompt: products / subject.active_parameters.max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    /// A plain model of so many billion parameters at about five bits.
    fn subject(billions: u64) -> Subject {
        let weight_bytes = billions * 6 * GB / 10;
        Subject {
            name: format!("m:{billions}b"),
            kind: None,
            files: "gguf Q4_K_M".to_owned(),
            is_instruct: true,
            parameters: billions * GB,
            active_parameters: billions * GB,
            is_quantized: true,
            longest_context: 32768,
            context: 8192,
            weight_bytes,
            kv_bytes_per_token: 100_000,
            other_bytes: 0,
            read_weight_bytes: weight_bytes as f64,
            read_kv_bytes: 8192.0 * 100_000.0,
            is_exact: false,
        }
    }

    fn machine(memory: Option<u64>) -> Machine {
        Machine {
            backend: "cpu",
            device: "cpu".to_owned(),
            is_gpu: false,
            memory_bytes: memory,
            available_bytes: None,
            pace: Some(Pace {
                read_bytes_per_second: 65e9,
                multiply_adds_per_second: 465e9,
                age: std::time::Duration::ZERO,
            }),
        }
    }

    #[test]
    fn memory_decides_what_fits_and_at_which_context() {
        // 4.8 GB of weights, 0.82 GB of KV.
        for (memory, asked, fits, roomy) in [
            (Some(10 * GB), None, Fits::Well, 27000),
            (Some(100 * GB), None, Fits::Well, 32768),
            (Some(7 * GB), None, Fits::Tightly, 4500),
            (Some(6 * GB), None, Fits::Tightly, 0),
            (Some(5 * GB), None, Fits::No, 0),
            (None, None, Fits::Unknown, 32768),
            (Some(100 * GB), Some(32769), Fits::Short, 32768),
            (Some(100 * GB), Some(32768), Fits::Well, 32768),
        ] {
            let outlook = Outlook::of(subject(8), &machine(memory), asked);
            assert_eq!(outlook.fits, fits, "{memory:?}");
            assert_eq!(outlook.roomy_context, roomy, "{memory:?}");
            assert_eq!(outlook.need_bytes, 48 * GB / 10 + 819_200_000);
        }
    }

    /// The figures of docs/benchmarks.md that the shares come from are found again.
    #[test]
    fn smollm2_is_as_fast_as_it_was_measured() {
        let smollm2 = Subject {
            parameters: 134_515_008,
            active_parameters: 134_515_008,
            read_weight_bytes: 96.6e6,
            read_kv_bytes: 47.9e6,
            ..subject(1)
        };
        let outlook = Outlook::of(smollm2, &machine(None), None);
        let speed = outlook.speed.unwrap();
        let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.05;
        assert!(near(speed.fresh, 368.7), "{speed:?}");
        assert!(near(speed.full, 199.5), "{speed:?}");
        assert!(near(speed.prompt, 1392.2), "{speed:?}");
    }

    #[test]
    fn the_best_is_the_worthiest_that_fits_and_can_be_read_along() {
        let base = Subject {
            is_instruct: false,
            ..subject(5)
        };
        // As worthy as a plain model of 9.5 billion.
        let experts = Subject {
            active_parameters: 3 * GB,
            read_weight_bytes: 1.8e9,
            ..subject(30)
        };
        let slow = Subject {
            read_weight_bytes: 60e9,
            ..subject(7)
        };
        let all = [
            subject(60),
            base,
            subject(1),
            slow,
            experts,
            subject(4),
            subject(45),
        ];
        let machine = machine(Some(32 * GB));
        let outlooks = all.map(|subject| Outlook::of(subject, &machine, None));
        let mut outlooks = Vec::from(outlooks);
        outlooks.sort_by(Outlook::better);
        let order: Vec<_> = outlooks.iter().map(|o| o.subject.name.as_str()).collect();
        let expected = ["m:30b", "m:4b", "m:1b", "m:5b", "m:7b", "m:45b", "m:60b"];
        assert_eq!(order, expected);
        assert_eq!(outlooks[5].fits, Fits::Tightly);
        assert_eq!(outlooks[6].fits, Fits::No);
    }

    #[test]
    fn without_a_measurement_nothing_is_said_of_speed() {
        let unmeasured = Machine {
            pace: None,
            ..machine(Some(32 * GB))
        };
        let outlook = Outlook::of(subject(4), &unmeasured, None);
        assert_eq!(outlook.speed, None);
        assert!(outlook.is_usable());
    }
}
