//! A sequence's tokens as text, up to a stop string.

use loquat_text::{Detokenizer, DetokenizerOptions, Matched, StopMatcher, Tokenizer};

use crate::{EngineError, GenerateRequest};

#[derive(Debug)]
pub(crate) struct TextStream {
    parts: Option<(Detokenizer, StopMatcher)>,
}

impl TextStream {
    /// Without a tokenizer there is no text, only tokens.
    pub fn new(
        tokenizer: Option<&Tokenizer>,
        request: &GenerateRequest,
    ) -> Result<Self, EngineError> {
        let Some(tokenizer) = tokenizer else {
            return Ok(Self { parts: None });
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
        let detokenizer = Detokenizer::new(tokenizer.clone(), options);
        Ok(Self {
            parts: Some((detokenizer, stops)),
        })
    }

    /// Takes a token; gives the text that is settled by it.
    pub fn push(&mut self, id: u32) -> Matched {
        match &mut self.parts {
            Some((detokenizer, stops)) => stops.push(&detokenizer.push(id)),
            None => nothing(),
        }
    }

    /// Ends the text; gives what was held back.
    pub fn finish(&mut self) -> Matched {
        let Some((detokenizer, stops)) = &mut self.parts else {
            return nothing();
        };
        let mut last = stops.push(&detokenizer.finish());
        if !last.stopped {
            last.text.push_str(&stops.finish());
        }
        last
    }
}

fn nothing() -> Matched {
    Matched {
        text: String::new(),
        stopped: false,
    }
}
