//! Prompt lookup: what followed the last tokens when they occurred before.

use std::collections::HashMap;

use super::proposer::{ProposalRequest, Proposer};

/// Tokens that must match.
const KEY: usize = 2;
/// Earlier occurrences to compare, latest first.
const MOST_OCCURRENCES: usize = 32;
/// Matches are not compared further back.
const LONGEST_MATCH: usize = 32;
/// No earlier occurrence.
const NONE: u32 = u32::MAX;

/// The positions of each pair of tokens, by sequence.
#[derive(Debug, Default)]
pub(crate) struct PromptLookup {
    sequences: HashMap<u64, Occurrences>,
}

/// Where pairs of tokens occurred in a sequence: a hash table whose entries are lists, each linked
/// through the positions themselves.
#[derive(Debug, Default)]
struct Occurrences {
    /// The position after the latest occurrence.
    latest: HashMap<[u32; KEY], u32>,
    /// For each position, the earlier one after the same pair.
    earlier: Vec<u32>,
    /// The occurrence that was continued last: likely to go on.
    followed: Option<Followed>,
}

#[derive(Debug, Clone, Copy)]
struct Followed {
    /// How far back the occurrence is.
    distance: usize,
}

/// An earlier occurrence of a sequence's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Match {
    /// The position of the token that followed it.
    next: usize,
    len: usize,
}

impl Proposer for PromptLookup {
    fn propose(&mut self, requests: &mut [ProposalRequest<'_>]) {
        for request in requests {
            let occurrences = self.sequences.entry(request.sequence).or_default();
            occurrences.read(request.tokens);
            let Some(found) = occurrences.find(request.tokens) else {
                continue;
            };
            request.evidence = found.len;
            // A repetition that reaches the end goes on as it began.
            let source = &request.tokens[found.next..];
            let drafts = source.iter().cycle().take(request.most);
            request.drafts.extend(drafts);
        }
    }

    fn forget(&mut self, sequence: u64) {
        self.sequences.remove(&sequence);
    }
}

impl Occurrences {
    /// Indexes the tokens that are new, except the pair at the end, which must not find itself.
    fn read(&mut self, tokens: &[u32]) {
        self.earlier.resize(self.earlier.len().max(KEY), NONE);
        for next in self.earlier.len()..tokens.len() {
            let Ok(key) = <[u32; KEY]>::try_from(&tokens[next - KEY..next]) else {
                return;
            };
            let earlier = self.latest.insert(key, next as u32);
            self.earlier.push(earlier.unwrap_or(NONE));
        }
    }

    /// The longest match with the end of `tokens`: of equal ones, that which was followed so far,
    /// or else the latest.
    fn find(&mut self, tokens: &[u32]) -> Option<Match> {
        let key = tokens.last_chunk::<KEY>()?;
        let mut best: Option<Match> = None;
        let mut consider = |next: usize| {
            let len = common_suffix(&tokens[..next], tokens);
            if len >= KEY && best.is_none_or(|best| len > best.len) {
                best = Some(Match { next, len });
            }
        };
        if let Some(followed) = self.followed {
            consider(tokens.len() - followed.distance);
        }
        let mut next = self.latest.get(key).copied().unwrap_or(NONE);
        for _ in 0..MOST_OCCURRENCES {
            if next == NONE {
                break;
            }
            consider(next as usize);
            next = self.earlier[next as usize];
        }
        let distance = |found: Match| tokens.len() - found.next;
        self.followed = best.map(|found| Followed {
            distance: distance(found),
        });
        best
    }
}

/// How many tokens at the ends are equal, up to [`LONGEST_MATCH`].
fn common_suffix(one: &[u32], other: &[u32]) -> usize {
    let pairs = one.iter().rev().zip(other.iter().rev());
    pairs
        .take(LONGEST_MATCH)
        .take_while(|(a, b)| a == b)
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn propose(lookup: &mut PromptLookup, tokens: &[u32], most: usize) -> (Vec<u32>, usize) {
        let mut drafts = Vec::new();
        let mut request = ProposalRequest {
            sequence: 7,
            tokens,
            most,
            drafts: &mut drafts,
            evidence: 0,
        };
        lookup.propose(std::slice::from_mut(&mut request));
        let evidence = request.evidence;
        (drafts, evidence)
    }

    fn once(tokens: &[u32], most: usize) -> (Vec<u32>, usize) {
        propose(&mut PromptLookup::default(), tokens, most)
    }

    #[test]
    fn proposes_what_followed_before() {
        let cases: [(&[u32], usize, &[u32], usize); 8] = [
            (&[1, 2, 3, 4, 9, 1, 2], 3, &[3, 4, 9], 2),
            (&[1, 2, 3, 4, 9, 1, 2], 2, &[3, 4], 2),
            (&[1, 2, 3, 4, 9, 1, 2], 0, &[], 2),
            // The longest match, not the latest.
            (&[5, 1, 2, 3, 6, 1, 2, 4, 5, 1, 2], 1, &[3], 3),
            // Of equal ones the latest.
            (&[1, 2, 3, 1, 2, 4, 1, 2], 1, &[4], 2),
            // Nothing matches, or too little.
            (&[1, 2, 3, 4], 4, &[], 0),
            (&[1, 2, 3, 4, 2], 4, &[], 0),
            (&[1], 4, &[], 0),
        ];
        for (tokens, most, drafts, evidence) in cases {
            assert_eq!(
                once(tokens, most),
                (drafts.to_vec(), evidence),
                "{tokens:?}"
            );
        }
    }

    #[test]
    fn repetition_goes_on() {
        let (drafts, _) = once(&[9, 1, 2, 3, 1, 2, 3, 1, 2], 7);
        assert_eq!(drafts, [3, 1, 2, 3, 1, 2, 3]);
        assert_eq!(once(&[4, 4, 4, 4], 3), (vec![4, 4, 4], 3));
    }

    #[test]
    fn incremental_index_equals_fresh_index() {
        let tokens: Vec<u32> = (0..400u32).map(|at| at * at % 7 + at % 3).collect();
        let mut lookup = PromptLookup::default();
        for end in 1..tokens.len() {
            let (_, evidence) = propose(&mut lookup, &tokens[..end], 5);
            // It may also know an older occurrence, which it follows.
            assert!(evidence >= once(&tokens[..end], 5).1, "{end} tokens");
        }
        lookup.forget(7);
        assert!(lookup.sequences.is_empty());
    }
}
