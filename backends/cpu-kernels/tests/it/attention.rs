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

/// How a test fills pages of an element.
trait TestElement: KvElement {
    /// The formats of codes, if elements are bytes of them.
    fn layout(codes: Option<HeadCodes>, dims: [usize; 2]) -> TestLayout;
    /// Writes a token and returns the rounded key and value.
    fn write(cache: &Cache<Self>, token: usize, key: &[f32], value: &[f32]) -> [Vec<f64>; 2];
    /// A query as the kernel rounds it.
    fn rounded(_codes: Option<HeadCodes>, query: &[f32]) -> Vec<f64> {
        exact(query)
    }
    /// The error that is allowed for values up to 1.
    const TOLERANCE: f64;
}

struct TestLayout {
    values: usize,
    page_len: usize,
}

macro_rules! plain {
    ($($element:ty),*) => {
        $(impl TestElement for $element {
            const TOLERANCE: f64 = 2e-6;

            fn layout(_codes: Option<HeadCodes>, [head_dim, value_dim]: [usize; 2]) -> TestLayout {
                TestLayout {
                    values: head_dim * PAGE,
                    page_len: (head_dim + value_dim) * PAGE,
                }
            }

            fn write(
                cache: &Cache<Self>,
                token: usize,
                key: &[f32],
                value: &[f32],
            ) -> [Vec<f64>; 2] {
                let (page, slot) = (cache.pages[token / PAGE], token % PAGE);
                let put = |values: &[f32], at: &dyn Fn(usize) -> usize| {
                    let stored = values.iter().enumerate().map(|(d, value)| {
                        let stored = Self::store(*value);
                        // SAFETY: the test that made the pages alone holds them, and all lie
                        // inside.
                        unsafe { page.write(at(d), stored) };
                        f64::from(stored.load())
                    });
                    stored.collect()
                };
                let values_at = cache.head_dim * PAGE + slot * cache.value_dim;
                [put(key, &|d| d * PAGE + slot), put(value, &|d| values_at + d)]
            }
        })*
    };
}

plain!(f32, F16Bits, Bf16Bits);

impl TestElement for u8 {
    // A page's weights are whole numbers up to 16383, of up to 32 tokens.
    const TOLERANCE: f64 = 5e-4;

    fn layout(codes: Option<HeadCodes>, _dims: [usize; 2]) -> TestLayout {
        let codes = codes.unwrap();
        TestLayout {
            values: codes.value.at,
            page_len: codes.value.at + codes.value.page_bytes(),
        }
    }

    fn write(cache: &Cache<u8>, token: usize, key: &[f32], value: &[f32]) -> [Vec<f64>; 2] {
        let (page, slot) = (cache.pages[token / PAGE], token % PAGE);
        let put = |span: CodeSpan, values: &[f32]| {
            let mut kept = vec![0.0; values.len()];
            // SAFETY: the test that made the pages alone holds them, and all lie inside.
            unsafe {
                span.write(page, slot, values);
                span.read(page, slot, &mut kept);
            }
            exact(&kept)
        };
        let codes = cache.codes.unwrap();
        [put(codes.key, key), put(codes.value, value)]
    }

    fn rounded(codes: Option<HeadCodes>, query: &[f32]) -> Vec<f64> {
        let largest = query.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        let unit = f64::from(largest) / 16256.0;
        let upper_byte = codes.unwrap().key.format != CodeFormat::Q8;
        let round = |x: f64| {
            let whole = (x / unit).round();
            let upper = ((whole + 64.0) / 128.0).floor() * 128.0;
            unit * if upper_byte { upper } else { whole }
        };
        exact(query).into_iter().map(round).collect()
    }
}

/// A head's cached keys and values. Whatever a page holds past the last token is NaN: it must
/// not matter.
struct Cache<T: KvElement> {
    pages: Vec<PagePtr<T>>,
    /// What the pages point to.
    _memory: Vec<Vec<f32>>,
    codes: Option<HeadCodes>,
    keys: Vec<Vec<f64>>,
    values: Vec<Vec<f64>>,
    head_dim: usize,
    value_dim: usize,
    values_at: usize,
}

impl<T: TestElement> Cache<T> {
    fn random(random: &mut Random, head_dim: usize, value_dim: usize, tokens: usize) -> Self {
        Self::coded(None, random, [head_dim, value_dim], tokens)
    }

    /// With codes of these formats.
    fn coded(
        codes: Option<HeadCodes>,
        random: &mut Random,
        [head_dim, value_dim]: [usize; 2],
        tokens: usize,
    ) -> Self {
        let codes = codes.map(|codes| {
            let key = CodeSpan {
                dim: head_dim,
                ..codes.key
            };
            HeadCodes {
                key,
                value: CodeSpan {
                    at: key.page_bytes(),
                    dim: value_dim,
                    ..codes.value
                },
                ..codes
            }
        });
        let count = tokens.div_ceil(PAGE);
        let layout = T::layout(codes, [head_dim, value_dim]);
        let page_words = (layout.page_len * T::BYTES).div_ceil(4);
        let mut memory = vec![vec![f32::NAN; page_words]; count];
        let page = |words: &mut Vec<f32>| PagePtr::new(words.as_mut_ptr().cast(), layout.page_len);
        let mut cache = Self {
            pages: memory.iter_mut().map(page).collect(),
            _memory: memory,
            codes,
            keys: Vec::new(),
            values: Vec::new(),
            head_dim,
            value_dim,
            values_at: layout.values,
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
            let [key, value] = cache.write(token, &key, &value);
            if inside {
                cache.keys.push(key);
                cache.values.push(value);
            }
        }
        cache
    }

