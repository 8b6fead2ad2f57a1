//! How a model would run on a machine, and which of several is best.

use std::cmp::Ordering;

use super::machine::{Machine, MachineSpeed};
use super::model_numbers::ModelNumbers;

/// The estimate for one model.
#[derive(Debug, Clone, PartialEq)]
pub struct FitEstimate {
    pub subject: ModelNumbers,
    pub fits: Fits,
    /// Bytes at the requested context.
    pub need_bytes: u64,
    /// The longest context that fits comfortably.
    pub comfortable_context: u64,
    /// `None` if the machine was not measured, and its device does not report its speed.
    pub speed: Option<Speed>,
}

/// How well a model fits, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fits {
    /// It leaves enough for other programs.
    Well,
    /// It runs if little else does.
    Tightly,
    /// The device does not report its memory.
    Unknown,
    No,
    /// The model's context is shorter than requested.
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
    /// Decoding with an empty context.
    pub fresh: f64,
    /// Decoding at the end of the context.
    pub full: f64,
    /// Prompt processing; `None` if only the memory's speed is known.
    pub prompt: Option<f64>,
}

/// Per cent of the device's memory: a quarter is left to other programs, as by sessions without a
/// memory budget.
pub const COMFORTABLE_PERCENT: u64 = 75;
/// The rest is for the operating system.
const MAX_PERCENT: u64 = 95;

/// People read about four words per second, which are five or six tokens.
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
/// Of the speed that a GPU's driver reports: CUDA kernels written to find the limits of one H200
/// reached 0.7 (one billion parameters) and 0.83 (eight billion) of it in bf16, and half of it in
/// four bits. The backend itself was not measured yet.
const GPU_SHARE: f64 = 0.5;

impl FitEstimate {
    /// `asked` is the requested context.
    pub fn new(subject: ModelNumbers, machine: &Machine, asked: Option<u64>) -> Self {
        let need_bytes = subject.need(subject.context);
        let memory = machine.memory_bytes;
        let share = |percent: u64| memory.map(|memory| memory / 100 * percent);
        let fits = match (share(COMFORTABLE_PERCENT), share(MAX_PERCENT)) {
            _ if asked.is_some_and(|asked| asked > subject.longest_context) => Fits::Short,
            (Some(comfortable), _) if need_bytes <= comfortable => Fits::Well,
            (_, Some(most)) if need_bytes <= most => Fits::Tightly,
            (_, Some(_)) => Fits::No,
            _ => Fits::Unknown,
        };
        let comfortable_context = match share(COMFORTABLE_PERCENT) {
            Some(comfortable) => subject.context_within(comfortable),
            None => subject.longest_context,
        };
        Self {
            speed: Speed::on(machine, &subject),
            fits,
            need_bytes,
            comfortable_context,
            subject,
        }
    }

    /// Whether it is fast enough to read along. Unknown counts as yes.
    pub fn is_usable(&self) -> bool {
        self.speed.is_none_or(|speed| speed.full >= USABLE)
    }

    /// Sorts the best first: what fits comfortably and is usable, what is slow or tight, what does
    /// not fit. Within these, instruct models, then the most capable, then the fastest.
    pub fn compare(&self, other: &Self) -> Ordering {
        let group = |estimate: &Self| match (estimate.fits, estimate.is_usable()) {
            (Fits::Well | Fits::Unknown, true) => 0,
            (Fits::Well | Fits::Unknown, false) => 1,
            (Fits::Tightly, true) => 2,
            (Fits::Tightly, false) => 3,
            (Fits::No | Fits::Short, _) => 4,
        };
        let fresh = |estimate: &Self| estimate.speed.map_or(0.0, |speed| speed.fresh);
        group(self)
            .cmp(&group(other))
            .then(other.subject.is_instruct.cmp(&self.subject.is_instruct))
            .then(
                other
                    .subject
                    .capability()
                    .total_cmp(&self.subject.capability()),
            )
            .then(fresh(other).total_cmp(&fresh(self)))
    }
}

impl Speed {
    fn on(machine: &Machine, subject: &ModelNumbers) -> Option<Self> {
        match (machine.speed, machine.reported_bytes_per_second) {
            (Some(measured), _) => Some(Self::estimate(subject, &measured)),
            (None, Some(reported)) => Some(Self::estimate_on_gpu(subject, reported)),
            (None, None) => None,
        }
    }

    fn estimate_on_gpu(subject: &ModelNumbers, bytes_per_second: u64) -> Self {
        let read = bytes_per_second as f64 * GPU_SHARE;
        Self {
            fresh: read / subject.read_weight_bytes,
            full: read / (subject.read_weight_bytes + subject.read_kv_bytes),
            prompt: None,
        }
    }

