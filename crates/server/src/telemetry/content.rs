//! Logs prompts and outputs if `log.content` is on.

use loquat_engine::{Event, GenerateRequest};

use crate::config::Log;
use crate::models::Lease;

/// A request's content.
pub struct Content {
    outputs: Vec<String>,
}

impl Content {
    /// Logs the prompt; `None` if `log.content` is off.
    pub fn wanted(
        log: &Log,
        lease: &Lease,
        request: &GenerateRequest,
        choices: usize,
    ) -> Option<Self> {
        if !log.content {
            return None;
        }
        let prompt = lease
            .chat_context()
            .tokenizer()
            .decode(&request.prompt, false);
        tracing::info!(prompt, "asked");
        Some(Self {
            outputs: vec![String::new(); choices],
        })
    }

    pub fn event(&mut self, choice: usize, event: &Event) {
        if let Event::Tokens { text, .. } | Event::Finished { text, .. } = event {
            self.outputs[choice].push_str(text);
        }
    }

    /// Logs the outputs.
    pub fn log(self) {
        for (choice, output) in self.outputs.into_iter().enumerate() {
            tracing::info!(choice, output, "answered");
        }
    }
}
