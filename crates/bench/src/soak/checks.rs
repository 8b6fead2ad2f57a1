//! Checks after the clients have stopped.

use std::time::Duration;

use loquat_engine::{Stats, Totals};

use loquat::human::bytes;

use super::super::stats::median;
use super::chaos_client::Tally;

/// Growth that is not a leak: allocators keep memory that many threads freed.
const GROWTH_SHARE: f64 = 0.05;
const GROWTH_BYTES: f64 = (4 << 20) as f64;
/// In shorter runs memory still grows because it is touched for the first time.
const MIN_MEMORY_TIME: Duration = Duration::from_secs(30);

/// The input of the checks.
pub struct Evidence {
    /// How long the clients ran.
    pub time: Duration,
    pub tally: Tally,
    /// The engine after the last stream.
    pub quiet: Stats,
    /// The engine after its cache was cleared.
    pub empty: Stats,
    /// Streams were still open after the drain timeout.
    pub stuck: bool,
    /// Samples of the process's memory.
    pub resident: Vec<Option<u64>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed,
    NotMeasured,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::NotMeasured => "not measured",
        }
    }
}

pub struct Check {
    pub name: &'static str,
    pub outcome: Outcome,
    pub detail: String,
}

fn check(name: &'static str, passed: bool, detail: String) -> Check {
    let outcome = if passed {
        Outcome::Passed
    } else {
        Outcome::Failed
    };
    Check {
        name,
        outcome,
        detail,
    }
}

impl Evidence {
    pub fn checks(&self) -> Vec<Check> {
        vec![
            self.work_was_done(),
            self.streams_end_once(),
            self.engine_is_idle(),
            self.memory_is_released(),
            endings_add_up(&self.empty.totals),
            counts_agree(&self.tally, &self.empty.totals),
            memory_is_flat(self.time, &self.resident),
        ]
    }

    fn work_was_done(&self) -> Check {
        let Tally {
            finished, tokens, ..
        } = self.tally;
        check(
            "work was done",
            finished > 0 && tokens > 0,
            format!("{finished} streams read to the end, {tokens} tokens"),
        )
    }

    fn streams_end_once(&self) -> Check {
        let Tally {
            violations,
            ref examples,
            ..
        } = self.tally;
        let detail = match (violations, self.stuck) {
            (0, false) => "no violations".to_owned(),
            (_, false) => format!("{violations} violations, such as: {}", examples.join("; ")),
            (_, true) => "streams were still open after the timeout".to_owned(),
        };
        check(
            "every stream ends once, with the tokens it counts",
            violations == 0 && !self.stuck,
            detail,
        )
    }

    fn engine_is_idle(&self) -> Check {
        let Stats {
            running,
            paused,
            waiting,
            ..
        } = self.quiet;
        check(
            "no stream runs or waits at the end",
            running + paused + waiting == 0,
            format!("{running} running, {paused} paused, {waiting} waiting"),
        )
    }

    fn memory_is_released(&self) -> Check {
        let Stats {
            memory,
            kv_reserved,
            ..
        } = self.empty;
        let (kv, states) = (memory.kv_in_use, memory.states_in_use);
        check(
            "the session holds no memory at the end",
            kv + states + kv_reserved == 0,
            format!("{kv} tokens of KV in use, {kv_reserved} reserved, {states} states"),
        )
    }
}

fn endings_add_up(totals: &Totals) -> Check {
    let Totals {
        submitted,
        finished,
        failed,
        cancelled,
        timed_out,
        ..
    } = *totals;
    check(
        "every accepted stream ends exactly once",
        submitted == finished + failed + cancelled + timed_out,
        format!(
            "{submitted} accepted, {finished} finished, {failed} failed, {cancelled} cancelled, \
             {timed_out} timed out"
        ),
    )
}

/// A stream that its client left may end in any way before the engine notices.
fn counts_agree(tally: &Tally, totals: &Totals) -> Check {
    let within = |engine: u64, seen: u64| (seen..=seen + tally.abandoned).contains(&engine);
    let agree = totals.submitted == tally.accepted
        && totals.refused == tally.refused
        && within(totals.finished, tally.finished)
        && within(totals.timed_out, tally.timed_out)
        && within(totals.failed, tally.failed)
        && totals.cancelled <= tally.abandoned
        && totals.completion_tokens >= tally.tokens;
    check(
        "engine and client counts agree",
        agree,
        format!(
            "clients: {} accepted, {} refused, {} finished, {} abandoned, {} tokens; engine: {} \
             accepted, {} refused, {} finished, {} cancelled, {} tokens",
            tally.accepted,
            tally.refused,
            tally.finished,
            tally.abandoned,
            tally.tokens,
            totals.submitted,
            totals.refused,
            totals.finished,
            totals.cancelled,
            totals.completion_tokens,
        ),
    )
}

