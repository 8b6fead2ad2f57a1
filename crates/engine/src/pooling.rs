//! Pools a prompt's hidden states into an embedding.

use std::ops::Range;

use loquat_session::SessionError;

use crate::EngineError;

/// How hidden states are pooled into an embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The mean over all positions. The prefix cache cannot be used, because it stores no hidden
    /// states.
    Mean,
    /// The last position.
    Last,
}

/// The mean of a range of positions, accumulated in order, so that chunking does not change the
/// result.
#[derive(Debug)]
pub(crate) struct EmbeddingPool {
    /// Positions still missing.
    wanted: Range<usize>,
    len: usize,
    sum: Vec<f64>,
}

impl EmbeddingPool {
    pub fn new(pooling: Pooling, prompt_len: usize) -> Self {
        let wanted = match pooling {
            Pooling::Mean => 0..prompt_len,
            Pooling::Last => prompt_len.saturating_sub(1)..prompt_len,
        };
        Self {
            len: wanted.len(),
            wanted,
            sum: Vec::new(),
        }
    }

    /// The first missing position; `None` when complete.
    pub fn next(&self) -> Option<usize> {
        (!self.wanted.is_empty()).then_some(self.wanted.start)
    }

    /// The number of missing positions before `end`.
    pub fn wanted_before(&self, end: usize) -> usize {
        end.min(self.wanted.end).saturating_sub(self.wanted.start)
    }

    /// Adds the next position's hidden state.
    pub fn add(&mut self, state: &[f32]) -> Result<(), EngineError> {
        if !state.iter().all(|value| value.is_finite()) {
            return Err(SessionError::NotANumber.into());
        }
        if self.sum.is_empty() {
            self.sum = vec![0.0; state.len()];
        }
        if self.sum.len() != state.len() {
            let what = "hidden states of one prompt have several sizes";
            return Err(SessionError::Device(what.into()).into());
        }
        for (sum, value) in self.sum.iter_mut().zip(state) {
            *sum += f64::from(*value);
        }
        self.wanted.start += 1;
        Ok(())
    }

    pub fn mean(self) -> Vec<f32> {
        let len = self.len.max(1) as f64;
        self.sum.iter().map(|sum| (sum / len) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_is_mean_of_its_positions() {
        let states = [[1.0, -4.0], [2.0, 0.0], [6.0, 1.0]];
        for (pooling, first, mean) in [
            (Pooling::Mean, 0, [3.0, -1.0]),
            (Pooling::Last, 2, [6.0, 1.0]),
        ] {
            let mut pool = EmbeddingPool::new(pooling, states.len());
            assert_eq!(pool.next(), Some(first), "{pooling:?}");
            assert_eq!(pool.wanted_before(9), states.len() - first);
            for state in &states[first..] {
                assert!(pool.next().is_some());
                pool.add(state).unwrap();
            }
            assert_eq!((pool.next(), pool.wanted_before(9)), (None, 0));
            assert_eq!(pool.mean(), mean, "{pooling:?}");
        }
    }

    #[test]
    fn invalid_hidden_state_is_refused() {
        let mut pool = EmbeddingPool::new(Pooling::Mean, 3);
        pool.add(&[1.0, 2.0]).unwrap();
        let not_a_number = EngineError::Session(SessionError::NotANumber);
        assert_eq!(pool.add(&[1.0, f32::NAN]), Err(not_a_number));
        assert!(pool.add(&[1.0]).is_err());
        assert_eq!(pool.next(), Some(1));
    }
}
