//! Mirostat 2 approaches the requested surprise.

use super::*;

/// The average surprise in bits, after a warm-up.
fn surprise(tau: f32, change: fn(&mut SamplingParams)) -> f64 {
    let mut params = params(|p| (p.mirostat, p.mirostat_tau) = (2, tau));
    change(&mut params);
    // As frequent as words are: 1, 1/2, 1/3 and so on.
    let logits: Vec<f32> = (1..=5000).map(|rank| -(rank as f32).ln()).collect();
    let mut sampler = sampler(params, 11);
    let mut scratch = SamplerScratch::default();
    let logprobs = Some(Logprobs {
        alternatives: 0,
        distribution: Distribution::Sampled,
    });
    let mut next = || {
        let info = sampler.sample(&mut logits.clone(), None, logprobs, &mut scratch);
        let logprob = info.expect("a token").logprob.expect("asked for");
        -f64::from(logprob) / std::f64::consts::LN_2
    };
    (0..200).for_each(|_| {
        next();
    });
    (0..2000).map(|_| next()).sum::<f64>() / 2000.0
}

#[test]
fn mean_surprise_approaches_tau() {
    for tau in [1.0, 3.0, 5.0] {
        let found = surprise(tau, |_| ());
        assert!((found - f64::from(tau)).abs() < 0.1, "{found} for {tau}");
    }
}

#[test]
fn mirostat_runs_after_other_steps() {
    let found = surprise(5.0, |p| p.top_k = 2);
    assert!(found < 1.0, "two tokens cannot surprise by {found} bits");
    assert_eq!(surprise(0.0, |_| ()), 0.0);
    assert_eq!(surprise(5.0, |p| p.temperature = 0.0), 0.0);
}
