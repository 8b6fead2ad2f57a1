//! Causal convolutions over the tokens of a row, whose last inputs are a part of the recurrent state.

use std::ops::Range;

use loquat_cpu_kernels::{Kernels, KvElement, PagePtr};
use loquat_spec::Activation;
use smallvec::{SmallVec, smallvec};

use super::recurrent::each_head;
use super::{Plan, PlannedState};
use crate::linear::for_tokens;
use crate::model::{CONV_BLOCK, Conv};
use crate::pool::Pool;
use crate::shared::SharedMut;

/// A convolution, with the positions of its channels in each token's row and of its inputs in the
/// state.
pub(super) struct Convolution<'a> {
    pub conv: &'a Conv,
    pub stride: usize,
    pub offset: usize,
    pub state: usize,
    pub silu: bool,
}

impl Convolution<'_> {
    /// Runs it over every row's tokens in place.
    pub fn run<T: KvElement>(
        &self,
        kernels: &Kernels,
        pool: &mut Pool,
        plan: &Plan<T>,
        values: &mut [f32],
    ) {
        let Self {
            conv,
            stride,
            offset,
            state: start,
            silu,
        } = *self;
        let blocks = conv.channels.div_ceil(CONV_BLOCK);
        let values = SharedMut::new(values);
        // The next output of a block's channels, in place of the input of `token`.
        let step = |block: usize, token: usize, past: &mut [f32]| {
            let channels = conv.block(block);
            // SAFETY: each task touches its own rows or its own channels of them, and the table was
            // chosen for this machine.
            unsafe {
                let x = values.slice(token * stride + offset + channels.start, channels.len());
                (kernels.conv_step)(x, &conv.block_weights(block), past);
                if silu {
                    (kernels.activate)(Activation::Silu, x, &[]);
                }
            }
        };
        let taps = conv.kernel - 1;
        if taps == 0 {
            // It reads no other token, and its layer may have no state.
            let cost = 4 * conv.channels;
            for_tokens(pool, plan.tokens.len(), cost, &|token| {
                (0..blocks).for_each(|block| step(block, token, &mut []));
            });
            return;
        }
        each_head(pool, plan, blocks, &|row, state, block| {
            let channels = conv.block(block);
            let part = StatePart {
                start: start + channels.start,
                stride: conv.channels,
                rows: taps,
                len: channels.len(),
            };
            state.carry_part(&part, row.tokens, |past, token| {
                step(block, row.first + token, past);
            });
        });
    }
}

/// A part of a state: `rows` runs of `len` values, `stride` apart.
struct StatePart {
    start: usize,
    stride: usize,
    rows: usize,
    len: usize,
}

impl StatePart {
    /// Calls `copy` with each run's index in the state and in `rows` runs of `len` values.
    fn for_each_run(&self, mut copy: impl FnMut(usize, Range<usize>)) {
        for row in 0..self.rows {
            let at = row * self.len;
            copy(self.start + row * self.stride, at..at + self.len);
        }
    }
}

impl PlannedState {
    /// Like [`Self::carry`], with a copy of a part that is not contiguous.
    fn carry_part(&self, part: &StatePart, tokens: usize, mut step: impl FnMut(&mut [f32], usize)) {
        let mut values: SmallVec<[f32; 4 * CONV_BLOCK]> = smallvec![0.0; part.rows * part.len];
        if let Some(before) = self.before {
            part.for_each_run(|at, run| {
                // SAFETY: no thread writes the state before a row during a step.
                values[run].copy_from_slice(unsafe { before.slice(at, part.len) });
            });
        }
        let write = |to: PagePtr<f32>, values: &[f32]| {
            part.for_each_run(|at, run| {
                // SAFETY: the buffers are the row's own, and no two tasks share a part.
                unsafe { to.slice_mut(at, part.len) }.copy_from_slice(&values[run]);
            });
        };
        let mut snapshots = self.snapshots.iter().peekable();
        for offset in 0..tokens {
            step(&mut values, offset);
            if let Some((_, copy)) = snapshots.next_if(|(after, _)| *after == offset + 1) {
                write(*copy, &values);
            }
        }
        write(self.after, &values);
    }
}

#[cfg(test)]
mod tests {
    use loquat_cpu_kernels::supported;
    use loquat_synthetic::SplitMix64;

    use super::*;
    use crate::forward::PlannedRow;

    /// `out = bias + sum of weight * input`, the oldest input first.
    fn expected(stored: &[f32], bias: &[f32], before: &[f32], inputs: &[f32]) -> Vec<f32> {
        let (channels, kernel) = (bias.len(), stored.len() / bias.len());
        let all = [before, inputs].concat();
        let tokens = inputs.len() / channels;
        let value = |at: usize| {
            let (token, channel) = (at / channels, at % channels);
            let taps = (0..kernel).map(|tap| (stored[channel * kernel + tap], token + tap));
            taps.fold(bias[channel], |total, (weight, token)| {
                weight.mul_add(all[token * channels + channel], total)
            })
        };
        (0..tokens * channels).map(value).collect()
    }

    #[test]
    fn blocks_of_channels_have_no_effect() {
        const KERNEL: usize = 4;
        let mut random = SplitMix64::new(3);
        let mut values = |len: usize| -> Vec<f32> {
            let value = |_| (random.next_u64() >> 40) as f32 / (1 << 24) as f32 - 0.5;
            (0..len).map(value).collect()
        };
        for channels in [3, CONV_BLOCK, 2 * CONV_BLOCK + 70] {
            let tokens = 5;
            let stored = values(channels * KERNEL);
            let bias = values(channels);
            let past = values((KERNEL - 1) * channels);
            let inputs = values(tokens * channels);
            let conv = Conv::new(&stored, KERNEL, Some(bias.clone()));
            let len = past.len();
            let [before, after, snapshot] = [(); 3].map(|()| PagePtr::<f32>::allocate(len));
            // SAFETY: just allocated, and nothing else refers to it.
            unsafe { before.slice_mut(0, len) }.copy_from_slice(&past);
            let state = PlannedState {
                before: Some(before),
                after,
                snapshots: vec![(2, snapshot)],
            };
            let plan = Plan::<f32> {
                rows: vec![PlannedRow {
                    first: 0,
                    tokens,
                    state: Some(state),
                }],
                ..Plan::default()
            };
            let convolution = Convolution {
                conv: &conv,
                stride: channels,
                offset: 0,
                state: 0,
                silu: false,
            };
            for threads in [1, 3] {
                let mut pool = Pool::new(threads).unwrap();
                let mut found = inputs.clone();
                convolution.run(supported()[0], &mut pool, &plan, &mut found);
                assert_eq!(found, expected(&stored, &bias, &past, &inputs));
                let all = [past.as_slice(), &inputs].concat();
                for (state, at) in [(after, tokens), (snapshot, 2)] {
                    let kept = &all[at * channels..at * channels + len];
                    // SAFETY: allocated above; the loop is over.
                    assert_eq!(unsafe { state.slice(0, len) }, kept);
                }
            }
            for page in [before, after, snapshot] {
                // SAFETY: nothing uses them any more.
                unsafe { page.free() };
            }
        }
    }
}
