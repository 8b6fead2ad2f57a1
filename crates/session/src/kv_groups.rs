//! Layers grouped by how far back they attend, and the memory that sequences need because of it.

use loquat_spec::{KvSource, Mixer, ModelSpec, Reach};

/// Groups of a model at most. Layers of further reaches join the group with the next longer one.
pub const MAX_KV_GROUPS: usize = 4;

/// Layers whose keys and values are kept equally long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvGroup {
    /// Keys and values of positions that are out of reach are freed. A backend that keeps them
    /// states [`Reach::All`].
    pub reach: Reach,
    /// Bytes of one token's keys and values in the group's layers.
    pub bytes_per_token: u64,
}

impl KvGroup {
    const NONE: Self = Self {
        reach: Reach::All,
        bytes_per_token: 0,
    };

    /// Pages of `granularity` tokens that a sequence of `len` tokens uses at most in this group, if
    /// its rows have up to `row_tokens`.
    pub fn max_pages(&self, len: usize, row_tokens: usize, granularity: usize) -> usize {
        let all = len.div_ceil(granularity);
        let (Reach::Window(reach) | Reach::Chunk(reach)) = self.reach else {
            return all;
        };
        // A row's first token reaches `reach - 1` positions back, and both ends may be inside of
        // a page.
        let span = reach.max(1).saturating_add(row_tokens.max(1)) - 1;
        all.min(span.saturating_add(granularity).saturating_sub(2) / granularity + 1)
    }

    /// Whether sequences of up to `context` tokens keep all of this group's KV.
    pub fn keeps_all_within(&self, context: usize) -> bool {
        self.reach.first_seen(context) == 0
    }

    /// The first page that the tokens from position `len` on attend to.
    pub fn first_page(&self, len: usize, granularity: usize) -> usize {
        self.reach.first_seen(len) / granularity
    }
}

/// The groups of a model, those of longer reach first. There is at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvGroups {
    groups: [KvGroup; MAX_KV_GROUPS],
    count: usize,
}

impl KvGroups {
    /// The first [`MAX_KV_GROUPS`] of these.
    pub fn new(groups: &[KvGroup]) -> Self {
        let mut all = Self {
            groups: [KvGroup::NONE; MAX_KV_GROUPS],
            count: groups.len().clamp(1, MAX_KV_GROUPS),
        };
        for (slot, group) in all.groups.iter_mut().zip(groups) {
            *slot = *group;
        }
        all
    }

    /// One group that keeps every token.
    pub fn uniform(bytes_per_token: u64) -> Self {
        Self::new(&[KvGroup {
            bytes_per_token,
            ..KvGroup::NONE
        }])
    }

    /// Those of longer reach first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &KvGroup> {
        self.groups[..self.count].iter()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of one token in all layers.
    pub fn bytes_per_token(&self) -> u64 {
        let bytes = self.iter().map(|group| group.bytes_per_token);
        bytes.fold(0, u64::saturating_add)
    }

    /// Whether sequences of up to `context` tokens free some of their KV.
    pub fn free_within(&self, context: usize) -> bool {
        self.iter().any(|group| !group.keeps_all_within(context))
    }

    /// What a token weighs in a group, compared with the other groups. Without keys and values,
    /// tokens are counted all the same.
    pub(crate) fn weight(&self, group: &KvGroup) -> u64 {
        match self.bytes_per_token() {
            0 => 1,
            _ => group.bytes_per_token,
        }
    }

    /// What a token weighs in all groups.
    pub(crate) fn token_weight(&self) -> u64 {
        let weights = self.iter().map(|group| self.weight(group));
        weights.fold(0, u64::saturating_add)
    }

