//! What was heard, printed: as text, as one JSON object, or event by event.

mod closing;
mod fold;
mod json;
mod text;

use loquat_text::Tokenizer;

pub use closing::close;
pub use json::number;
pub use text::Thinking;

use crate::args::Form;
use crate::stream::Listener;
use json::{Events, Whole};
use text::Spoken;

/// Whoever prints in this form. `logprobs` are told where they were asked for.
pub fn listener<'a>(
    form: Form,
    thinking: Thinking,
    tokenizer: &'a Tokenizer,
    logprobs: bool,
) -> Box<dyn Listener + 'a> {
    let tokens = logprobs.then_some(tokenizer);
    match form {
        Form::Text => Box::new(Spoken::new(thinking)),
        Form::Json => Box::new(Whole { tokens }),
        Form::Events => Box::new(Events { tokens }),
    }
}
