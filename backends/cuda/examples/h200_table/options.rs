//! The command line, and the sessions and workloads that it asks for.

use std::error::Error;
use std::time::Duration;

use loquat_session::SessionOptions;

use crate::session_loop::{WARM_UP, Workload};

pub struct Options {
    pub models: Vec<String>,
    pub batches: Option<Vec<usize>>,
    pub depth: usize,
    pub tokens: usize,
    pub rounds: usize,
    pub budget: Duration,
    pub steps: Option<usize>,
    pub interpreter: bool,
    pub ceiling: bool,
}

/// The model whose larger batches are measured by default.
const LARGE: &str = "llama-8b";
const LARGE_BATCHES: [usize; 3] = [1, 8, 64];
const SMALL: &str = "llama-1b";
/// KV is counted in blocks at least as large as any backend's.
const BLOCK: usize = 256;

impl Options {
    pub fn parse(args: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut options = Self {
            models: Vec::new(),
            batches: None,
            depth: 512,
            tokens: 128,
            rounds: 3,
            budget: Duration::from_secs(270),
            steps: None,
            interpreter: false,
            ceiling: true,
        };
        let mut default_models = vec![LARGE, SMALL];
        let mut args = args;
        while let Some(name) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("`{name}` needs a value"));
            match name.as_str() {
                "--model" => options.models = value()?.split(',').map(str::to_owned).collect(),
                "--batches" => options.batches = Some(numbers(&value()?)?),
                "--depth" => options.depth = number(&value()?)?,
                "--tokens" => options.tokens = number(&value()?)?,
                "--rounds" => options.rounds = number(&value()?)?,
                "--budget" => options.budget = Duration::from_secs(number(&value()?)? as u64),
                "--steps" => options.steps = Some(number(&value()?)?),
                "--no-ceiling" => options.ceiling = false,
                "--interpreter" => options.interpreter = true,
                "--quick" => {
                    default_models = vec![SMALL];
                    (options.tokens, options.rounds) = (16, 1);
                }
                _ => {
                    return Err(format!("`{name}` is not an option; see the top of main.rs").into());
                }
            }
        }
        if options.models.is_empty() {
            if options.steps.is_some() {
                default_models = vec![SMALL];
            }
            options.models = default_models.into_iter().map(str::to_owned).collect();
        }
        Ok(options)
    }

    /// The prompt comes first: its speed says how long the others' prompts take.
    pub fn workloads(&self, model: &str) -> Vec<Workload> {
        let batches = self.batches.clone().unwrap_or_else(|| match model {
            LARGE => LARGE_BATCHES.to_vec(),
            _ => vec![1],
        });
        let decode = batches.into_iter().map(|batch| Workload::Decode {
            tokens: self.tokens,
            depth: self.depth,
            batch,
        });
        let prompt = Workload::Prompt { tokens: self.depth };
        std::iter::once(prompt).chain(decode).collect()
    }

    /// A session in which all workloads fit.
    pub fn session_options(&self, works: &[Workload]) -> SessionOptions {
        let default = SessionOptions::default();
        let step_tokens = default.max_step_tokens;
        let len = |work: &Workload| {
            let bare = work.prompt_tokens() + WARM_UP + self.tokens;
            bare.max(work.prompt_tokens() + work.generated(step_tokens))
                .next_multiple_of(BLOCK)
        };
        // The engine first runs a prompt alone.
        let warm_up = (self.depth + WARM_UP).next_multiple_of(BLOCK);
        let kv = works.iter().map(|work| len(work) * work.batch()).max();
        SessionOptions {
            context: works.iter().map(len).max(),
            kv_tokens: kv.map(|tokens| tokens + warm_up),
            max_sequences: 2 + works.iter().map(Workload::batch).max().unwrap_or(1),
            ..default
        }
    }

    /// For one sequence of so many decoded tokens.
    pub fn long_session(&self, steps: usize) -> SessionOptions {
        let len = (self.depth + steps + 2).next_multiple_of(BLOCK);
        SessionOptions {
            context: Some(len),
            kv_tokens: Some(len),
            max_sequences: 1,
            ..SessionOptions::default()
        }
    }
}

fn number(text: &str) -> Result<usize, String> {
    let parsed = text.parse().ok().filter(|number| *number > 0);
    parsed.ok_or_else(|| format!("`{text}` is not a number of at least 1"))
}

fn numbers(text: &str) -> Result<Vec<usize>, String> {
    text.split(',').map(number).collect()
}
