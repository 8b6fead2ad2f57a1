//! A chaos client: it reads, stalls, disconnects, resends and asks for too much, at random.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use loquat_engine::{
    Blame, Engine, EngineError, Event, FinishReason, GenerateRequest, Generation, SamplingParams,
    Usage,
};
use loquat_session::Capabilities;
use serde_json::{Value, json};

use super::super::random::{LengthRange, Random};

/// What all clients share.
pub struct SharedInputs<'a> {
    pub capabilities: &'a Capabilities,
    pub prompts: LengthRange,
    pub outputs: LengthRange,
    pub recent: &'a Mutex<RecentPrompts>,
}

/// Recent prompts, to resend or extend.
#[derive(Default)]
pub struct RecentPrompts(VecDeque<Vec<u32>>);

impl RecentPrompts {
    const CAPACITY: usize = 16;

    fn push(&mut self, prompt: Vec<u32>) {
        if self.0.len() == Self::CAPACITY {
            self.0.pop_front();
        }
        self.0.push_back(prompt);
    }
}

/// Counts of what happened to a client's requests.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Tally {
    /// Streams the engine accepted, one per choice.
    pub accepted: u64,
    /// Streams refused because the queue was full.
    pub refused: u64,
    pub finished: u64,
    pub timed_out: u64,
    pub failed: u64,
    /// Streams the client dropped before their end.
    pub abandoned: u64,
    pub stalls: u64,
    pub resent: u64,
    /// Requests beyond the context that the engine refused.
    pub oversized: u64,
    pub tokens: u64,
    /// Violated guarantees of the engine, and the first few as text.
    pub violations: u64,
    pub examples: Vec<String>,
}

impl Tally {
    const EXAMPLES: usize = 8;

    fn violation(&mut self, what: String) {
        self.violations += 1;
        if self.examples.len() < Self::EXAMPLES {
            self.examples.push(what);
        }
    }

    pub fn merge(mut self, other: Self) -> Self {
        let Self {
            accepted,
            refused,
            finished,
            timed_out,
            failed,
            abandoned,
            stalls,
            resent,
            oversized,
            tokens,
            violations,
            examples,
        } = other;
        self.accepted += accepted;
        self.refused += refused;
        self.finished += finished;
        self.timed_out += timed_out;
        self.failed += failed;
        self.abandoned += abandoned;
        self.stalls += stalls;
        self.resent += resent;
        self.oversized += oversized;
        self.tokens += tokens;
        self.violations += violations;
        let room = Self::EXAMPLES.saturating_sub(self.examples.len());
        self.examples.extend(examples.into_iter().take(room));
        self
    }

    pub fn to_json(&self) -> Value {
        json!({
            "accepted": self.accepted,
            "refused": self.refused,
            "finished": self.finished,
            "timed_out": self.timed_out,
            "failed": self.failed,
            "abandoned": self.abandoned,
            "stalls": self.stalls,
            "resent": self.resent,
            "oversized": self.oversized,
            "tokens": self.tokens,
            "violations": self.violations,
            "examples": self.examples,
        })
    }
}

/// How a client reads one stream.
#[derive(Clone, Copy)]
enum ReadBehaviour {
    ToTheEnd,
    /// Drops the stream after so many tokens.
    Disconnect {
        after: usize,
    },
    /// Pauses once after so many tokens.
    Stall {
        after: usize,
        pause: Duration,
    },
}

/// The usage that a stream must report.
#[derive(Clone, Copy)]
struct ExpectedUsage {
    prompt_tokens: usize,
    max_tokens: usize,
}

pub struct ChaosClient<'a> {
    engine: &'a Engine,
    shared: &'a SharedInputs<'a>,
    random: Random,
    tally: Tally,
}

impl<'a> ChaosClient<'a> {
    pub fn new(engine: &'a Engine, shared: &'a SharedInputs<'a>, seed: u64, name: usize) -> Self {
        Self {
            engine,
            shared,
            random: Random::new(seed, name as u64),
            tally: Tally::default(),
        }
    }

