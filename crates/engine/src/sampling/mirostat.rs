//! Mirostat 2: truncates so that the mean surprise approaches a target.

use super::SamplingParams;
use super::math;
use super::pool::CandidatePool;

#[derive(Debug)]
pub(super) struct Mirostat {
    tau: f64,
    eta: f64,
    /// Tokens with more surprise (in bits) are not drawn.
    mu: f64,
}

impl Mirostat {
    /// `None` if it is switched off.
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

    /// Updates `mu` from the drawn token's probability.
    pub fn learn(&mut self, probability: f64) {
        let surprise = -math::ln(probability) / std::f64::consts::LN_2;
        self.mu -= self.eta * (surprise - self.tau);
    }
}
