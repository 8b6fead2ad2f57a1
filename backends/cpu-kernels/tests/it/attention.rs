//! Attention over pages, against a softmax over all positions at once.

use super::*;

const SCALE: f32 = 0.3;

/// One query, and what it may see.
struct Ask<'a, T> {
    query: &'a [f32],
    softcap: Option<f32>,
    sink: Option<f32>,
    pages: HeadPages<'a, T>,
    seen: std::ops::Range<usize>,
}

/// A head's cached keys and values. Whatever a page holds past the last token is NaN: it must
/// not matter.
struct Cache<T: KvElement> {
    pages: Vec<PagePtr<T>>,
    /// What the pages point to.
    _memory: Vec<Vec<f32>>,
    keys: Vec<Vec<f64>>,
    values: Vec<Vec<f64>>,
    head_dim: usize,
    value_dim: usize,
}

impl<T: KvElement> Cache<T> {
    fn random(random: &mut Random, head_dim: usize, value_dim: usize, tokens: usize) -> Self {
        let count = tokens.div_ceil(PAGE);
        let factors = if T::SCALED { 2 * 4 / T::BYTES } else { 0 };
        let page_len = (head_dim + value_dim + factors) * PAGE;
        // Factors are numbers of four bytes, which a page must be aligned for.
        let page_words = (page_len * T::BYTES).div_ceil(4);
        let mut memory = vec![vec![0f32; page_words]; count];
        let page = |words: &mut Vec<f32>| PagePtr::new(words.as_mut_ptr().cast(), page_len);
        let mut cache = Self {
            pages: memory.iter_mut().map(page).collect(),
            _memory: memory,
            keys: Vec::new(),
            values: Vec::new(),
            head_dim,
            value_dim,
        };
        for token in 0..count * PAGE {
            let inside = token < tokens;
            let mut draw = |len| {
                if inside {
                    random.floats(len, 1.0)
                } else {
                    vec![f32::NAN; len]
                }
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

    /// Writes a token, and returns the rounded key and value.
    fn write(&self, token: usize, key: &[f32], value: &[f32]) -> (Vec<f64>, Vec<f64>) {
        let (page, slot) = (self.pages[token / PAGE], token % PAGE);
        let places = self.head_pages();
        let put = |values: &[f32], at: &dyn Fn(usize) -> usize, scales: usize| {
            let scale = T::scale_for(values);
            if T::SCALED {
                // SAFETY: the test that made the pages alone holds them, and all lie inside.
                unsafe { page.write_scale(scales, slot, scale) };
            }
            let stored = values.iter().enumerate().map(|(d, value)| {
                let stored = T::store(*value, scale);
                // SAFETY: as above.
                unsafe { page.write(at(d), stored) };
                f64::from(stored.load()) * f64::from(scale)
            });
            stored.collect()
        };
        let values_at = self.head_dim * PAGE + slot * self.value_dim;
        let keys = put(key, &|d| d * PAGE + slot, places.key_scales);
        (keys, put(value, &|d| values_at + d, places.value_scales))
    }

    fn head_pages(&self) -> HeadPages<'_, T> {
        let key_scales = (self.head_dim + self.value_dim) * PAGE;
        HeadPages {
            pages: &self.pages,
            keys: 0,
            values: Some(self.head_dim * PAGE),
            key_scales,
            value_scales: key_scales + PAGE * 4 / T::BYTES,
        }
    }

    fn ask<'a>(&'a self, query: &'a [f32], start: usize) -> Ask<'a, T> {
        Ask {
            query,
            softcap: None,
            sink: None,
            pages: self.head_pages(),
            seen: start..self.keys.len(),
        }
    }

    /// What all tables agree on.
    fn attend(&self, ask: &Ask<T>) -> Vec<f32> {
        self.attend_together(std::slice::from_ref(ask))
    }

    /// All queries in one call; all tables must agree.
    fn attend_together(&self, asks: &[Ask<T>]) -> Vec<f32> {
        agree("attend", |k| {
            let mut out = vec![7.0; asks.len() * self.value_dim];
            let rows = asks.iter().zip(out.chunks_exact_mut(self.value_dim));
            let mut queries: Vec<AttendQuery> = rows
                .map(|(ask, out)| AttendQuery {
                    query: ask.query,
                    sink: ask.sink,
                    seen: ask.seen.clone(),
                    out,
                })
                .collect();
            let args = self.args(&asks[0], None);
            // SAFETY: `agree` hands out tables that this machine can run.
            unsafe { T::attend(k)(&args, &mut queries) };
            out
        })
    }

    fn args<'a>(&self, ask: &Ask<'a, T>, piece: Option<usize>) -> AttendArgs<'a, T> {
        AttendArgs {
            scale: SCALE,
            softcap: ask.softcap,
            value_dim: self.value_dim,
            pages: ask.pages,
            piece,
        }
    }