    /// Tokens' worth of KV, rounded up, in so many pages of each group.
    pub fn tokens_in_pages(
        &self,
        granularity: usize,
        mut pages: impl FnMut(&KvGroup) -> usize,
    ) -> usize {
        if let [only] = &self.groups[..self.count] {
            return pages(only).saturating_mul(granularity);
        }
        let weights = self.iter().map(|group| {
            let tokens = pages(group) as u128 * granularity as u128;
            tokens.saturating_mul(u128::from(self.weight(group)))
        });
        let weight = weights.fold(0, u128::saturating_add);
        let tokens = weight.div_ceil(u128::from(self.token_weight().max(1)));
        usize::try_from(tokens).unwrap_or(usize::MAX)
    }

    /// Tokens' worth of KV that a sequence of `len` tokens uses at most, in pages of `granularity`
    /// and if its rows have up to `row_tokens`: the sum over the groups of
    /// `rate × min(len, reach + row)`.
    pub fn sequence_tokens(&self, len: usize, row_tokens: usize, granularity: usize) -> usize {
        self.tokens_in_pages(granularity, |group| {
            group.max_pages(len, row_tokens, granularity)
        })
    }

    /// The longest sequence up to `at_most` tokens that fits so many tokens' worth of KV.
    pub fn longest_sequence(
        &self,
        tokens: usize,
        row_tokens: usize,
        granularity: usize,
        at_most: usize,
    ) -> usize {
        let fits = |len: usize| self.sequence_tokens(len, row_tokens, granularity) <= tokens;
        if fits(at_most) {
            return at_most;
        }
        let (mut fitting, mut beyond) = (0, at_most);
        while beyond - fitting > 1 {
            let middle = fitting + (beyond - fitting) / 2;
            if fits(middle) {
                fitting = middle;
            } else {
                beyond = middle;
            }
        }
        fitting
    }
}

/// The group that each layer's keys and values belong to, for backends that free what is out of
/// reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerGroups {
    of_layer: Vec<usize>,
    reaches: Vec<Reach>,
}

impl LayerGroups {
    /// By the reach of a layer, or of those that read its keys if that is longer.
    pub fn new(spec: &ModelSpec) -> Self {
        let mut reach_of = vec![None::<Reach>; spec.layers.len()];
        for (layer, mixer) in spec.mixers() {
            let (stored, reach) = match mixer {
                Mixer::Attention(attention) => match attention.kv {
                    KvSource::Layer(source) => (source, attention.reach),
                    KvSource::Own | KvSource::KeyIsValue => (layer, attention.reach),
                },
                Mixer::Latent(_) => (layer, Reach::All),
                Mixer::ShortConv(_) | Mixer::DeltaRule(_) | Mixer::Mamba2(_) => continue,
            };
            let known = &mut reach_of[stored];
            *known = Some(known.map_or(reach, |known| union(known, reach)));
        }
        let mut reaches: Vec<Reach> = Vec::new();
        for reach in reach_of.iter().flatten() {
            if !reaches.contains(reach) {
                reaches.push(*reach);
            }
        }
        reaches.sort_by_key(|reach| std::cmp::Reverse(span(*reach)));
        let place = |reach: &Option<Reach>| {
            let found = reach.and_then(|reach| reaches.iter().position(|own| *own == reach));
            found.unwrap_or(0).min(MAX_KV_GROUPS - 1)
        };
        let of_layer = reach_of.iter().map(place).collect();
        let surplus = reaches.split_off(reaches.len().min(MAX_KV_GROUPS));
        if let Some(last) = reaches.last_mut() {
            *last = surplus.into_iter().fold(*last, union);
        } else {
            reaches.push(Reach::All);
        }
        Self { of_layer, reaches }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.reaches.len()
    }

    /// The group of a layer's own keys and values.
    pub fn of_layer(&self, layer: usize) -> usize {
        self.of_layer[layer]
    }

    /// Those of longer reach first.
    pub fn reaches(&self) -> &[Reach] {
        &self.reaches
    }