    pub fn run_until(mut self, deadline: Instant) -> Tally {
        while Instant::now() < deadline {
            if self.random.chance(0.02) {
                self.send_oversized_request()
            } else {
                self.send_request()
            }
        }
        self.tally
    }

    fn send_request(&mut self) {
        let request = self.request();
        let expected = ExpectedUsage {
            prompt_tokens: request.prompt.len(),
            max_tokens: request.max_tokens,
        };
        let choices = if self.shared.capabilities.logits && self.random.chance(0.1) {
            2 + self.random.below(3)
        } else {
            1
        };
        match self.submit(request, choices) {
            Ok(streams) => {
                self.tally.accepted += choices as u64;
                for stream in streams {
                    let behaviour = self.behaviour(expected.max_tokens);
                    self.read(stream, expected, behaviour);
                }
            }
            Err(EngineError::QueueFull) => {
                self.tally.refused += choices as u64;
                std::thread::sleep(Duration::from_millis(self.random.below(20) as u64));
            }
            Err(error) => self
                .tally
                .violation(format!("a valid request was refused: {error}")),
        }
    }

    fn submit(
        &self,
        request: GenerateRequest,
        choices: usize,
    ) -> Result<Vec<Generation>, EngineError> {
        match choices {
            1 => Ok(vec![self.engine.submit(request)?]),
            _ => Ok(self
                .engine
                .submit_choices(request, choices)?
                .into_generations()),
        }
    }

    fn send_oversized_request(&mut self) {
        let len = self.shared.capabilities.max_context;
        let request = GenerateRequest {
            prompt: vec![0; len],
            max_tokens: 1,
            sampling: SamplingParams::greedy(),
            ..GenerateRequest::default()
        };
        match self.engine.submit(request) {
            Err(error) if error.blame() == Blame::Request => self.tally.oversized += 1,
            Err(error) => self
                .tally
                .violation(format!("a request beyond the context failed with: {error}")),
            Ok(_) => self
                .tally
                .violation("a request beyond the context was accepted".to_owned()),
        }
    }

    fn request(&mut self) -> GenerateRequest {
        let one_of = |random: &mut Random, names: &[&str]| {
            let name = names.get(random.below(names.len() + 1));
            name.map(|name| (*name).to_owned())
        };
        let timeout = |random: &mut Random, millis: usize| {
            let hurried = random.chance(0.1);
            hurried.then(|| Duration::from_millis(1 + random.below(millis) as u64))
        };
        let prompt = self.prompt();
        let random = &mut self.random;
        GenerateRequest {
            prompt,
            max_tokens: random.length(self.shared.outputs),
            sampling: if self.shared.capabilities.logits && random.chance(0.5) {
                SamplingParams {
                    seed: Some(random.next()),
                    ..SamplingParams::default()
                }
            } else {
                SamplingParams::greedy()
            },
            priority: random.below(5) as i32 - 2,
            client: one_of(random, &["ada", "ben", "cleo", "dan", "eve"]),
            cache_scope: one_of(random, &["red", "blue"]),
            queue_timeout: timeout(random, 50),
            first_token_timeout: timeout(random, 100),
            ..GenerateRequest::default()
        }
    }

    /// A new prompt or a recent one, unchanged or extended.
    fn prompt(&mut self) -> Vec<u32> {
        let Capabilities { vocab_size, .. } = *self.shared.capabilities;
        let len = self.random.length(self.shared.prompts);
        let mut prompt = if self.random.chance(0.4) {
            self.recent_prompt()
        } else {
            Vec::new()
        };
        if !prompt.is_empty() {
            self.tally.resent += 1;
        }
        if prompt.is_empty() || self.random.chance(0.5) {
            prompt.extend(self.random.tokens(vocab_size, len));
        }
        prompt.truncate(self.shared.prompts.high);
        self.with_recent(|recent| recent.push(prompt.clone()));
        prompt
    }

    fn recent_prompt(&mut self) -> Vec<u32> {
        let index = self.random.below(RecentPrompts::CAPACITY);
        let prompt = self.with_recent(|recent| recent.0.get(index).cloned());
        prompt.unwrap_or_default()
    }

