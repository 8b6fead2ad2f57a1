use std::ops::Range;

use crate::{Capabilities, Draw, MediaId, SequenceId, SessionError};

/// Positions of one span at most; longer than any context.
const MAX_SPAN: usize = 1 << 24;

/// What one step computes: rows of any kind, mixed. Reused from step to step, so that a steady
/// decode loop allocates nothing.
#[derive(Debug, Clone, Default)]
pub struct StepBatch {
    rows: Vec<Row>,
    tokens: Vec<u32>,
    media: Vec<MediaSpan>,
}

/// A part of a row's input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Span<'a> {
    /// Token ids.
    Tokens(&'a [u32]),
    /// Positions `range` of encoded media.
    Media {
        /// Encoded by the same session.
        id: MediaId,
        /// Not empty, and within the media's positions.
        range: Range<usize>,
    },
}

/// Positions of encoded media in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaSpan {
    /// Where in the row it begins.
    pub at: usize,
    /// The media.
    pub id: MediaId,
    /// Which of its positions.
    pub range: Range<usize>,
}

/// New tokens for one sequence: a prompt chunk, one decoded token, or a block to verify.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The sequence to extend.
    pub sequence: SequenceId,
    /// What to compute after its last positions.
    pub emit: Emit,
    tokens: Range<usize>,
    media: Range<usize>,
}

/// What a row emits. Counts are of its last positions: 1 is the usual next token, as many as the
/// row has tokens scores a prompt, in between verifies a speculative block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Emit {
    /// Only extends the sequence.
    Nothing,
    /// The most likely next token at each of the last `positions`; the lowest id wins a tie.
    Greedy {
        /// At most the row's tokens, at least 1.
        positions: usize,
    },
    /// A token drawn after the last position, for sessions that [draw](Capabilities::draws).
    Drawn(Draw),
    /// All logits at each of the last `positions`.
    Logits {
        /// At most the row's tokens, at least 1.
        positions: usize,
    },
    /// The hidden state at each of the last `positions`: what the head would read, after the
    /// final norm and before the head's own scale. The head need not run.
    Hidden {
        /// At most the row's tokens, at least 1.
        positions: usize,
    },
}

impl Emit {
    /// How many positions it emits.
    pub fn positions(self) -> usize {
        match self {
            Emit::Nothing => 0,
            Emit::Drawn(_) => 1,
            Emit::Greedy { positions }
            | Emit::Logits { positions }
            | Emit::Hidden { positions } => positions,
        }
    }
}

impl StepBatch {
    /// The placeholder for a position of media in [`tokens`](StepBatch::tokens). No vocabulary has it.
    pub const MEDIA_TOKEN: u32 = u32::MAX;