    /// The same, each piece in its own call and then joined, last piece first.
    fn attend_pieces(&self, asks: &[Ask<T>]) -> Vec<f32> {
        let len = piece_len(self.value_dim);
        agree("pieces", |k| {
            let all = asks.iter().map(|ask| pieces(&ask.seen));
            let all =
                all.clone().map(|of| of.start).min().unwrap()..all.map(|of| of.end).max().unwrap();
            let mut answers = vec![vec![7.0; all.len() * len]; asks.len()];
            for piece in all.clone().rev() {
                let at = (piece - all.start) * len;
                let rows = asks.iter().zip(&mut answers);
                let mut queries: Vec<AttendQuery> = rows
                    .map(|(ask, answers)| AttendQuery {
                        query: ask.query,
                        sink: ask.sink,
                        seen: ask.seen.clone(),
                        out: &mut answers[at..at + len],
                    })
                    .collect();
                let args = self.args(&asks[0], Some(piece));
                unsafe { T::attend(k)(&args, &mut queries) };
            }
            let joined = asks.iter().zip(&answers).flat_map(|(ask, answers)| {
                let own = pieces(&ask.seen);
                let own = (own.start - all.start) * len..(own.end - all.start) * len;
                let mut out = vec![7.0; self.value_dim];
                unsafe { (k.join_pieces)(&answers[own], ask.sink, &mut out) };
                out
            });
            joined.collect()
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
        let seen = args.seen.clone();
        let weights: Vec<f64> = seen.clone().map(|t| score(&self.keys[t]).exp()).collect();
        let sink = args.sink.map_or(0.0, |sink| f64::from(sink).exp());
        let total: f64 = weights.iter().sum::<f64>() + sink;
        let from = match args.pages.values {
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

#[track_caller]
fn check<T: KvElement>(cache: &Cache<T>, args: &Ask<T>, what: &str) {
    let (found, expected) = (cache.attend(args), cache.expected(args));
    for (found, exact) in found.iter().zip(expected) {
        let error = (f64::from(*found) - exact).abs();
        assert!(
            error < 2e-6,
            "{what}: {found} for {exact}, {} dims, tokens {:?}",
            args.query.len(),
            args.seen,
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
        for tokens in [1, 2, 31, 32, 33, 64, 100, PIECE, 2 * PIECE + 33] {
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
fn attention_agrees_and_ignores_hidden_positions() {
    every_way::<f32>(31);
    every_way::<F16Bits>(32);
    every_way::<Bf16Bits>(42);
    every_way::<Q8Code>(43);
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
                    values: None,
                    ..plain.pages
                };
                check(&cache, &Ask { pages, ..plain }, "values in keys");
            }
        }
    }
}

#[test]
fn values_may_be_prefixes_of_keys() {
    values_in_keys::<f32>(33);
    values_in_keys::<F16Bits>(34);
    values_in_keys::<Bf16Bits>(44);
}

#[test]
fn largest_score_dominates_distant_ones() {
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
fn visible_nan_stays_visible() {
    seen_nan::<f32>();
    seen_nan::<F16Bits>();
    seen_nan::<Bf16Bits>();
    seen_nan::<Q8Code>();
}

fn seen_nan<T: KvElement>() {
    for (tokens, broken) in [
        (1, 0),
        (20, 19),
        (50, 49),
        (2 * PIECE + 9, 3),
        (PIECE + 1, PIECE),
    ] {
        let cache = Cache::<T>::random(&mut Random(37), 8, 8, tokens);
        let nan = vec![f32::NAN; 8];
        cache.write(broken, &nan, &nan);
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

fn batched<T: KvElement>(seed: u64) {
    let mut random = Random(seed);
    for (head_dim, value_dim) in [(1, 1), (7, 9), (64, 64), (80, 80), (33, 130), (600, 16)] {
        for tokens in [131, 2 * PIECE + 3] {
            let cache = Cache::<T>::random(&mut random, head_dim, value_dim, tokens);
            for count in 1..=MAX_QUERIES + 1 {
                let queries: Vec<Vec<f32>> =
                    (0..count).map(|_| random.floats(head_dim, 2.0)).collect();
                for (window, softcap) in [(tokens, None), (40, None), (70, Some(1.5)), (1, None)] {
                    // As the tokens of one row: each sees one more than the one before it.
                    let asks: Vec<Ask<T>> = (queries.iter().enumerate())
                        .map(|(i, query)| {
                            let end = tokens - count + i + 1;
                            Ask {
                                softcap,
                                sink: (i % 2 == 1).then_some(0.5),
                                seen: end.saturating_sub(window)..end,
                                ..cache.ask(query, 0)
                            }
                        })
                        .collect();
                    let what = format!("{count} of {head_dim}, window {window} of {tokens}");
                    let alone: Vec<f32> = asks.iter().flat_map(|ask| cache.attend(ask)).collect();
                    assert_eq!(bits(&cache.attend_together(&asks)), bits(&alone), "{what}");
                    assert_eq!(bits(&cache.attend_pieces(&asks)), bits(&alone), "{what}");
                }
            }
        }
    }
}

#[test]
fn batching_changes_no_bit() {
    batched::<f32>(38);
    batched::<F16Bits>(39);
    batched::<Bf16Bits>(45);
    batched::<Q8Code>(46);
}

#[test]
fn broken_keys_affect_only_their_query() {
    let cache = Cache::<F16Bits>::random(&mut Random(40), 64, 64, 100);
    let nan = vec![f32::NAN; 64];
    cache.write(70, &nan, &nan);
    let query = Random(41).floats(64, 1.0);
    let before = Ask {
        seen: 0..70,
        ..cache.ask(&query, 0)
    };
    let found = cache.attend_together(&[before, cache.ask(&query, 0)]);
    assert!(found[..64].iter().all(|value| value.is_finite()));
    assert!(found[64..].iter().all(|value| value.is_nan()));
}

/// Formats against stored values, including extremes.
#[test]
fn formats_stay_within_their_error_bounds() {
    fn kept<T: KvElement>(values: &[f32]) -> Vec<f32> {
        let scale = T::scale_for(values);
        let stored = values.iter().map(|value| T::store(*value, scale));
        stored.map(|stored| stored.load() * scale).collect()
    }
    let values = Random(47).floats(64, 3.0);
    let near = |kept: Vec<f32>, share: f32| {
        for (kept, value) in kept.iter().zip(&values) {
            assert!(
                (kept - value).abs() <= share * value.abs(),
                "{kept} for {value}"
            );
        }
    };
    near(kept::<f32>(&values), 0.0);
    near(kept::<F16Bits>(&values), 1.0 / 2048.0);
    near(kept::<Bf16Bits>(&values), 1.0 / 256.0);
    let largest = values
        .iter()
        .fold(0.0f32, |max, value| max.max(value.abs()));
    for (kept, value) in kept::<Q8Code>(&values).iter().zip(&values) {
        assert!(
            (kept - value).abs() <= largest / 253.0,
            "{kept} for {value}"
        );
    }
    for extreme in [f32::MAX, f32::MIN, 65504.0, 1e-30] {
        for kept in [
            kept::<F16Bits>(&[extreme])[0],
            kept::<Bf16Bits>(&[extreme])[0],
            kept::<Q8Code>(&[extreme])[0],
        ] {
            assert!(kept.is_finite(), "{extreme} became {kept}");
        }
    }
    assert_eq!(kept::<Q8Code>(&[0.0, -0.0, 1e-45]), [0.0; 3]);
    for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let values = [1.0, broken];
        assert!(!kept::<Q8Code>(&values)[1].is_finite(), "{broken}");
        if broken.is_nan() {
            assert!(kept::<F16Bits>(&values)[1].is_nan() && kept::<Bf16Bits>(&values)[1].is_nan());
        }
    }
}
