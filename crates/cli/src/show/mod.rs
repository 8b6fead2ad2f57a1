//! Replies printed as text, as one JSON object, or event by event.

mod closing;
mod fold;
mod json;
mod text;
mod transcript;

use loquat_text::Tokenizer;

pub use closing::{print_summary, warn_of_reduced_limit};
pub use json::number;
pub use text::ReasoningDisplay;
pub use transcript::{Transcript, print_answer};

use crate::args::OutputForm;
use json::{EventsPrinter, ObjectPrinter};
use text::TextPrinter;
use transcript::ReplyPrinter;

/// The printer for an output form. `logprobs` are printed if the request asks for them.
pub fn printer<'a>(
    form: OutputForm,
    reasoning: ReasoningDisplay,
    tokenizer: &'a Tokenizer,
    logprobs: bool,
) -> Box<dyn ReplyPrinter + 'a> {
    let tokens = logprobs.then_some(tokenizer);
    match form {
        OutputForm::Text => Box::new(TextPrinter::new(reasoning)),
        OutputForm::Json => Box::new(ObjectPrinter { tokens }),
        OutputForm::Events => Box::new(EventsPrinter { tokens }),
    }
}
