//! What must hold when the guests have gone.

use loquat_engine::{Stats, Totals};

use super::super::stats::median;
use super::guest::Tally;
use crate::terminal::bytes;

/// Growth of memory that is no leak: allocators keep what many threads gave back.
const GROWTH_SHARE: f64 = 0.05;
const GROWTH_BYTES: f64 = (4 << 20) as f64;

/// All that the checks look at.
pub struct Account {
    pub tally: Tally,
    /// The engine when nothing ran any more.
    pub quiet: Stats,
    /// And when its cache had been cleared.
    pub empty: Stats,
    /// Streams were still open long after the guests wanted to go.
    pub stuck: bool,
    /// The process's memory, from start to end.
    pub resident: Vec<Option<u64>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Held,
    Broken,
    NotMeasured,
}

impl Outcome {
    pub fn word(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Broken => "broken",
            Self::NotMeasured => "not measured",
        }
    }
}

pub struct Check {
    pub name: &'static str,
    pub outcome: Outcome,
    pub detail: String,
}

fn check(name: &'static str, holds: bool, detail: String) -> Check {
    let outcome = if holds {
        Outcome::Held
    } else {
        Outcome::Broken
    };
    Check {
        name,
        outcome,
        detail,
    }
}

impl Account {
    pub fn checks(&self) -> Vec<Check> {
        vec![
            self.work_was_done(),
            self.streams_end_once(),
            self.nothing_runs(),
            self.nothing_is_held(),
            ends_add_up(&self.empty.totals),
            sides_agree(&self.tally, &self.empty.totals),
            memory_is_flat(&self.resident),
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
            wrongs,
            ref complaints,
            ..
        } = self.tally;
        let detail = match (wrongs, self.stuck) {
            (0, false) => "no client saw anything else".to_owned(),
            (_, false) => format!("{wrongs} complaints, such as: {}", complaints.join("; ")),
            (_, true) => "streams had to be cut off long after the end".to_owned(),
        };
        check(
            "every stream ends once, with the tokens it counts",
            wrongs == 0 && !self.stuck,
            detail,
        )
    }

    fn nothing_runs(&self) -> Check {
        let Stats {
            running,
            paused,
            waiting,
            ..
        } = self.quiet;
        check(
            "nothing runs or waits at the end",
            running + paused + waiting == 0,
            format!("{running} running, {paused} paused, {waiting} waiting"),
        )
    }

    fn nothing_is_held(&self) -> Check {
        let Stats {
            memory,
            kv_reserved,
            ..
        } = self.empty;
        let (kv, states) = (memory.kv_in_use, memory.states_in_use);
        check(
            "no memory of the session is held at the end",
            kv + states + kv_reserved == 0,
            format!("{kv} tokens of KV in use, {kv_reserved} reserved, {states} states"),
        )
    }
}

fn ends_add_up(totals: &Totals) -> Check {
    let Totals {
        submitted,
        finished,
        failed,
        cancelled,
        timed_out,
        ..
    } = *totals;
    check(
        "every accepted stream has one end",
        submitted == finished + failed + cancelled + timed_out,
        format!(
            "{submitted} accepted, {finished} finished, {failed} failed, {cancelled} cancelled, \
             {timed_out} timed out"
        ),
    )
}

/// A stream that its guest left may have ended in any way before the engine noticed.
fn sides_agree(tally: &Tally, totals: &Totals) -> Check {
    let within = |engine: u64, seen: u64| (seen..=seen + tally.left).contains(&engine);
    let agree = totals.submitted == tally.accepted
        && totals.refused == tally.refused
        && within(totals.finished, tally.finished)
        && within(totals.timed_out, tally.timed_out)
        && within(totals.failed, tally.failed)
        && totals.cancelled <= tally.left
        && totals.completion_tokens >= tally.tokens;
    check(
        "engine and clients count the same",
        agree,
        format!(
            "clients: {} accepted, {} refused, {} finished, {} left, {} tokens; engine: {} \
             accepted, {} refused, {} finished, {} cancelled, {} tokens",
            tally.accepted,
            tally.refused,
            tally.finished,
            tally.left,
            tally.tokens,
            totals.submitted,
            totals.refused,
            totals.finished,
            totals.cancelled,
            totals.completion_tokens,
        ),
    )
}

/// The last quarter against the second: in the first everything is touched for the first time.
fn memory_is_flat(resident: &[Option<u64>]) -> Check {
    const NAME: &str = "the process's memory is flat";
    let measured: Vec<f64> = resident
        .iter()
        .flatten()
        .map(|bytes| *bytes as f64)
        .collect();
    let quarter = measured.len() / 4;
    if quarter == 0 {
        return Check {
            name: NAME,
            outcome: Outcome::NotMeasured,
            detail: "this system does not tell".to_owned(),
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
            "{} in the second quarter, {} in the last; {} more would be too much",
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
        memory_is_flat(&resident).outcome
    }

    #[test]
    fn growth_counts_from_the_second_quarter_on() {
        for (sizes, expected) in [
            (&[10, 90, 100, 100, 100, 100, 100, 100][..], Outcome::Held),
            (&[10, 50, 60, 60, 61, 62, 64, 64], Outcome::Held),
            (&[10, 50, 60, 60, 61, 62, 65, 65], Outcome::Broken),
            // Five per cent of a lot is more than 4 MiB.
            (
                &[1000, 1000, 1000, 1000, 1000, 1000, 1049, 1049],
                Outcome::Held,
            ),
            (
                &[1000, 1000, 1000, 1000, 1000, 1000, 1051, 1051],
                Outcome::Broken,
            ),
            (&[200, 200, 200, 200, 100, 100, 100, 100], Outcome::Held),
            (&[100, 100, 100], Outcome::NotMeasured),
        ] {
            assert_eq!(flat(sizes), expected, "{sizes:?}");
        }
        assert_eq!(memory_is_flat(&[None; 40]).outcome, Outcome::NotMeasured);
    }

    #[test]
    fn a_stream_without_an_end_is_missed() {
        let totals = Totals {
            submitted: 10,
            finished: 5,
            failed: 1,
            cancelled: 2,
            timed_out: 2,
            ..Totals::default()
        };
        assert_eq!(ends_add_up(&totals).outcome, Outcome::Held);
        let lost = Totals {
            submitted: 11,
            ..totals
        };
        assert_eq!(ends_add_up(&lost).outcome, Outcome::Broken);
    }

    #[test]
    fn only_streams_that_were_left_may_differ() {
        let tally = Tally {
            accepted: 10,
            refused: 3,
            finished: 6,
            timed_out: 1,
            left: 3,
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
        assert_eq!(sides_agree(&tally, &totals).outcome, Outcome::Held);
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
        for (place, change) in changes.iter().enumerate() {
            let mut changed = totals;
            change(&mut changed);
            assert_eq!(
                sides_agree(&tally, &changed).outcome,
                Outcome::Broken,
                "{place}"
            );
        }
    }
}