/// Compares the last quarter with the second; in the first, memory is touched for the first time.
fn memory_is_flat(time: Duration, resident: &[Option<u64>]) -> Check {
    const NAME: &str = "the process's memory is flat";
    let measured: Vec<f64> = resident
        .iter()
        .flatten()
        .map(|bytes| *bytes as f64)
        .collect();
    let quarter = measured.len() / 4;
    let unmeasured = if time < MIN_MEMORY_TIME {
        Some(format!("takes at least {} s", MIN_MEMORY_TIME.as_secs()))
    } else {
        (quarter == 0).then(|| "not available on this system".to_owned())
    };
    if let Some(detail) = unmeasured {
        return Check {
            name: NAME,
            outcome: Outcome::NotMeasured,
            detail,
        };
    }
    let before = median(&measured[quarter..2 * quarter]);
    let after = median(&measured[measured.len() - quarter..]);
    let allowed = (before * GROWTH_SHARE).max(GROWTH_BYTES);
    let size = |value: f64| bytes(value as u64);
    check(
        NAME,
        after - before <= allowed,
        format!(
            "{} in the second quarter, {} in the last; the limit is {} more",
            size(before),
            size(after),
            size(allowed)
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn flat(mebibytes: &[u64]) -> Outcome {
        let resident: Vec<_> = mebibytes.iter().map(|size| Some(size * MIB)).collect();
        memory_is_flat(MIN_MEMORY_TIME, &resident).outcome
    }

    #[test]
    fn growth_counts_from_second_quarter() {
        for (sizes, expected) in [
            (&[10, 90, 100, 100, 100, 100, 100, 100][..], Outcome::Passed),
            (&[10, 50, 60, 60, 61, 62, 64, 64], Outcome::Passed),
            (&[10, 50, 60, 60, 61, 62, 65, 65], Outcome::Failed),
            // Five per cent of a lot is more than 4 MiB.
            (
                &[1000, 1000, 1000, 1000, 1000, 1000, 1049, 1049],
                Outcome::Passed,
            ),
            (
                &[1000, 1000, 1000, 1000, 1000, 1000, 1051, 1051],
                Outcome::Failed,
            ),
            (&[200, 200, 200, 200, 100, 100, 100, 100], Outcome::Passed),
            (&[100, 100, 100], Outcome::NotMeasured),
        ] {
            assert_eq!(flat(sizes), expected, "{sizes:?}");
        }
        let unmeasured = memory_is_flat(MIN_MEMORY_TIME, &[None; 40]);
        assert_eq!(unmeasured.outcome, Outcome::NotMeasured);
    }

    #[test]
    fn short_runs_do_not_judge_memory() {
        let growing: Vec<_> = (0..40).map(|size| Some(size * 100 * MIB)).collect();
        let time = MIN_MEMORY_TIME - Duration::from_secs(1);
        assert_eq!(memory_is_flat(time, &growing).outcome, Outcome::NotMeasured);
    }

    #[test]
    fn stream_without_ending_fails_check() {
        let totals = Totals {
            submitted: 10,
            finished: 5,
            failed: 1,
            cancelled: 2,
            timed_out: 2,
            ..Totals::default()
        };
        assert_eq!(endings_add_up(&totals).outcome, Outcome::Passed);
        let lost = Totals {
            submitted: 11,
            ..totals
        };
        assert_eq!(endings_add_up(&lost).outcome, Outcome::Failed);
    }

    #[test]
    fn only_abandoned_streams_may_differ() {
        let tally = Tally {
            accepted: 10,
            refused: 3,
            finished: 6,
            timed_out: 1,
            abandoned: 3,
            tokens: 50,
            ..Tally::default()
        };
        let totals = Totals {
            submitted: 10,
            refused: 3,
            finished: 7,
            timed_out: 1,
            cancelled: 2,
            completion_tokens: 55,
            ..Totals::default()
        };
        assert_eq!(counts_agree(&tally, &totals).outcome, Outcome::Passed);
        type Change = fn(&mut Totals);
        let changes: [Change; 7] = [
            |totals| totals.submitted = 11,
            |totals| totals.refused = 2,
            |totals| totals.finished = 5,
            |totals| totals.finished = 10,
            |totals| totals.timed_out = 0,
            |totals| totals.cancelled = 4,
            |totals| totals.completion_tokens = 49,
        ];
        for (index, change) in changes.iter().enumerate() {
            let mut changed = totals;
            change(&mut changed);
            assert_eq!(
                counts_agree(&tally, &changed).outcome,
                Outcome::Failed,
                "{index}"
            );
        }
    }
}