    /// The groups, of which each has so many bytes for a token.
    pub fn with_bytes(&self, bytes_per_token: impl Fn(usize) -> u64) -> KvGroups {
        let groups = self.reaches.iter().enumerate();
        let groups = groups.map(|(group, reach)| KvGroup {
            reach: *reach,
            bytes_per_token: bytes_per_token(group),
        });
        KvGroups::new(&groups.collect::<Vec<_>>())
    }
}

/// Positions that a token attends to at most.
fn span(reach: Reach) -> usize {
    match reach {
        Reach::All => usize::MAX,
        Reach::Window(span) | Reach::Chunk(span) => span,
    }
}

/// A reach that includes both.
fn union(a: Reach, b: Reach) -> Reach {
    match (a, b) {
        _ if a == b => a,
        (Reach::All, _) | (_, Reach::All) => Reach::All,
        // A window as long as a chunk begins no later than the chunk.
        _ => Reach::Window(span(a).max(span(b))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 32;

    fn group(reach: Reach, bytes_per_token: u64) -> KvGroup {
        KvGroup {
            reach,
            bytes_per_token,
        }
    }

    /// The pages that sequences hold while they grow, row by row.
    #[test]
    fn max_pages_bound_every_row() {
        for reach in [1, 2, 31, 32, 33, 100, 256] {
            for reach in [Reach::Window(reach), Reach::Chunk(reach)] {
                for row in [1, 7, 32, 50] {
                    let group = group(reach, 1);
                    let mut most = 0;
                    for start in 0..700usize {
                        let end = (start + row).min(700);
                        let held = end.div_ceil(PAGE) - group.first_page(start, PAGE);
                        assert!(held <= group.max_pages(end, row, PAGE), "{reach:?} {row}");
                        most = most.max(held);
                    }
                    let bound = group.max_pages(700, row, PAGE);
                    assert!(most + 1 >= bound, "{reach:?} {row}: {most} of {bound}");
                }
            }
        }
    }

    #[test]
    fn sequences_add_up_their_groups() {
        let uniform = KvGroups::uniform(100);
        assert_eq!(uniform.sequence_tokens(33, 512, PAGE), 64);
        assert_eq!(uniform.longest_sequence(100, 512, PAGE, 4096), 96);
        let without_kv = KvGroups::uniform(0);
        assert_eq!(without_kv.sequence_tokens(33, 512, PAGE), 64);
        let groups = KvGroups::new(&[group(Reach::All, 100), group(Reach::Window(1024), 500)]);
        assert_eq!(groups.bytes_per_token(), 600);
        assert!(groups.free_within(1024) && !groups.free_within(1023));
        // Within the window as without it.
        assert_eq!(groups.sequence_tokens(1000, 512, PAGE), 1024);
        // Then only a sixth of the layers grow: 49 pages behind a row of 512.
        assert_eq!(
            groups.sequence_tokens(32768, 512, PAGE),
            (32768usize + 5 * 49 * PAGE).div_ceil(6)
        );
        for tokens in [0, 31, 32, 1000, 5000, 20000] {
            let longest = groups.longest_sequence(tokens, 512, PAGE, 1 << 20);
            assert!(groups.sequence_tokens(longest, 512, PAGE) <= tokens);
            assert!(groups.sequence_tokens(longest + 1, 512, PAGE) > tokens);
        }
        let windows = KvGroups::new(&[group(Reach::Window(64), 8)]);
        assert_eq!(
            windows.longest_sequence(1024, 32, PAGE, usize::MAX),
            usize::MAX
        );
        assert_eq!(windows.longest_sequence(10, 32, PAGE, usize::MAX), 0);
    }

    #[test]
    fn union_includes_both_reaches() {
        let reaches = [
            Reach::All,
            Reach::Window(5),
            Reach::Window(8),
            Reach::Chunk(5),
            Reach::Chunk(8),
        ];
        for a in reaches {
            for b in reaches {
                for position in 0..40 {
                    let both = union(a, b).first_seen(position);
                    assert!(both <= a.first_seen(position).min(b.first_seen(position)));
                }
            }
        }
    }
}