    fn estimate(subject: &ModelNumbers, machine: &MachineSpeed) -> Self {
        let read = machine.read_bytes_per_second;
        let weights = subject.read_weight_bytes / (read * WEIGHTS_SHARE);
        let kv = subject.read_kv_bytes / (read * KV_SHARE);
        let prompt_share = if subject.is_quantized {
            QUANTIZED_PROMPT_SHARE
        } else {
            PLAIN_PROMPT_SHARE
        };
        let products = machine.multiply_adds_per_second * prompt_share;
        Self {
            fresh: 1.0 / weights,
            full: 1.0 / (weights + kv),
            prompt: Some(products / subject.active_parameters.max(1) as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use loquat_session::KvGroups;

    use super::*;
    use crate::fit::model_numbers::KvNumbers;

    const GB: u64 = 1_000_000_000;

    /// A dense model of so many billion parameters at about five bits.
    fn subject(billions: u64) -> ModelNumbers {
        let weight_bytes = billions * 6 * GB / 10;
        ModelNumbers {
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
            kv: KvNumbers::new(KvGroups::uniform(100_000)),
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
            speed: Some(MachineSpeed {
                read_bytes_per_second: 65e9,
                multiply_adds_per_second: 465e9,
                age: std::time::Duration::ZERO,
            }),
            reported_bytes_per_second: None,
        }
    }

    #[test]
    fn memory_decides_fit_and_context() {
        // 4.8 GB of weights, 0.82 GB of KV; contexts are whole pages.
        for (memory, asked, fits, roomy) in [
            (Some(10 * GB), None, Fits::Well, 26976),
            (Some(100 * GB), None, Fits::Well, 32768),
            (Some(7 * GB), None, Fits::Tightly, 4480),
            (Some(6 * GB), None, Fits::Tightly, 0),
            (Some(5 * GB), None, Fits::No, 0),
            (None, None, Fits::Unknown, 32768),
            (Some(100 * GB), Some(32769), Fits::Short, 32768),
            (Some(100 * GB), Some(32768), Fits::Well, 32768),
        ] {
            let estimate = FitEstimate::new(subject(8), &machine(memory), asked);
            assert_eq!(estimate.fits, fits, "{memory:?}");
            assert_eq!(estimate.comfortable_context, roomy, "{memory:?}");
            assert_eq!(estimate.need_bytes, 48 * GB / 10 + 819_200_000);
        }
    }

    /// Reproduces the figures of docs/benchmarks.md that the shares come from.
    #[test]
    fn smollm2_estimate_matches_measurement() {
        let smollm2 = ModelNumbers {
            parameters: 134_515_008,
            active_parameters: 134_515_008,
            read_weight_bytes: 96.6e6,
            read_kv_bytes: 47.9e6,
            ..subject(1)
        };
        let estimate = FitEstimate::new(smollm2, &machine(None), None);
        let speed = estimate.speed.unwrap();
        let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.05;
        assert!(near(speed.fresh, 368.7), "{speed:?}");
        assert!(near(speed.full, 199.5), "{speed:?}");
        assert!(near(speed.prompt.unwrap(), 1392.2), "{speed:?}");
    }

    #[test]
    fn best_is_most_capable_usable_model() {
        let base = ModelNumbers {
            is_instruct: false,
            ..subject(5)
        };
        // As capable as a dense model of 9.5 billion.
        let experts = ModelNumbers {
            active_parameters: 3 * GB,
            read_weight_bytes: 1.8e9,
            ..subject(30)
        };
        let slow = ModelNumbers {
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
        let estimates = all.map(|subject| FitEstimate::new(subject, &machine, None));
        let mut estimates = Vec::from(estimates);
        estimates.sort_by(FitEstimate::compare);
        let order: Vec<_> = estimates.iter().map(|o| o.subject.name.as_str()).collect();
        let expected = ["m:30b", "m:4b", "m:1b", "m:5b", "m:7b", "m:45b", "m:60b"];
        assert_eq!(order, expected);
        assert_eq!(estimates[5].fits, Fits::Tightly);
        assert_eq!(estimates[6].fits, Fits::No);
    }

    #[test]
    fn speed_is_unknown_without_measurement() {
        let unmeasured = Machine {
            speed: None,
            ..machine(Some(32 * GB))
        };
        let estimate = FitEstimate::new(subject(4), &unmeasured, None);
        assert_eq!(estimate.speed, None);
        assert!(estimate.is_usable());
        // A GPU's driver may report how fast its memory is.
        let reported = Machine {
            reported_bytes_per_second: Some(4800 * GB),
            ..unmeasured
        };
        let estimate = FitEstimate::new(subject(4), &reported, None);
        // 2.4 GB of weights, 0.82 GB of KV.
        let expected = Speed {
            fresh: 1000.0,
            full: 2.4e12 / 3.2192e9,
            prompt: None,
        };
        assert_eq!(estimate.speed, Some(expected));
    }
}
