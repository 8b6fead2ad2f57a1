//! How often drafts turn out right, measured by how well they were supported.

/// The least evidence of each bucket.
const BUCKETS: [usize; 10] = [0, 1, 2, 3, 4, 6, 9, 14, 20, 28];
/// Weight of the engine's mean against a sequence's own measurements.
const SHARED_WEIGHT: f64 = 4.0;
/// Before anything is measured, half of the drafts are taken to be right; this is the weight of
/// that.
const INITIAL_WEIGHT: f64 = 2.0;
/// What a measurement weighs after the next one.
const SEQUENCE_MEMORY: f64 = 0.95;
const SHARED_MEMORY: f64 = 0.99;

/// Drafts that were compared with the tokens that came, by evidence. Drafts are compared whether
/// they were verified or not, so measuring costs nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Acceptance {
    counts: [Count; BUCKETS.len()],
}

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    compared: f64,
    right: f64,
}

impl Count {
    fn add(&mut self, is_right: bool, memory: f64) {
        self.compared = self.compared * memory + 1.0;
        self.right = self.right * memory + f64::from(u8::from(is_right));
    }

    /// The share that is right, with a prior of some weight.
    fn rate(&self, prior: f64, weight: f64) -> f64 {
        (self.right + prior * weight) / (self.compared + weight)
    }
}

fn bucket(evidence: usize) -> usize {
    BUCKETS.partition_point(|least| *least <= evidence) - 1
}

impl Acceptance {
    /// The probability that a draft is right, from a sequence's measurements and the engine's.
    pub fn probability(&self, evidence: usize, shared: &Self) -> f64 {
        let at = bucket(evidence);
        let prior = shared.counts[at].rate(0.5, INITIAL_WEIGHT);
        self.counts[at].rate(prior, SHARED_WEIGHT)
    }

    fn add(&mut self, evidence: usize, is_right: bool, memory: f64) {
        self.counts[bucket(evidence)].add(is_right, memory);
    }
}

/// What was proposed for a sequence last, and how its proposals did so far.
#[derive(Debug, Default)]
pub(crate) struct ProposalRecord {
    pub acceptance: Acceptance,
    drafts: Vec<u32>,
    evidence: usize,
    /// Tokens before the drafts.
    after: usize,
}

impl ProposalRecord {
    /// Remembers drafts that may follow `after` tokens.
    pub fn propose(&mut self, drafts: &[u32], evidence: usize, after: usize) {
        self.drafts.clear();
        self.drafts.extend_from_slice(drafts);
        (self.evidence, self.after) = (evidence, after);
    }

    /// Compares the last proposal with the tokens that came.
    pub fn compare(&mut self, tokens: &[u32], shared: &mut Acceptance) {
        let came = tokens.get(self.after..).unwrap_or_default();
        for (at, (draft, token)) in self.drafts.iter().zip(came).enumerate() {
            let is_right = draft == token;
            let evidence = self.evidence + at;
            self.acceptance.add(evidence, is_right, SEQUENCE_MEMORY);
            shared.add(evidence, is_right, SHARED_MEMORY);
            if !is_right {
                break;
            }
        }
        self.drafts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_replace_priors() {
        let mut shared = Acceptance::default();
        let mut record = ProposalRecord::default();
        let probability = |record: &ProposalRecord, shared: &Acceptance, evidence| {
            record.acceptance.probability(evidence, shared)
        };
        assert_eq!(probability(&record, &shared, 5), 0.5);
        for _ in 0..100 {
            record.propose(&[1, 2, 3], 4, 1);
            record.compare(&[0, 1, 2, 9, 9], &mut shared);
        }
        // Evidence 4, 5 and 6: right, right and wrong.
        assert!(probability(&record, &shared, 4) > 0.95);
        assert!(probability(&record, &shared, 5) > 0.95);
        assert!(probability(&record, &shared, 6) < 0.05);
        let fresh = ProposalRecord::default();
        assert!(
            probability(&fresh, &shared, 4) > 0.95,
            "learned by the engine"
        );
        assert_eq!(probability(&fresh, &shared, 20), 0.5);
    }

    #[test]
    fn drafts_after_a_wrong_one_do_not_count() {
        let mut shared = Acceptance::default();
        let mut record = ProposalRecord::default();
        record.propose(&[1, 2], 2, 0);
        record.compare(&[5, 2], &mut shared);
        assert!(record.acceptance.probability(2, &shared) < 0.5);
        assert_eq!(record.acceptance.probability(3, &shared), 0.5);
        record.compare(&[5, 2, 1, 2], &mut shared);
        assert_eq!(
            record.acceptance.probability(3, &shared),
            0.5,
            "compared once"
        );
    }
}