    /// Removes all rows and keeps the memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.tokens.clear();
        self.media.clear();
    }

    /// Adds a row that appends `tokens` to `sequence`.
    pub fn push(&mut self, sequence: SequenceId, tokens: &[u32], emit: Emit) {
        let start = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        self.rows.push(Row {
            sequence,
            emit,
            tokens: start..self.tokens.len(),
            media: 0..0,
        });
    }

    /// Adds a row that appends these spans to `sequence`.
    pub fn push_spans<'a>(
        &mut self,
        sequence: SequenceId,
        spans: impl IntoIterator<Item = Span<'a>>,
        emit: Emit,
    ) {
        let (start, first) = (self.tokens.len(), self.media.len());
        for span in spans {
            match span {
                Span::Tokens(tokens) => self.tokens.extend_from_slice(tokens),
                Span::Media { id, range } => {
                    let at = self.tokens.len() - start;
                    // A range beyond any media is refused by `check`, before it fills memory.
                    let len = range.len().min(MAX_SPAN);
                    let end = self.tokens.len() + len;
                    self.tokens.resize(end, Self::MEDIA_TOKEN);
                    self.media.push(MediaSpan { at, id, range });
                }
            }
        }
        self.rows.push(Row {
            sequence,
            emit,
            tokens: start..self.tokens.len(),
            media: first..self.media.len(),
        });
    }

    /// The rows, in the order they were added.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The new tokens of one of this batch's rows: one for each position, which is
    /// [`MEDIA_TOKEN`](StepBatch::MEDIA_TOKEN) if it belongs to media.
    pub fn tokens(&self, row: &Row) -> &[u32] {
        &self.tokens[row.tokens.clone()]
    }

    /// The media in one of this batch's rows, in order.
    pub fn media(&self, row: &Row) -> &[MediaSpan] {
        &self.media[row.media.clone()]
    }

    /// For sessions: refuses row `index` if no session of these capabilities can run it. Its
    /// sequence holds `len` tokens; rows accepted before it bring `planned`.
    pub fn check(
        &self,
        index: usize,
        len: usize,
        planned: usize,
        capabilities: &Capabilities,
    ) -> Result<(), SessionError> {
        let row = &self.rows[index];
        let tokens = self.tokens(row);
        let mut earlier = self.rows[..index].iter();
        if earlier.any(|other| other.sequence == row.sequence) {
            return Err(SessionError::DuplicateSequence(row.sequence));
        }
        if tokens.is_empty() {
            return Err(SessionError::EmptyRow);
        }
        let media = self.media(row);
        if !media.is_empty() && capabilities.media_positions == 0 {
            return Err(SessionError::Unsupported("media"));
        }
        let mut marked = 0;
        for span in media {
            marked += span.range.len();
            if span.range.is_empty() || span.range.len() > MAX_SPAN {
                return Err(SessionError::MediaRange {
                    start: span.range.start,
                    end: span.range.end,
                    positions: MAX_SPAN,
                    why: "it must lie within the media's positions",
                });
            }
        }
        let vocab_size = capabilities.vocab_size;
        let outside = |token: &&u32| **token as usize >= vocab_size;
        let mut strange = tokens.iter().filter(outside);
        // The marks of media are outside every vocabulary, and nothing else may be.
        if let Some(token) = strange.clone().find(|token| **token != Self::MEDIA_TOKEN) {
            return Err(SessionError::TokenOutOfRange {
                token: *token,
                vocab_size,
            });
        }
        if let Some(token) = strange.nth(marked) {
            return Err(SessionError::TokenOutOfRange {
                token: *token,
                vocab_size,
            });
        }
        let positions = row.emit.positions();
        if positions > tokens.len() || (positions == 0 && row.emit != Emit::Nothing) {
            return Err(SessionError::EmitOutOfRange {
                positions,
                tokens: tokens.len(),
            });
        }
        match row.emit {
            Emit::Drawn(_) if !capabilities.draws => {
                return Err(SessionError::Unsupported("drawn tokens"));
            }
            Emit::Drawn(draw) => draw.check()?,
            Emit::Hidden { .. } if capabilities.hidden_size.is_none() => {
                return Err(SessionError::Unsupported("hidden states"));
            }
            _ => {}
        }
        let (wanted, max_context) = (len + tokens.len(), capabilities.max_context);
        if wanted > max_context {
            return Err(SessionError::ContextExceeded {
                wanted,
                max_context,
            });
        }
        let (tokens, max) = (planned + tokens.len(), capabilities.max_step_tokens);
        if tokens > max {
            return Err(SessionError::StepTooLarge { tokens, max });
        }
        Ok(())
    }

    /// New tokens over all rows.
    pub fn token_count(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// The output of a step, one [`RowOutput`] per row in the batch's order. Owned by the caller and
/// reused; the session clears and fills it.
#[derive(Debug, Default)]
pub struct StepOutput {
    rows: Vec<RowOutput>,
    tokens: Vec<u32>,
    logits: Vec<f32>,
    vocab_size: usize,
    hidden: Vec<f32>,
    hidden_size: usize,
}

/// The output of one row; its values are read through [`StepOutput`].
#[derive(Debug, Default)]
pub struct RowOutput {
    /// Why the row was refused; its sequence is then unchanged.
    pub error: Option<SessionError>,
    tokens: Range<usize>,
    /// In units of whole vocabularies.
    logits: Range<usize>,
    /// In units of whole hidden states.
    hidden: Range<usize>,
}

impl StepOutput {
    /// For sessions: clears the last step's output.
    pub fn reset(&mut self, capabilities: &Capabilities) {
        self.rows.clear();
        self.tokens.clear();
        self.logits.clear();
        self.vocab_size = capabilities.vocab_size;
        self.hidden.clear();
        self.hidden_size = capabilities.hidden_size.unwrap_or(0);
    }

    /// For sessions: the next row was refused.
    pub fn push_error(&mut self, error: SessionError) {
        self.rows.push(RowOutput {
            error: Some(error),
            ..RowOutput::default()
        });
    }

    /// For sessions: the next row emits nothing.
    pub fn push_nothing(&mut self) {
        self.rows.push(RowOutput::default());
    }

    /// For sessions: room for the next row's tokens, greedy or drawn, one per emitted position.
    pub fn push_tokens(&mut self, positions: usize) -> &mut [u32] {
        let range = self.tokens.len()..self.tokens.len() + positions;
        self.tokens.resize(range.end, 0);
        self.rows.push(RowOutput {
            tokens: range.clone(),
            ..RowOutput::default()
        });
        &mut self.tokens[range]
    }

    /// For sessions: room for the next row's logits, one vocabulary per emitted position.
    pub fn push_logits(&mut self, positions: usize) -> &mut [f32] {
        let range = grow(&mut self.logits, self.vocab_size, positions);
        self.rows.push(RowOutput {
            logits: range.clone(),
            ..RowOutput::default()
        });
        &mut self.logits[range.start * self.vocab_size..]
    }

    /// For sessions: room for the next row's hidden states, one per emitted position.
    pub fn push_hidden(&mut self, positions: usize) -> &mut [f32] {
        let range = grow(&mut self.hidden, self.hidden_size, positions);
        self.rows.push(RowOutput {
            hidden: range.clone(),
            ..RowOutput::default()
        });
        &mut self.hidden[range.start * self.hidden_size..]
    }

    /// For sessions: replaces a row's output with an error.
    pub fn fail(&mut self, row: usize, error: SessionError) {
        self.rows[row] = RowOutput {
            error: Some(error),
            ..RowOutput::default()
        };
    }

    /// For sessions: all rows' tokens, in the order they were pushed.
    pub fn all_tokens_mut(&mut self) -> &mut [u32] {
        &mut self.tokens
    }

    /// For sessions: all rows' logits, in the order they were pushed.
    pub fn all_logits_mut(&mut self) -> &mut [f32] {
        &mut self.logits
    }

    /// For sessions: all rows' hidden states, in the order they were pushed.
    pub fn all_hidden_mut(&mut self) -> &mut [f32] {
        &mut self.hidden
    }

    /// One entry per row, in the batch's order.
    pub fn rows(&self) -> &[RowOutput] {
        &self.rows
    }

    /// The row's tokens, greedy or drawn, oldest position first.
    pub fn tokens(&self, row: usize) -> &[u32] {
        &self.tokens[self.rows[row].tokens.clone()]
    }

    /// How many positions' logits the row has.
    pub fn logit_positions(&self, row: usize) -> usize {
        self.rows[row].logits.len()
    }

    /// The logits of the row's `position`-th emitted position, oldest first.
    pub fn logits(&self, row: usize, position: usize) -> &[f32] {
        let start = (self.rows[row].logits.start + position) * self.vocab_size;
        &self.logits[start..start + self.vocab_size]
    }

    /// The same, for samplers that work in place.
    pub fn logits_mut(&mut self, row: usize, position: usize) -> &mut [f32] {
        let start = (self.rows[row].logits.start + position) * self.vocab_size;
        &mut self.logits[start..start + self.vocab_size]
    }

    /// How many positions' hidden states the row has.
    pub fn hidden_positions(&self, row: usize) -> usize {
        self.rows[row].hidden.len()
    }

    /// The hidden state of the row's `position`-th emitted position, oldest first.
    pub fn hidden(&self, row: usize, position: usize) -> &[f32] {
        let start = (self.rows[row].hidden.start + position) * self.hidden_size;
        &self.hidden[start..start + self.hidden_size]
    }
}

/// Adds `positions` vectors of `width` zeros. Returns which vectors they are.
fn grow(values: &mut Vec<f32>, width: usize, positions: usize) -> Range<usize> {
    let start = values.len().checked_div(width).unwrap_or(0);
    let range = start..start + positions;
    values.resize(range.end * width, 0.0);
    range
}
