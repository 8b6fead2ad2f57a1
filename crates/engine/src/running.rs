//! A running sequence with its KV reservation and progress.

use std::time::Instant;

use loquat_session::{
    Draw, Emit, MediaHandle, SequenceId, Session, SessionError, Span, StepBatch, StepOutput,
};

use crate::limits::{KvProgress, Limits};
use crate::sampling::{self, SamplerScratch};
use crate::scheduler::SHORT_RUN;
use crate::sequence::Sequence;
use crate::{EngineError, PromptMedia};

/// There are no prefill and decode phases: computed tokens catch up with known tokens.
#[derive(Debug)]
pub(crate) struct Running {
    pub sequence: Sequence,
    pub id: SequenceId,
    pub computed: usize,
    /// Reserved KV tokens. Being in the running list is the reservation, so it cannot leak.
    pub reservation: usize,
    /// Length shared with another sequence: the next write may copy a page.
    pub shared: usize,
    /// Length at which it was forked from another sequence.
    pub forked: usize,
    /// Computed tokens before its last row.
    pub row_start: usize,
    /// Its urgency at admission; only more urgent requests may preempt it.
    pub urgency: i64,
    /// Since when its reader lags.
    pub paused: Option<Instant>,
    /// Tokens that may follow the known ones, to be verified by its next row.
    pub drafts: Vec<u32>,
    /// How the session draws the next token, if it can do so alone.
    pub draw: Option<Draw>,
    /// The media that are not computed yet, in order. Rows end before those that are not encoded.
    pub media: Vec<HeldMedia>,
    /// The first row must be the whole prompt.
    pub whole_prompt: bool,
}

/// Media of a running sequence.
#[derive(Debug)]
pub(crate) struct HeldMedia {
    /// `None` until they are encoded.
    pub handle: Option<MediaHandle>,
    pub span: PromptMedia,
}

impl HeldMedia {
    /// Whether a step computes all of them or none.
    fn is_whole(&self) -> bool {
        self.handle.is_some_and(|handle| !handle.divisible)
    }
}

impl Running {
    /// Known tokens that are not computed yet.
    pub fn pending(&self) -> usize {
        self.sequence.tokens.len() - self.computed
    }

    /// The first of its media that is not encoded.
    pub fn unencoded(&self) -> Option<&PromptMedia> {
        let mut waiting = self.media.iter().filter(|held| held.handle.is_none());
        waiting.next().map(|held| &held.span)
    }

    /// Pending tokens that the next step can compute.
    pub fn ready(&self) -> usize {
        match self.unencoded() {
            None => self.pending(),
            Some(_) if self.whole_prompt => 0,
            Some(span) => span.at.saturating_sub(self.computed),
        }
    }

    /// Reserved KV tokens not used yet.
    pub fn promised(&self, limits: &Limits) -> usize {
        limits.promised(&KvProgress {
            max_len: self.sequence.max_len(),
            computed: self.computed,
            shared: self.shared,
            forked: self.forked,
            row_start: self.row_start,
        })
    }

    /// Whether logits of every position are needed, not only of the last.
    pub fn scores_prompt(&self) -> bool {
        self.sequence.scores.is_some()
    }

    /// The next `count` pending tokens and what to emit for them and the drafts.
    pub fn next(&self, count: usize) -> (&[u32], Emit) {
        let end = self.computed + count;
        let emit = if let Some(pool) = &self.sequence.pool {
            match pool.wanted_before(end).min(count) {
                0 => Emit::Nothing,
                positions => Emit::Hidden { positions },
            }
        } else if self.scores_prompt() {
            Emit::Logits { positions: count }
        } else if end < self.sequence.tokens.len() {
            Emit::Nothing
        } else if let Some(draw) = self.draw {
            Emit::Drawn(draw)
        } else {
            let positions = 1 + self.drafts.len();
            if self.sequence.emit_logits {
                Emit::Logits { positions }
            } else {
                Emit::Greedy { positions }
            }
        };
        (&self.sequence.tokens[self.computed..end], emit)
    }

    /// Whether a row may end only at some positions.
    pub fn restricts_rows(&self) -> bool {
        self.whole_prompt && self.computed == 0 || self.media.iter().any(HeldMedia::is_whole)
    }

