//! Which models make room for another.

use super::slot::SlotId;

/// What a model holds of the memory for all.
#[derive(Debug, Clone, Copy)]
pub struct Resident {
    pub id: SlotId,
    pub bytes: u64,
    pub stay: Stay,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    /// In use, or being opened.
    Needed,
    /// Nobody uses it since that moment.
    IdleSince(tokio::time::Instant),
    /// On its way out already.
    Leaving,
}

/// How a model comes to its memory.
#[derive(Debug, PartialEq, Eq)]
pub enum Room {
    /// There is enough.
    Free,
    /// There will be, once these and those that are leaving are closed.
    After(Vec<SlotId>),
    /// What is needed by others leaves only so much.
    None { available: u64 },
    /// It is more than there is for all.
    Never,
}

/// Finds room for `need` bytes within `budget`: the model that was used longest ago goes first,
/// and none goes in vain.
pub fn find(need: u64, budget: u64, residents: &[Resident]) -> Room {
    if need > budget {
        return Room::Never;
    }
    // Files say what models take, and may say anything: sums of it need more room.
    let (need, limit) = (u128::from(need), u128::from(budget));
    let bytes_of = |staying: fn(&Stay) -> bool| -> u128 {
        let staying = residents.iter().filter(|resident| staying(&resident.stay));
        staying.map(|resident| u128::from(resident.bytes)).sum()
    };
    if bytes_of(|_| true) + need <= limit {
        return Room::Free;
    }
    let needed = bytes_of(|stay| *stay == Stay::Needed);
    if needed + need > limit {
        let needed = u64::try_from(needed).unwrap_or(u64::MAX);
        return Room::None {
            available: budget.saturating_sub(needed),
        };
    }
    let mut idle: Vec<_> = residents
        .iter()
        .filter_map(|resident| match resident.stay {
            Stay::IdleSince(moment) => Some((moment, resident)),
            Stay::Needed | Stay::Leaving => None,
        })
        .collect();
    idle.sort_by_key(|(moment, _)| *moment);
    let mut staying = bytes_of(|stay| *stay != Stay::Leaving);
    let mut victims = Vec::new();
    for (_, resident) in idle {
        if staying + need <= limit {
            break;
        }
        staying -= u128::from(resident.bytes);
        victims.push(resident);
    }
    // A small one that went early may have been in nobody's way.
    let spared = |resident: &mut &Resident| {
        let with = staying + u128::from(resident.bytes);
        let fits = with + need <= limit;
        staying = if fits { with } else { staying };
        fits
    };
    victims.reverse();
    victims.extract_if(.., spared).for_each(drop);
    let victims = victims.iter().rev().map(|resident| resident.id).collect();
    Room::After(victims)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    #[test]
    fn the_longest_idle_go_first_and_none_in_vain() {
        const ALL: u64 = u64::MAX;
        type Case<'a> = (u64, &'a [(u64, Stay)], Room);
        let start = Instant::now();
        let idle = |seconds| Stay::IdleSince(start + Duration::from_secs(seconds));
        let (needed, leaving) = (Stay::Needed, Stay::Leaving);
        // need, residents as (bytes, stay), what comes of it; the budget is 10.
        let cases: [Case; 15] = [
            (10, &[], Room::Free),
            (11, &[], Room::Never),
            (4, &[(6, needed)], Room::Free),
            (5, &[(6, needed)], Room::None { available: 4 }),
            (5, &[(3, idle(1)), (3, idle(2))], Room::After(vec![0])),
            (5, &[(3, idle(2)), (3, idle(1))], Room::After(vec![1])),
            (8, &[(3, idle(2)), (3, idle(1))], Room::After(vec![1, 0])),
            (5, &[(3, needed), (3, idle(1))], Room::After(vec![1])),
            (6, &[(3, idle(1)), (6, idle(2))], Room::After(vec![1])),
            (5, &[(6, needed), (3, idle(1))], Room::None { available: 4 }),
            (5, &[(6, leaving), (3, idle(1))], Room::After(vec![])),
            (8, &[(6, leaving), (3, idle(1))], Room::After(vec![1])),
            (5, &[(4, idle(1)), (ALL, idle(2))], Room::After(vec![1])),
            (
                5,
                &[(ALL, idle(1)), (ALL, idle(2))],
                Room::After(vec![0, 1]),
            ),
            (
                5,
                &[(ALL, needed), (ALL, needed)],
                Room::None { available: 0 },
            ),
        ];
        for (need, held, expected) in cases {
            let resident = |(id, &(bytes, stay))| Resident { id, bytes, stay };
            let residents: Vec<_> = (0..).zip(held).map(resident).collect();
            assert_eq!(find(need, 10, &residents), expected, "{need} over {held:?}");
        }
    }
}
