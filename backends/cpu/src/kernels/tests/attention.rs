//! Attention over pages, against a softmax over all positions at once.

use super::*;
use crate::shared::PagePtr;

const SCALE: f32 = 0.3;

/// One query, and what it may see.
struct Ask<'a, T> {
    query: &'a [f32],
    softcap: Option<f32>,
    sink: Option<f32>,
    pages: HeadPages<'a, T>,
    start: usize,
    end: usize,
}

/// A head's cached keys and values. Whatever a page holds past the last token is NaN: it must
/// not matter.
struct Cache<T: KvElement> {
    pages: Vec<PagePtr<T>>,
    keys: Vec<Vec<f64>>,
    values: Vec<Vec<f64>>,
    head_dim: usize,
    value_dim: usize,
}

impl<T: KvElement> Cache<T> {
    fn random(random: &mut Random, head_dim: usize, value_dim: usize, tokens: usize) -> Self {
        let count = tokens.div_ceil(PAGE);
        let page_len = (head_dim + value_dim) * PAGE;
        let mut cache = Self {
            pages: (0..count).map(|_| PagePtr::allocate(page_len)).collect(),
            keys: Vec::new(),
            values: Vec::new(),
            head_dim,
            value_dim,
        };
        for token in 0..count * PAGE {
            let inside = token < tokens;
            let mut draw = |len| match inside {
                true => random.floats(len, 1.0),
                false => vec![f32::NAN; len],
            };
            let (key, value) = (draw(head_dim), draw(value_dim));
            let (key, value) = cache.write(token, &key, &value);
            if inside {
                cache.keys.push(key);
                cache.values.push(value);
            }
        }
        cache
    }

    /// Puts a token in its place; what is stored there may be rounded.
    fn write(&self, token: usize, key: &[f32], value: &[f32]) -> (Vec<f64>, Vec<f64>) {
        let (page, slot) = (self.pages[token / PAGE], token % PAGE);
        let store = |at: usize, value: f32| {
            let stored = T::store(value);
            // SAFETY: the test that made the pages alone holds them, and `at` lies inside.
            unsafe { page.write(at, stored) };
            f64::from(stored.load())
        };
        let values_at = self.head_dim * PAGE + slot * self.value_dim;
        let keys = (0..self.head_dim).map(|d| store(d * PAGE + slot, key[d]));
        let keys = keys.collect();
        let values = (0..self.value_dim).map(|d| store(values_at + d, value[d]));
        (keys, values.collect())
    }

    fn ask<'a>(&'a self, query: &'a [f32], start: usize) -> Ask<'a, T> {
        Ask {
            query,
            softcap: None,
            sink: None,
            pages: HeadPages {
                pages: &self.pages,
                key_offset: 0,
                value_offset: Some(self.head_dim * PAGE),
            },
            start,
            end: self.keys.len(),
        }
    }

    /// What all tables agree on.
    fn attend(&self, ask: &Ask<T>) -> Vec<f32> {
        self.attend_together(std::slice::from_ref(ask))
    }

    /// What all tables agree on, asked all at once; the answers after each other.
    fn attend_together(&self, asks: &[Ask<T>]) -> Vec<f32> {
        agree("attend", |k| {
            let mut out = vec![7.0; asks.len() * self.value_dim];
            let rows = asks.iter().zip(out.chunks_exact_mut(self.value_dim));
            let mut queries: Vec<AttendQuery> = rows
                .map(|(ask, out)| AttendQuery {
                    query: ask.query,
                    sink: ask.sink,
                    start: ask.start,
                    end: ask.end,
                    out,
                })
                .collect();
            let args = AttendArgs {
                scale: SCALE,
                softcap: asks[0].softcap,
                pages: asks[0].pages,
            };
            // SAFETY: `agree` hands out tables that this machine can run.
            unsafe { T::attend(k)(&args, &mut queries) };
            out
        })
    }

    fn expected(&self, args: &Ask<T>) -> Vec<f64> {
        let query = exact(args.query);
        let score = |key: &[f64]| {
            let dot: f64 = query.iter().zip(key).map(|(q, k)| q * k).sum();
            let score = dot * f64::from(SCALE);
            match args.softcap {
                Some(cap) => (score / f64::from(cap)).tanh() * f64::from(cap),
                None => score,
            }
        };
        let seen = args.start..args.end;
        let weights: Vec<f64> = seen.clone().map(|t| score(&self.keys[t]).exp()).collect();
        let sink = args.sink.map_or(0.0, |sink| f64::from(sink).exp());
        let total: f64 = weights.iter().sum::<f64>() + sink;
        let from = match args.pages.value_offset {
            Some(_) => &self.values,
            None => &self.keys,
        };
        let mixed = |d: usize| -> f64 {
            let weighted = weights
                .iter()
                .zip(seen.clone())
                .map(|(w, t)| w * from[t][d]);
            weighted.sum::<f64>() / total
        };
        (0..self.value_dim).map(mixed).collect()
    }
}

impl<T: KvElement> Drop for Cache<T> {
    fn drop(&mut self) {
        for page in self.pages.drain(..) {
            // SAFETY: allocated above, freed once.
            unsafe { page.free() };
        }
    }
}

#[track_caller]
fn check<T: KvElement>(cache: &Cache<T>, args: &Ask<T>, what: &str) {
    let (found, expected) = (cache.attend(args), cache.expected(args));
    for (found, exact) in found.iter().zip(expected) {
        let error = (f64::from(*found) - exact).abs();
        assert!(
            error < 2e-6,
            "{what}: {found} for {exact}, {} dims, tokens {}..{}",
            args.query.len(),
            args.start,
            args.end
        );
    }
}

