//! Mirostat 2: truncates so that tokens surprise by a set amount on average.

use super::SamplingParams;
use super::math;
use super::pool::CandidatePool;

#[derive(Debug)]
pub(super) struct Mirostat {
    tau: f64,
    eta: f64,
    /// What surprises by more bits than this is not drawn.
    mu: f64,
}

impl Mirostat {
    /// `None` where it is not asked for.
    pub fn new(params: &SamplingParams) -> Option<Self> {
        let tau = f64::from(params.mirostat_tau);
        (params.mirostat == 2).then(|| Self {
            tau,
            eta: f64::from(params.mirostat_eta),
            mu: 2.0 * tau,
        })
    }

    pub fn truncate(&self, pool: &mut CandidatePool<'_>) {
        pool.truncate_surprise(self.mu);
    }

    /// Notes how likely the drawn token was among those left.
    pub fn learn(&mut self, probability: f64) {
        let surprise = -math::ln(probability) / std::f64::consts::LN_2;
        self.mu -= self.eta * (surprise - self.tau);
    }
}
