//! The seam between the engine and whatever guesses the next tokens.

/// Guesses what follows sequences. Guesses are verified by the session before they count, so a
/// wrong one costs time and changes no token.
///
/// Proposers that read tokens (prompt lookup, a draft model) implement this alone. Heads that read
/// hidden states live behind the session; a proposer for them hands out the drafts that came back
/// with a sequence's last row.
pub(crate) trait Proposer: Send {
    /// Fills the drafts of each request, which are empty. None is a valid answer.
    fn propose(&mut self, requests: &mut [ProposalRequest<'_>]);

    /// Drops what is kept for a sequence that has ended.
    fn forget(&mut self, sequence: u64);
}

/// Asks for drafts that may follow a sequence.
pub(crate) struct ProposalRequest<'a> {
    /// Unique in the engine's lifetime.
    pub sequence: u64,
    /// Prompt and output so far. Positions of media hold keys, which are not tokens.
    pub tokens: &'a [u32],
    /// At most this many drafts are used.
    pub most: usize,
    pub drafts: &'a mut Vec<u32>,
    /// How well the first draft is supported, in the proposer's own units: acceptance is measured
    /// for each. Every further draft counts as supported by one more.
    pub evidence: usize,
}