fn every_way<T: KvElement>(seed: u64) {
    let mut random = Random(seed);
    for (head_dim, value_dim) in [
        (1, 1),
        (7, 7),
        (16, 16),
        (24, 16),
        (64, 64),
        (80, 80),
        (40, 130),
    ] {
        for tokens in [1, 2, 31, 32, 33, 64, 100] {
            let cache = Cache::<T>::random(&mut random, head_dim, value_dim, tokens);
            let query = random.floats(head_dim, 2.0);
            for start in [0, 1, tokens / 2, tokens - 1] {
                if start >= tokens {
                    continue;
                }
                check(&cache, &cache.ask(&query, start), "plain");
                for sink in [-3.0, 0.5, 4.0, -1e30] {
                    let args = Ask {
                        sink: Some(sink),
                        softcap: Some(1.5),
                        ..cache.ask(&query, start)
                    };
                    check(&cache, &args, "capped, with a sink");
                }
            }
        }
    }
}

#[test]
fn attention_agrees_and_ignores_what_it_may_not_see() {
    every_way::<f32>(31);
    every_way::<Half>(32);
}

fn values_in_keys<T: KvElement>(seed: u64) {
    let mut random = Random(seed);
    for (head_dim, value_dim) in [(1, 1), (9, 5), (24, 16), (40, 32), (72, 64)] {
        for tokens in [1, 31, 32, 33, 70] {
            let cache = Cache::<T>::random(&mut random, head_dim, value_dim, tokens);
            let query = random.floats(head_dim, 2.0);
            for start in [0, tokens / 2] {
                let plain = cache.ask(&query, start);
                let pages = HeadPages {
                    value_offset: None,
                    ..plain.pages
                };
                check(&cache, &Ask { pages, ..plain }, "values in keys");
            }
        }
    }
}

#[test]
fn values_may_be_the_beginning_of_their_keys() {
    values_in_keys::<f32>(33);
    values_in_keys::<Half>(34);
}

#[test]
fn scores_far_apart_leave_the_largest() {
    let cache = Cache::<f32>::random(&mut Random(35), 16, 16, 70);
    // Scores up to ± 5e4: the softmax is the one largest key's value.
    let query = Random(36).floats(16, 1e5);
    let args = cache.ask(&query, 0);
    let found = cache.attend(&args);
    let score = |key: &[f64]| -> f64 { exact(&query).iter().zip(key).map(|(q, k)| q * k).sum() };
    let best = (0..70).max_by(|a, b| score(&cache.keys[*a]).total_cmp(&score(&cache.keys[*b])));
    near("attend", &found, &cache.values[best.unwrap()], 1e-6);
    // A sink above them all leaves nothing.
    let args = Ask {
        sink: Some(1e30),
        ..cache.ask(&query, 0)
    };
    let found = cache.attend(&args);
    assert!(found.iter().all(|value| value.abs() < 1e-30), "{found:?}");
}

#[test]
fn a_nan_that_is_seen_is_not_hidden() {
    for tokens in [1, 20, 50] {
        let cache = Cache::<f32>::random(&mut Random(37), 8, 8, tokens);
        let nan = vec![f32::NAN; 8];
        cache.write(tokens - 1, &nan, &nan);
        let query = vec![1.0; 8];
        for softcap in [None, Some(2.0)] {
            let args = Ask {
                softcap,
                ..cache.ask(&query, 0)
            };
            let found = cache.attend(&args);
            assert!(found.iter().all(|value| value.is_nan()), "{tokens}");
        }
    }
}

fn in_company<T: KvElement>(seed: u64) {
    let mut random = Random(seed);
    for (head_dim, value_dim) in [(1, 1), (7, 9), (64, 64), (80, 80), (33, 130), (600, 16)] {
        let tokens = 131;
        let cache = Cache::<T>::random(&mut random, head_dim, value_dim, tokens);
        for count in 1..=MAX_QUERIES + 1 {
            let queries: Vec<Vec<f32>> = (0..count).map(|_| random.floats(head_dim, 2.0)).collect();
            for (window, softcap) in [(tokens, None), (40, None), (70, Some(1.5)), (1, None)] {
                // As the tokens of one row: each sees one more than the one before it.
                let asks: Vec<Ask<T>> = (queries.iter().enumerate())
                    .map(|(i, query)| {
                        let end = tokens - count + i + 1;
                        Ask {
                            softcap,
                            sink: (i % 2 == 1).then_some(0.5),
                            end,
                            ..cache.ask(query, end.saturating_sub(window))
                        }
                    })
                    .collect();
                let alone = asks.iter().flat_map(|ask| cache.attend(ask));
                let alone: Vec<u32> = alone.map(f32::to_bits).collect();
                let together = cache.attend_together(&asks);
                let together: Vec<u32> = together.into_iter().map(f32::to_bits).collect();
                assert_eq!(together, alone, "{count} of {head_dim}, window {window}");
            }
        }
    }
}

#[test]
fn company_changes_no_bit() {
    in_company::<f32>(38);
    in_company::<Half>(39);
}

#[test]
fn broken_keys_stay_their_own_querys_trouble() {
    let cache = Cache::<Half>::random(&mut Random(40), 64, 64, 100);
    let nan = vec![f32::NAN; 64];
    cache.write(70, &nan, &nan);
    let query = Random(41).floats(64, 1.0);
    let before = Ask {
        end: 70,
        ..cache.ask(&query, 0)
    };
    let found = cache.attend_together(&[before, cache.ask(&query, 0)]);
    assert!(found[..64].iter().all(|value| value.is_finite()));
    assert!(found[64..].iter().all(|value| value.is_nan()));
}
