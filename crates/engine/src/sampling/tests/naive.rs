//! A plain reference implementation of the whole chain: double precision, full sorts, temperature
//! applied at once, the past recounted for every token.

use super::*;

/// The past as the parameters see it.
pub(crate) struct Past<'a> {
    pub prompt: &'a [u32],
    pub output: &'a [u32],
    pub stop_ids: &'a [u32],
    /// Tokens that hold a DRY breaker.
    pub breakers: &'a [u32],
    pub allowed: Option<&'a TokenMask>,
}

/// Token ids and logits of what is left, in any order.
type Left = Vec<(u32, f64)>;

/// The distribution of the next token, by id; empty if nothing is left. Random XTC and mirostat
/// are tested elsewhere: `xtc_probability` is 0 or 1 here.
pub(crate) fn distribution(
    params: &SamplingParams,
    past: &Past<'_>,
    logits: &[f32],
) -> Vec<(u32, f64)> {
    let mut left: Left = logits
        .iter()
        .enumerate()
        .filter(|(_, logit)| **logit > f32::NEG_INFINITY)
        .map(|(id, &logit)| (id as u32, f64::from(logit.min(f32::MAX))))
        .collect();
    let mut steps = params.order.iter().peekable();
    if steps.peek() == Some(&&SamplingStep::Penalties) {
        apply(SamplingStep::Penalties, params, past, &mut left);
        steps.next();
    }
    push_and_forbid(params, past, &mut left);
    for &step in steps {
        apply(step, params, past, &mut left);
    }
    let mut shares = shares(&left);
    shares.sort_by_key(|share| share.0);
    shares
}

fn push_and_forbid(params: &SamplingParams, past: &Past<'_>, left: &mut Left) {
    for &(id, bias) in &params.logit_bias {
        for token in left.iter_mut().filter(|token| token.0 == id) {
            token.1 += f64::from(bias);
        }
    }
    let text = [past.prompt, past.output].concat();
    left.retain(|&(id, _)| {
        let completes = |word: &Vec<u32>| {
            let (last, rest) = word.split_last().expect("not empty");
            *last == id && text.ends_with(rest)
        };
        let listed = params.allowed_tokens.is_empty() || params.allowed_tokens.contains(&id);
        let early = past.output.len() < params.min_tokens && past.stop_ids.contains(&id);
        let masked = past.allowed.is_some_and(|mask| !mask.contains(id));
        listed && !early && !masked && !params.bad_words.iter().any(completes)
    });
}

fn apply(step: SamplingStep, params: &SamplingParams, past: &Past<'_>, left: &mut Left) {
    if left.is_empty() {
        return;
    }
    match step {
        SamplingStep::Penalties => penalise(params, past, left),
        SamplingStep::Dry => apply_dry(params, past, left),
        SamplingStep::Temperature => temperature(params, left),
        SamplingStep::TopNSigma => top_n_sigma(params.top_n_sigma, left),
        SamplingStep::TopK => top_k(params.top_k, left),
        SamplingStep::TypicalP => typical_p(params.typical_p, left),
        SamplingStep::TopP => top_p(params.top_p, left),
        SamplingStep::MinP => min_p(params.min_p, left),
        SamplingStep::Xtc => xtc(params, left),
    }
}

fn shares(left: &Left) -> Vec<(u32, f64)> {
    let peak = left.iter().map(|t| t.1).fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = left.iter().map(|t| (t.1 - peak).exp()).sum();
    left.iter()
        .map(|&(id, logit)| (id, (logit - peak).exp() / total))
        .collect()
}

fn sort(left: &mut Left) {
    left.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
}

fn last_n<'a>(past: &Past<'a>, last_n: i32) -> (Vec<u32>, Vec<u32>) {
    let size = usize::try_from(last_n).unwrap_or(usize::MAX);
    let output = &past.output[past.output.len().saturating_sub(size)..];
    let rest = size.saturating_sub(output.len());
    let prompt = &past.prompt[past.prompt.len().saturating_sub(rest)..];
    (prompt.to_vec(), output.to_vec())
}

fn penalise(params: &SamplingParams, past: &Past<'_>, left: &mut Left) {
    let (prompt, output) = last_n(past, params.penalty_last_n);
    let repetition = f64::from(params.repetition_penalty);
    for (id, logit) in left {
        if prompt.contains(id) || output.contains(id) {
            *logit = if *logit > 0.0 {
                *logit / repetition
            } else {
                *logit * repetition
            };
        }
        let count = output.iter().filter(|other| *other == id).count();
        if count > 0 {
            *logit -= f64::from(params.presence_penalty);
            *logit -= f64::from(params.frequency_penalty) * count as f64;
        }
    }
}