    /// Writes a token, and returns the rounded key and value.
    fn write(&self, token: usize, key: &[f32], value: &[f32]) -> [Vec<f64>; 2] {
        T::write(self, token, key, value)
    }

    fn head_pages(&self) -> HeadPages<'_, T> {
        HeadPages {
            pages: &self.pages,
            layout: HeadLayout {
                keys: 0,
                key_dim: self.head_dim,
                values: Some(self.values_at),
                value_dim: self.value_dim,
                codes: self.codes,
            },
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
        let query = T::rounded(self.codes, args.query);
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
        let from = match args.pages.layout.values {
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
fn check<T: TestElement>(cache: &Cache<T>, args: &Ask<T>, what: &str) {
    let (found, expected) = (cache.attend(args), cache.expected(args));
    for (found, exact) in found.iter().zip(expected) {
        let error = (f64::from(*found) - exact).abs();
        assert!(
            error < T::TOLERANCE,
            "{what}: {found} for {exact}, {} dims, tokens {:?}",
            args.query.len(),
            args.seen,
        );
    }
}

fn every_way<T: TestElement>(codes: Option<HeadCodes>, seed: u64) {
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
            let cache = Cache::<T>::coded(codes, &mut random, [head_dim, value_dim], tokens);
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
    every_way::<f32>(None, 31);
    every_way::<F16Bits>(None, 32);
    every_way::<Bf16Bits>(None, 42);
    for codes in code_pairs() {
        every_way::<u8>(Some(codes), 43);
    }
}

fn values_in_keys<T: TestElement>(seed: u64) {
    let mut random = Random(seed);
    for (head_dim, value_dim) in [(1, 1), (9, 5), (24, 16), (40, 32), (72, 64)] {
        for tokens in [1, 31, 32, 33, 70] {
            let cache = Cache::<T>::random(&mut random, head_dim, value_dim, tokens);
            let query = random.floats(head_dim, 2.0);
            for start in [0, tokens / 2] {
                let plain = cache.ask(&query, start);
                let mut pages = plain.pages;
                pages.layout.values = None;
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
    seen_nan::<f32>(None);
    seen_nan::<F16Bits>(None);
    seen_nan::<Bf16Bits>(None);
    for codes in code_pairs() {
        seen_nan::<u8>(Some(codes));
    }
}

fn seen_nan<T: TestElement>(codes: Option<HeadCodes>) {
    for (tokens, broken) in [
        (1, 0),
        (20, 19),
        (50, 49),
        (2 * PIECE + 9, 3),
        (PIECE + 1, PIECE),
    ] {
        let cache = Cache::<T>::coded(codes, &mut Random(37), [8, 8], tokens);
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

fn batched<T: TestElement>(codes: Option<HeadCodes>, seed: u64) {
    let mut random = Random(seed);
    for (head_dim, value_dim) in [(1, 1), (7, 9), (64, 64), (80, 80), (33, 130), (600, 16)] {
        for tokens in [131, 2 * PIECE + 3] {
            let cache = Cache::<T>::coded(codes, &mut random, [head_dim, value_dim], tokens);
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
    batched::<f32>(None, 38);
    batched::<F16Bits>(None, 39);
    batched::<Bf16Bits>(None, 45);
    for codes in code_pairs() {
        batched::<u8>(Some(codes), 46);
        let skipping = HeadCodes {
            skip_below: 0.01,
            ..codes
        };
        batched::<u8>(Some(skipping), 47);
    }
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

/// Every format of keys with the same of values, and a mixed pair.
fn code_pairs() -> Vec<HeadCodes> {
    let span = |operand, format| CodeSpan {
        at: 0,
        operand,
        format,
        dim: 0,
    };
    let pair = |key, value| HeadCodes {
        key: span(CodeOperand::Key, key),
        value: span(CodeOperand::Value, value),
        skip_below: 0.0,
    };
    let mut pairs: Vec<HeadCodes> = CodeFormat::ALL.map(|format| pair(format, format)).into();
    pairs.push(pair(CodeFormat::Q8, CodeFormat::Turbo4));
    pairs
}

/// Formats against stored values, including extremes.
#[test]
fn floats_stay_within_their_error_bounds() {
    fn kept<T: PlainElement>(value: f32) -> f32 {
        T::store(value).load()
    }
    for value in Random(47).floats(64, 3.0) {
        assert_eq!(kept::<f32>(value), value);
        assert!((kept::<F16Bits>(value) - value).abs() <= value.abs() / 2048.0);
        assert!((kept::<Bf16Bits>(value) - value).abs() <= value.abs() / 256.0);
    }
    for extreme in [f32::MAX, f32::MIN, 65504.0, 1e-30] {
        for kept in [kept::<F16Bits>(extreme), kept::<Bf16Bits>(extreme)] {
            assert!(kept.is_finite(), "{extreme} became {kept}");
        }
    }
    assert!(kept::<F16Bits>(f32::NAN).is_nan() && kept::<Bf16Bits>(f32::NAN).is_nan());
}
