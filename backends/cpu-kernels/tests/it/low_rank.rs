//! Tiles of low-rank products, against sums in order, on every instruction set.

use loquat_cpu_kernels::{Format, LANES, LowRankJob, LowRankTile, PlainOut, supported};

/// Values of a seed, from -1 to 1, that bf16 holds exactly.
fn values(seed: u32, len: usize) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from_bits((((state >> 8) as f32 / (1 << 23) as f32 - 1.0).to_bits()) & 0xffff_0000)
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[test]
fn tiles_equal_sums_in_order() {
    for rank in [1, 3, 8, 16, 61] {
        for tokens in [1, 2, 4, 5, 9] {
            for format in [Format::F32, Format::Bf16] {
                let weights = values(1, rank * LANES);
                let inner = values(2, tokens * rank);
                let scales: [f32; LANES] = std::array::from_fn(|lane| 0.5 + lane as f32);
                let stride = LANES + 3;
                let before = values(3, tokens * stride);
                let bytes: Vec<u8> = match format {
                    Format::Bf16 => weights
                        .iter()
                        .flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes())
                        .collect(),
                    _ => weights
                        .iter()
                        .flat_map(|value| value.to_le_bytes())
                        .collect(),
                };
                let mut expected = before.clone();
                for token in 0..tokens {
                    for lane in 0..LANES {
                        let sum = (0..rank).fold(0.0f32, |sum, k| {
                            weights[k * LANES + lane].mul_add(inner[token * rank + k], sum)
                        });
                        let out = &mut expected[token * stride + lane];
                        *out = sum.mul_add(scales[lane], *out);
                    }
                }
                for kernels in supported() {
                    let mut found = before.clone();
                    let tile = LowRankTile {
                        format,
                        bytes: &bytes,
                    };
                    let out = PlainOut {
                        start: found.as_mut_ptr(),
                        stride,
                    };
                    // SAFETY: the table was chosen for this machine, and every token has sixteen
                    // values at its stride.
                    unsafe {
                        (kernels.add_low_rank)(&[LowRankJob {
                            tile,
                            inner: &inner,
                            scales,
                            out,
                        }]);
                    }
                    let bits = |values: &[f32]| -> Vec<u32> {
                        values.iter().map(|value| value.to_bits()).collect()
                    };
                    let what = (kernels.name, rank, tokens, format);
                    assert_eq!(bits(&found), bits(&expected), "{what:?}");
                }
            }
        }
    }
}

/// Jobs of single tokens, which are done side by side, some of them to the same output.
#[test]
fn jobs_together_equal_jobs_alone() {
    for (format, width) in [(Format::F32, 4), (Format::Bf16, 2)] {
        for ranks in [[16; 9], [3; 9], [8, 8, 8, 8, 8, 16, 8, 8, 8]] {
            let make = |seed: usize, len: usize| values(seed as u32, len);
            let bytes: Vec<Vec<u8>> = ranks
                .iter()
                .enumerate()
                .map(|(job, rank)| {
                    let values = make(job, rank * LANES);
                    let of_value = |value: &f32| value.to_le_bytes()[4 - width..].to_vec();
                    values.iter().flat_map(of_value).collect()
                })
                .collect();
            let inner: Vec<Vec<f32>> = ranks
                .iter()
                .enumerate()
                .map(|(job, rank)| make(10 + job, *rank))
                .collect();
            let before = values(3, 5 * LANES);
            for kernels in supported() {
                let run = |jobs_together: usize| -> Vec<u32> {
                    let mut found = before.clone();
                    let start = found.as_mut_ptr();
                    let jobs: Vec<LowRankJob> = (0..ranks.len())
                        .map(|job| LowRankJob {
                            tile: LowRankTile {
                                format,
                                bytes: &bytes[job],
                            },
                            inner: &inner[job],
                            scales: [0.5 + job as f32; LANES],
                            out: PlainOut {
                                start: start.wrapping_add(job / 2 * LANES),
                                stride: LANES,
                            },
                        })
                        .collect();
                    for jobs in jobs.chunks(jobs_together) {
                        // SAFETY: the table was chosen for this machine, and every job has sixteen
                        // values.
                        unsafe { (kernels.add_low_rank)(jobs) };
                    }
                    found.iter().map(|value| value.to_bits()).collect()
                };
                assert_eq!(run(9), run(1), "{:?}", (kernels.name, format, ranks));
            }
        }
    }
}
