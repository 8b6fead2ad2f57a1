//! Prompts and outputs in the log, for those who ask for them.

use loquat_engine::{Event, GenerateRequest};

use crate::config::Log;
use crate::models::Lease;

/// What a request is about.
pub struct Content {
    outputs: Vec<String>,
}

impl Content {
    /// `None` unless the configuration asks for it; otherwise the prompt is in the log now.
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

    /// Once nothing more comes.
    pub fn log(self) {
        for (choice, output) in self.outputs.into_iter().enumerate() {
            tracing::info!(choice, output, "answered");
        }
    }
}
