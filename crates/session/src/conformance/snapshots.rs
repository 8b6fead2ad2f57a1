//! The snapshot rule that every backend gets from [`Sequences`](crate::sequences::Sequences).

use super::{Subject, TestSession};
use crate::{PrefixCopy, SessionOptions};

/// The state before a row is kept until the next row, whatever the row's length.
pub fn last_row_can_be_undone(subject: &Subject) -> Result<(), String> {
    /// More than the snapshots that a sequence keeps inside one row.
    const LONG: usize = 1100;
    let mut probe = TestSession::open(
        subject,
        &SessionOptions {
            max_step_tokens: LONG,
            ..SessionOptions::default()
        },
    )?;
    let capabilities = probe.session.capabilities();
    if capabilities.prefix_copy == PrefixCopy::None {
        return Ok(());
    }
    let short = [5, 1, 40, 1];
    let room = capabilities.max_context - short.iter().sum::<usize>();
    let sequence = probe.create()?;
    let mut before = 0;
    for (seed, len) in (50..).zip(short.into_iter().chain([room.min(LONG)])) {
        let row = probe.tokens(seed, len);
        let expected = probe.logits(sequence, &row, 1)?;
        let reusable = probe.session.reusable(sequence, before);
        if reusable != Ok(before) {
            return Err(format!(
                "a row of {len} after {before} tokens cannot be undone: {reusable:?}"
            ));
        }
        let truncated = probe.session.truncate(sequence, before);
        truncated.map_err(|error| format!("truncate: {error}"))?;
        let again = probe.logits(sequence, &row, 1)?;
        probe.same(&format!("row of {len} again"), &expected, &again)?;
        before += len;
    }
    Ok(())
}