    /// The longest row of up to `count` tokens, which may be none, and the shortest row at all.
    pub fn row_lengths(&self, count: usize) -> (usize, usize) {
        if self.whole_prompt && self.computed == 0 {
            let prompt = self.sequence.prompt_len;
            return (if count < prompt { 0 } else { prompt }, prompt);
        }
        let whole = self.media.iter().filter(|media| media.is_whole());
        let inside = |at: usize| {
            let mut spans = whole.clone().map(|media| &media.span);
            spans.find(|span| span.at < at && at < span.end())
        };
        let longest = match inside(self.computed + count) {
            Some(span) => span.at.saturating_sub(self.computed),
            None => count,
        };
        let shortest = match inside(self.computed + 1) {
            Some(span) => span.end() - self.computed,
            None => 1,
        };
        (longest, shortest)
    }

    /// Adds the next `count` pending tokens, the media among them and the drafts to a batch.
    pub fn push(&self, count: usize, batch: &mut StepBatch) {
        let (tokens, emit) = self.next(count);
        let (start, end) = (self.computed, self.computed + count);
        let within = |media: &&HeldMedia| media.span.at < end && media.span.end() > start;
        if !self.drafts.is_empty() {
            let spans = [Span::Tokens(tokens), Span::Tokens(&self.drafts)];
            return batch.push_spans(self.id, spans, emit);
        }
        if !self.media.iter().any(|media| within(&media)) {
            return batch.push(self.id, tokens, emit);
        }
        let mut spans = Vec::new();
        let mut at = start;
        for HeldMedia { handle, span } in self.media.iter().filter(within) {
            let (from, to) = (span.at.max(start), span.end().min(end));
            if at < from {
                spans.push(Span::Tokens(&tokens[at - start..from - start]));
            }
            let first = span.range.start + from - span.at;
            // Rows end before media without a handle.
            let Some(handle) = handle else { break };
            spans.push(Span::Media {
                id: handle.id,
                range: first..first + (to - from),
            });
            at = to;
        }
        if at < end {
            spans.push(Span::Tokens(&tokens[at - start..]));
        }
        batch.push_spans(self.id, spans, emit);
    }

    /// Processes a step's output for `count` tokens at `row` of the batch.
    pub fn sample(
        &mut self,
        row: usize,
        count: usize,
        output: &mut StepOutput,
        scratch: &mut SamplerScratch,
    ) -> Result<(), EngineError> {
        self.score(row, count, output, scratch)?;
        self.pool(row, count, output)?;
        self.row_start = self.computed;
        self.computed += count;
        if self.pending() > 0 || self.sequence.max_tokens == 0 {
            return Ok(());
        }
        self.choose((row, 0), output, scratch)?;
        if self.draw.is_some() {
            self.draw = self.sequence.sampler.next_draw();
        }
        Ok(())
    }

    /// Chooses the token after the first `right` drafts.
    fn choose(
        &mut self,
        (row, right): (usize, usize),
        output: &mut StepOutput,
        scratch: &mut SamplerScratch,
    ) -> Result<(), EngineError> {
        let sequence = &mut self.sequence;
        let from_end = 1 + self.drafts.len() - right;
        let by_session = self.draw.is_some() || !sequence.emit_logits;
        sequence.sampled = Some(if sequence.scores.is_some() || !by_session {
            let at = output.logit_positions(row).checked_sub(from_end);
            let logits = output.logits_mut(row, at.ok_or_else(withheld)?);
            sequence.choose(logits, scratch)?
        } else {
            let token = output.tokens(row).iter().rev().nth(from_end - 1);
            sequence.sampler.record_draw();
            crate::TokenInfo::bare(*token.ok_or_else(withheld)?)
        });
        Ok(())
    }

    /// Chooses one more token from the same row if all tokens since then are what was drafted.
    /// Returns whether it did.
    pub fn sample_next(
        &mut self,
        row: usize,
        output: &mut StepOutput,
        scratch: &mut SamplerScratch,
    ) -> Result<bool, EngineError> {
        let came = &self.sequence.tokens[self.computed..];
        // Without room for its event the token waits for the next step, as it would without drafts.
        if came.is_empty() || !self.drafts.starts_with(came) || !self.sequence.sink.has_room() {
            return Ok(false);
        }
        let constraint = self.sequence.constraint.as_ref();
        if constraint.is_some_and(|constraint| !constraint.is_ready()) {
            return Ok(false);
        }
        self.choose((row, came.len()), output, scratch)?;
        Ok(true)
    }