/// As in llama.cpp, where each breaker is one token.
fn apply_dry(params: &SamplingParams, past: &Past<'_>, left: &mut Left) {
    let (prompt, output) = last_n(past, params.dry_penalty_last_n);
    let text = [prompt, output].concat();
    if params.dry_multiplier == 0.0 || text.len() <= params.dry_allowed_length {
        return;
    }
    let breaks = |id: &u32| past.breakers.contains(id);
    let reach = text.iter().rev().take_while(|id| !breaks(id)).count();
    for (id, logit) in left.iter_mut().filter(|(id, _)| !breaks(id)) {
        let places = (0..text.len()).filter(|at| text[*at] == *id && *at > 0);
        let lengths = places.map(|at| {
            let before = text[..at].iter().rev();
            let same = before.zip(text.iter().rev()).take_while(|(a, b)| a == b);
            same.count().min(reach)
        });
        let longest = lengths.max().filter(|l| *l >= params.dry_allowed_length);
        if let Some(length) = longest {
            let exponent = (length - params.dry_allowed_length) as f64;
            let growth = f64::from(params.dry_base).powf(exponent);
            *logit -= (f64::from(params.dry_multiplier) * growth).min(1e30);
        }
    }
}

fn temperature(params: &SamplingParams, left: &mut Left) {
    let (middle, range) = (
        f64::from(params.temperature),
        f64::from(params.dynatemp_range),
    );
    let mut temperature = middle;
    if range > 0.0 {
        if left.len() < 2 {
            return;
        }
        let (min, max) = ((middle - range).max(0.0), middle + range);
        let shares = shares(left);
        let surprise = |p: f64| if p > 0.0 { -p * p.ln() } else { 0.0 };
        let entropy: f64 = shares.iter().map(|s| surprise(s.1)).sum();
        let unsure = (entropy / (left.len() as f64).ln()).clamp(0.0, 1.0);
        temperature = min + (max - min) * unsure.powf(f64::from(params.dynatemp_exponent));
    }
    if temperature > 0.0 {
        left.iter_mut().for_each(|token| token.1 /= temperature)
    } else {
        top_k(1, left)
    }
}

fn top_n_sigma(n: f32, left: &mut Left) {
    if n == 0.0 {
        return;
    }
    let count = left.len() as f64;
    let mean = left.iter().map(|t| t.1).sum::<f64>() / count;
    let variance = left.iter().map(|t| (t.1 - mean).powi(2)).sum::<f64>() / count;
    let peak = left.iter().map(|t| t.1).fold(f64::NEG_INFINITY, f64::max);
    left.retain(|t| t.1 >= peak - f64::from(n) * variance.sqrt());
}

fn top_k(k: usize, left: &mut Left) {
    if k > 0 {
        sort(left);
        left.truncate(k);
    }
}

fn top_p(share: f32, left: &mut Left) {
    if share < 1.0 {
        sort(left);
        let shares = shares(left);
        keep_share(share, &shares, left);
    }
}

/// Truncates a list to the first entries that together have this share.
fn keep_share(share: f32, shares: &[(u32, f64)], left: &mut Left) {
    let mut sum = 0.0;
    let enough = shares.iter().position(|(_, p)| {
        sum += p;
        sum >= f64::from(share)
    });
    left.truncate(enough.map_or(left.len(), |at| at + 1));
}

fn min_p(share: f32, left: &mut Left) {
    let peak = left.iter().map(|t| t.1).fold(f64::NEG_INFINITY, f64::max);
    left.retain(|t| (t.1 - peak).exp() >= f64::from(share));
}

fn typical_p(share: f32, left: &mut Left) {
    if share == 1.0 {
        return;
    }
    let probable = shares(left);
    let surprise = |p: f64| if p > 0.0 { -p * p.ln() } else { 0.0 };
    let entropy: f64 = probable.iter().map(|s| surprise(s.1)).sum();
    let mut both: Vec<_> = left.iter().copied().zip(probable).collect();
    let oddity = |p: f64| (-p.ln() - entropy).abs();
    both.sort_by(|a, b| {
        let by_oddity = oddity(a.1.1).total_cmp(&oddity(b.1.1));
        by_oddity
            .then(b.0.1.total_cmp(&a.0.1))
            .then(a.0.0.cmp(&b.0.0))
    });
    let (sorted, probable): (Left, Vec<_>) = both.into_iter().unzip();
    *left = sorted;
    keep_share(share, &probable, left);
}

fn xtc(params: &SamplingParams, left: &mut Left) {
    if params.xtc_probability == 0.0 {
        return;
    }
    sort(left);
    let threshold = f64::from(params.xtc_threshold);
    let likely = shares(left).iter().filter(|s| s.1 >= threshold).count();
    left.drain(..likely.saturating_sub(1));
}
