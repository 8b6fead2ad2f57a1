//! Logits that no model should give, and results that are bit-identical on every machine.

use super::*;

fn modes() -> Vec<SamplingParams> {
    let changes: [fn(&mut SamplingParams); 14] = [
        |_| (),
        |p| p.temperature = 0.0,
        |p| p.top_k = 2,
        |p| p.top_p = 0.9,
        |p| p.min_p = 0.1,
        |p| p.typical_p = 0.9,
        |p| p.top_n_sigma = 1.0,
        |p| (p.xtc_probability, p.xtc_threshold) = (1.0, 0.1),
        |p| (p.top_k, p.xtc_probability, p.xtc_threshold) = (2, 1.0, 0.0),
        |p| p.dynatemp_range = 1.0,
        |p| p.mirostat = 2,
        |p| p.temperature = 1e-30,
        |p| p.temperature = f32::from_bits(1),
        |p| p.temperature = 100.0,
    ];
    changes.map(params).to_vec()
}

#[test]
fn hostile_logits_give_token_or_error() {
    let rows: [(&[f32], &[u32]); 9] = [
        (&[NAN, 1.0, NAN, 1.0], &[1, 3]),
        (&[0.0, INF, 0.0], &[1]),
        (&[0.0, INF, INF], &[1, 2]),
        (&[-INF, -INF, 0.0, -INF], &[2]),
        (&[NAN, INF, -INF], &[1]),
        (&[f32::MAX, f32::MIN, f32::MIN], &[0]),
        (&[NAN, NAN], &[]),
        (&[-INF, -INF, -INF], &[]),
        (&[], &[]),
    ];
    for mode in modes() {
        for (row, legal) in rows {
            for distribution in [None, Some(Distribution::Model), Some(Distribution::Sampled)] {
                let logprobs = distribution.map(|distribution| Logprobs {
                    alternatives: 3,
                    distribution,
                });
                let mut scratch = SamplerScratch::default();
                let mut sampler = sampler(mode.clone(), 3);
                match sampler.sample(&mut row.to_vec(), None, logprobs, &mut scratch) {
                    Ok(info) => {
                        assert!(legal.contains(&info.id), "{mode:?} {row:?} {info:?}");
                        let logprobs = info.top.iter().map(|t| t.1).chain(info.logprob);
                        assert!(logprobs.into_iter().all(|l| l <= 0.0), "{info:?}");
                    }
                    Err(error) => {
                        assert_eq!(error, EngineError::NoCandidate);
                        assert!(legal.is_empty(), "{mode:?} {row:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn single_candidate_is_chosen() {
    for mode in modes() {
        for size in [1, 2, 130, 5000] {
            let mut row = vec![-INF; size];
            row[size / 2] = -3.0;
            let info = sampler(mode.clone(), 1).sample(
                &mut row,
                None,
                None,
                &mut SamplerScratch::default(),
            );
            assert_eq!(info, Ok(TokenInfo::bare(size as u32 / 2)), "{mode:?}");
        }
    }
}

/// Recorded once, and the same on every machine: a difference is a bug, not noise.
#[test]
fn results_are_bit_identical_everywhere() {
    let mut rng = SeededRng::new(42);
    let logits: Vec<f32> = (0..20_011).map(|_| rng.normal() * 2.5).collect();
    let mut digest = 0xcbf2_9ce4_8422_2325u64;
    let mut note = |bits: u32| digest = (digest ^ u64::from(bits)).wrapping_mul(0x0100_0000_01b3);
    for mode in modes() {
        let mut sampler = sampler(mode, 9);
        let mut scratch = SamplerScratch::default();
        for distribution in [Distribution::Model, Distribution::Sampled] {
            let logprobs = Some(Logprobs {
                alternatives: 50,
                distribution,
            });
            for _ in 0..8 {
                let info = sampler.sample(&mut logits.clone(), None, logprobs, &mut scratch);
                let info = info.expect("a token");
                note(info.id);
                info.top.iter().for_each(|top| note(top.1.to_bits()));
            }
        }
    }
    assert_eq!(digest, 0xf546_1644_7e90_1267, "{digest:#x}");
}