    /// Removes the drafts that were wrong from the session. Returns how many were right.
    pub fn end_drafts(&mut self, session: &mut dyn Session) -> Result<usize, SessionError> {
        let drafted = self.drafts.len();
        if drafted == 0 {
            return Ok(0);
        }
        if let Some(constraint) = &mut self.sequence.constraint {
            constraint.forget_ahead();
        }
        let came = &self.sequence.tokens[self.computed..];
        let pairs = self.drafts.iter().zip(came);
        let accepted = pairs.take_while(|(draft, token)| draft == token).count();
        self.drafts.clear();
        self.sequence.drafts.tokens += drafted;
        self.sequence.drafts.accepted += accepted;
        let known = self.sequence.tokens.len();
        // The last token is never computed, as without drafts.
        let right = (self.computed + accepted).min(known - 1);
        if right < self.computed + drafted {
            // A recurrent model can only be cut where the row began.
            let len = session.reusable(self.id, right)?;
            session.truncate(self.id, len)?;
            (self.computed, self.row_start) = (len, len);
        } else {
            self.computed = right;
        }
        Ok(accepted)
    }

    /// The most drafts that could follow a row of `count` tokens. If rejected drafts take the row
    /// with them, what is computed again must still count as decoding.
    pub fn max_drafts(&self, count: usize, limit: usize, replays: bool) -> usize {
        let sequence = &self.sequence;
        let is_verifiable = self.is_generating()
            && self.chooses(count)
            && self.draw.is_none()
            && sequence.scores.is_none()
            && sequence.pool.is_none();
        if !is_verifiable {
            return 0;
        }
        let limit = sequence.draft_tokens.map_or(limit, |own| own.min(limit));
        let limit = if replays {
            limit.min(SHORT_RUN.saturating_sub(count + 1))
        } else {
            limit
        };
        // One token more than there are right drafts is chosen.
        let left = sequence.max_len() - sequence.tokens.len();
        limit.min(left.saturating_sub(1))
    }

    /// Whether the next `count` tokens end with a choice of the next token.
    pub fn chooses(&self, count: usize) -> bool {
        count == self.pending() && self.sequence.max_tokens > 0
    }

    /// Whether its pending tokens are output that a constraint forced.
    pub fn is_generating(&self) -> bool {
        self.computed >= self.sequence.prompt_len
    }

    /// Each position's logits score the token after it. Positions recomputed after a preemption are
    /// already scored.
    fn score(
        &mut self,
        row: usize,
        count: usize,
        output: &StepOutput,
        scratch: &mut SamplerScratch,
    ) -> Result<(), EngineError> {
        let sequence = &mut self.sequence;
        let Some(scores) = &mut sequence.scores else {
            return Ok(());
        };
        if output.logit_positions(row) < count {
            return Err(withheld());
        }
        let end = (self.computed + count + 1).min(sequence.prompt_len);
        for about in scores.len()..end {
            let logits = output.logits(row, about - 1 - self.computed);
            let alternatives = sequence.logprobs.map_or(0, |wanted| wanted.alternatives);
            let token = sequence.tokens[about];
            scores.push(sampling::score(token, logits, alternatives, scratch)?);
        }
        Ok(())
    }

    /// Positions recomputed after a preemption are already pooled.
    fn pool(&mut self, row: usize, count: usize, output: &StepOutput) -> Result<(), EngineError> {
        let Some(pool) = &mut self.sequence.pool else {
            return Ok(());
        };
        let wanted = pool.wanted_before(self.computed + count).min(count);
        if output.hidden_positions(row) < wanted {
            return Err(withheld());
        }
        (0..wanted).try_for_each(|position| pool.add(output.hidden(row, position)))
    }
}

fn withheld() -> EngineError {
    SessionError::Device("a row came back without what it was to emit".into()).into()
}
