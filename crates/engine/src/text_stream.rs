//! Turns a sequence's tokens into text, up to a stop string.

use loquat_text::{Detokenizer, DetokenizerOptions, StopMatch, StopMatcher, Tokenizer};

use crate::{EngineError, GenerateRequest};

#[derive(Debug)]
pub(crate) struct TextStream {
    parts: Option<(Detokenizer, StopMatcher)>,
    /// Tokens before stop strings apply.
    unstoppable: usize,
}

impl TextStream {
    /// Without a tokenizer the text is always empty.
    pub fn new(
        tokenizer: Option<&Tokenizer>,
        request: &GenerateRequest,
    ) -> Result<Self, EngineError> {
        let Some(tokenizer) = tokenizer else {
            return Ok(Self {
                parts: None,
                unstoppable: 0,
            });
        };
        let options = DetokenizerOptions {
            skip_special: request.skip_special,
            continues: !request.fresh_text,
        };
        let stops =
            StopMatcher::new(request.stop.clone()).map_err(|_| EngineError::OutOfRange {
                field: "stop",
                found: format!("{:?}", request.stop),
                expected: "strings of at least one character each".into(),
            })?;
        let detokenizer =
            Detokenizer::new(tokenizer.clone(), options).showing(request.shown_special.clone());
        Ok(Self {
            parts: Some((detokenizer, stops)),
            unstoppable: request.sampling.min_tokens.saturating_sub(1),
        })
    }

    /// Adds a token; returns the text it completes.
    pub fn push(&mut self, id: u32) -> StopMatch {
        let Some((detokenizer, stops)) = &mut self.parts else {
            return nothing();
        };
        let text = detokenizer.push(id);
        if self.unstoppable > 0 {
            self.unstoppable -= 1;
            return StopMatch {
                text,
                stopped: None,
            };
        }
        stops.push(&text)
    }

    /// Ends the text; returns the rest.
    pub fn finish(&mut self) -> StopMatch {
        let Some((detokenizer, stops)) = &mut self.parts else {
            return nothing();
        };
        let mut last = stops.push(&detokenizer.finish());
        if last.stopped.is_none() {
            last.text.push_str(&stops.finish());
        }
        last
    }
}

fn nothing() -> StopMatch {
    StopMatch {
        text: String::new(),
        stopped: None,
    }
}
