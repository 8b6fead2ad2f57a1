//! Which models to evict for another.

use super::slot::SlotId;

/// A model that holds memory.
#[derive(Debug, Clone, Copy)]
pub struct Resident {
    pub id: SlotId,
    pub bytes: u64,
    pub usage: Usage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// Leased, or being opened.
    InUse,
    IdleSince(tokio::time::Instant),
    /// Being closed.
    Closing,
}

/// Whether a model fits.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission {
    Fits,
    /// Fits once these and the closing models are closed.
    AfterEviction(Vec<SlotId>),
    /// Models in use leave too little memory.
    Busy {
        available: u64,
    },
    /// Larger than the budget.
    TooLarge,
}

/// Decides how `need` bytes fit into `budget`. Evicts the least recently used models, and no more
/// than necessary.
pub fn admit(need: u64, budget: u64, residents: &[Resident]) -> Admission {
    if need > budget {
        return Admission::TooLarge;
    }
    // Sizes come from files and may be arbitrarily large: their sum may overflow.
    let (need, limit) = (u128::from(need), u128::from(budget));
    let bytes_of = |counts: fn(&Usage) -> bool| -> u128 {
        let counted = residents.iter().filter(|resident| counts(&resident.usage));
        counted.map(|resident| u128::from(resident.bytes)).sum()
    };
    if bytes_of(|_| true) + need <= limit {
        return Admission::Fits;
    }
    let in_use = bytes_of(|usage| *usage == Usage::InUse);
    if in_use + need > limit {
        let in_use = u64::try_from(in_use).unwrap_or(u64::MAX);
        return Admission::Busy {
            available: budget.saturating_sub(in_use),
        };
    }
    let mut idle: Vec<_> = residents
        .iter()
        .filter_map(|resident| match resident.usage {
            Usage::IdleSince(since) => Some((since, resident)),
            Usage::InUse | Usage::Closing => None,
        })
        .collect();
    idle.sort_by_key(|(since, _)| *since);
    let mut remaining = bytes_of(|usage| *usage != Usage::Closing);
    let mut victims = Vec::new();
    for (_, resident) in idle {
        if remaining + need <= limit {
            break;
        }
        remaining -= u128::from(resident.bytes);
        victims.push(resident);
    }
    // A small model that was evicted early may still fit.
    let spared = |resident: &mut &Resident| {
        let with = remaining + u128::from(resident.bytes);
        let fits = with + need <= limit;
        remaining = if fits { with } else { remaining };
        fits
    };
    victims.reverse();
    victims.extract_if(.., spared).for_each(drop);
    let victims = victims.iter().rev().map(|resident| resident.id).collect();
    Admission::AfterEviction(victims)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    #[test]
    fn evicts_least_recently_used_and_no_more() {
        const ALL: u64 = u64::MAX;
        type Case<'a> = (u64, &'a [(u64, Usage)], Admission);
        let start = Instant::now();
        let idle = |seconds| Usage::IdleSince(start + Duration::from_secs(seconds));
        let (in_use, closing) = (Usage::InUse, Usage::Closing);
        // Need, residents as (bytes, usage), and the outcome; the budget is 10.
        let cases: [Case; 15] = [
            (10, &[], Admission::Fits),
            (11, &[], Admission::TooLarge),
            (4, &[(6, in_use)], Admission::Fits),
            (5, &[(6, in_use)], Admission::Busy { available: 4 }),
            (
                5,
                &[(3, idle(1)), (3, idle(2))],
                Admission::AfterEviction(vec![0]),
            ),
            (
                5,
                &[(3, idle(2)), (3, idle(1))],
                Admission::AfterEviction(vec![1]),
            ),
            (
                8,
                &[(3, idle(2)), (3, idle(1))],
                Admission::AfterEviction(vec![1, 0]),
            ),
            (
                5,
                &[(3, in_use), (3, idle(1))],
                Admission::AfterEviction(vec![1]),
            ),
            (
                6,
                &[(3, idle(1)), (6, idle(2))],
                Admission::AfterEviction(vec![1]),
            ),
            (
                5,
                &[(6, in_use), (3, idle(1))],
                Admission::Busy { available: 4 },
            ),
            (
                5,
                &[(6, closing), (3, idle(1))],
                Admission::AfterEviction(vec![]),
            ),
            (
                8,
                &[(6, closing), (3, idle(1))],
                Admission::AfterEviction(vec![1]),
            ),
            (
                5,
                &[(4, idle(1)), (ALL, idle(2))],
                Admission::AfterEviction(vec![1]),
            ),
            (
                5,
                &[(ALL, idle(1)), (ALL, idle(2))],
                Admission::AfterEviction(vec![0, 1]),
            ),
            (
                5,
                &[(ALL, in_use), (ALL, in_use)],
                Admission::Busy { available: 0 },
            ),
        ];
        for (need, held, expected) in cases {
            let resident = |(id, &(bytes, usage))| Resident { id, bytes, usage };
            let residents: Vec<_> = (0..).zip(held).map(resident).collect();
            assert_eq!(
                admit(need, 10, &residents),
                expected,
                "{need} over {held:?}"
            );
        }
    }
}