    fn with_recent<T>(&self, use_recent: impl FnOnce(&mut RecentPrompts) -> T) -> T {
        let recent = self.shared.recent.lock();
        use_recent(&mut recent.unwrap_or_else(PoisonError::into_inner))
    }

    fn behaviour(&mut self, max_tokens: usize) -> ReadBehaviour {
        let after = self.random.below(max_tokens);
        match self.random.below(10) {
            0..5 => ReadBehaviour::ToTheEnd,
            5..8 => ReadBehaviour::Disconnect { after },
            _ => ReadBehaviour::Stall {
                after,
                pause: Duration::from_millis(self.random.below(300) as u64),
            },
        }
    }

    /// Reads a stream and counts how it ended.
    fn read(
        &mut self,
        mut stream: Generation,
        expected: ExpectedUsage,
        mut behaviour: ReadBehaviour,
    ) {
        let (mut delivered, mut endings) = (0, 0);
        loop {
            match behaviour {
                ReadBehaviour::Disconnect { after } if delivered >= after => {
                    self.tally.abandoned += 1;
                    return;
                }
                ReadBehaviour::Stall { after, pause } if delivered >= after => {
                    std::thread::sleep(pause);
                    self.tally.stalls += 1;
                    behaviour = ReadBehaviour::ToTheEnd;
                }
                _ => {}
            }
            let Some(event) = stream.recv_blocking() else {
                break;
            };
            match event {
                Event::Tokens { tokens, .. } => {
                    delivered += tokens.len();
                    self.tally.tokens += tokens.len() as u64;
                }
                Event::Finished { reason, usage, .. } => {
                    endings += 1;
                    self.finished(expected, delivered, reason, usage);
                }
                Event::Failed(error) => {
                    endings += 1;
                    self.failed(error);
                }
                Event::PromptLogprobs(_) | Event::Embedding(_) => {
                    self.tally
                        .violation("an event that was not requested".to_owned());
                }
            }
        }
        if endings != 1 {
            self.tally
                .violation(format!("a stream with {endings} final events"));
        }
    }

    fn finished(
        &mut self,
        expected: ExpectedUsage,
        delivered: usize,
        reason: FinishReason,
        usage: Usage,
    ) {
        self.tally.finished += 1;
        let ExpectedUsage {
            prompt_tokens,
            max_tokens,
        } = expected;
        let as_expected = reason == FinishReason::Length
            && delivered == max_tokens
            && usage.completion_tokens == delivered
            && usage.prompt_tokens == prompt_tokens
            && usage.cached_tokens <= prompt_tokens;
        if !as_expected {
            self.tally.violation(format!(
                "{prompt_tokens} + {max_tokens} tokens requested, {delivered} delivered, but \
                 {reason:?} with {usage:?}"
            ));
        }
    }

    fn failed(&mut self, error: EngineError) {
        match error {
            EngineError::QueueTimeout { .. } | EngineError::FirstTokenTimeout { .. } => {
                self.tally.timed_out += 1;
            }
            error => {
                self.tally.failed += 1;
                self.tally.violation(format!("a stream failed: {error}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_latest_prompts_are_kept() {
        let mut recent = RecentPrompts::default();
        for prompt in 0..40 {
            recent.push(vec![prompt]);
        }
        assert_eq!(recent.0.len(), RecentPrompts::CAPACITY);
        assert_eq!(recent.0.front(), Some(&vec![24]));
    }

    #[test]
    fn tallies_add_up_and_keep_first_examples() {
        let mut one = Tally {
            accepted: 2,
            tokens: 7,
            ..Tally::default()
        };
        for index in 0..20 {
            one.violation(format!("example {index}"));
        }
        let both = one.clone().merge(one);
        assert_eq!((both.accepted, both.tokens, both.violations), (4, 14, 40));
        assert_eq!(both.examples.len(), Tally::EXAMPLES);
        assert_eq!(both.examples[0], "example 0");
    }
}
