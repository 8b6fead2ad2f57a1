//! A client that cannot be relied on: it reads, stalls, leaves, comes back and asks again.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use loquat_engine::{
    Blame, Engine, EngineError, Event, FinishReason, GenerateRequest, Generation, SamplingParams,
    Usage,
};
use loquat_session::Capabilities;
use serde_json::{Value, json};

use super::super::random::Random;
use crate::args::Span;

/// What all guests share.
pub struct World<'a> {
    pub capabilities: &'a Capabilities,
    pub prompts: Span,
    pub outputs: Span,
    pub memories: &'a Mutex<Memories>,
}

/// Prompts of late, to be sent again or continued.
#[derive(Default)]
pub struct Memories(VecDeque<Vec<u32>>);

impl Memories {
    const KEPT: usize = 16;

    fn keep(&mut self, prompt: Vec<u32>) {
        if self.0.len() == Self::KEPT {
            self.0.pop_front();
        }
        self.0.push_back(prompt);
    }
}

/// What became of everything a guest asked for.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Tally {
    /// Streams the engine accepted; each choice is one.
    pub accepted: u64,
    /// Streams turned away by a full queue.
    pub refused: u64,
    pub finished: u64,
    pub timed_out: u64,
    pub failed: u64,
    /// Streams the guest left before their end.
    pub left: u64,
    pub stalls: u64,
    pub resent: u64,
    /// Requests that could never be served, and were told so.
    pub impossible: u64,
    pub tokens: u64,
    /// What should not have happened; the first few in words.
    pub wrongs: u64,
    pub complaints: Vec<String>,
}

impl Tally {
    const COMPLAINTS: usize = 8;

    fn wrong(&mut self, complaint: String) {
        self.wrongs += 1;
        if self.complaints.len() < Self::COMPLAINTS {
            self.complaints.push(complaint);
        }
    }

    pub fn and(mut self, other: Self) -> Self {
        let Self {
            accepted,
            refused,
            finished,
            timed_out,
            failed,
            left,
            stalls,
            resent,
            impossible,
            tokens,
            wrongs,
            complaints,
        } = other;
        self.accepted += accepted;
        self.refused += refused;
        self.finished += finished;
        self.timed_out += timed_out;
        self.failed += failed;
        self.left += left;
        self.stalls += stalls;
        self.resent += resent;
        self.impossible += impossible;
        self.tokens += tokens;
        self.wrongs += wrongs;
        let room = Self::COMPLAINTS.saturating_sub(self.complaints.len());
        self.complaints.extend(complaints.into_iter().take(room));
        self
    }

    pub fn to_json(&self) -> Value {
        json!({
            "accepted": self.accepted,
            "refused": self.refused,
            "finished": self.finished,
            "timed_out": self.timed_out,
            "failed": self.failed,
            "left": self.left,
            "stalls": self.stalls,
            "resent": self.resent,
            "impossible": self.impossible,
            "tokens": self.tokens,
            "wrongs": self.wrongs,
            "complaints": self.complaints,
        })
    }
}

/// How a guest reads one stream.
#[derive(Clone, Copy)]
enum Manner {
    ToTheEnd,
    /// Goes away after so many tokens.
    Leave {
        after: usize,
    },
    /// Reads nothing for a while after so many tokens.
    Stall {
        after: usize,
        pause: Duration,
    },
}

/// What a stream must come to.
#[derive(Clone, Copy)]
struct Promise {
    prompt_tokens: usize,
    max_tokens: usize,
}

pub struct Guest<'a> {
    engine: &'a Engine,
    world: &'a World<'a>,
    random: Random,
    tally: Tally,
}

impl<'a> Guest<'a> {
    pub fn new(engine: &'a Engine, world: &'a World<'a>, seed: u64, name: usize) -> Self {
        Self {
            engine,
            world,
            random: Random::new(seed, name as u64),
            tally: Tally::default(),
        }
    }

    pub fn stay_until(mut self, deadline: Instant) -> Tally {
        while Instant::now() < deadline {
            if self.random.chance(0.02) {
                self.ask_the_impossible()
            } else {
                self.visit()
            }
        }
        self.tally
    }

    fn visit(&mut self) {
        let request = self.request();
        let promise = Promise {
            prompt_tokens: request.prompt.len(),
            max_tokens: request.max_tokens,
        };
        let choices = if self.world.capabilities.logits && self.random.chance(0.1) {
            2 + self.random.below(3)
        } else {
            1
        };
        match self.submit(request, choices) {
            Ok(streams) => {
                self.tally.accepted += choices as u64;
                for stream in streams {
                    let manner = self.manner(promise.max_tokens);
                    self.attend(stream, promise, manner);
                }
            }
            Err(EngineError::QueueFull) => {
                self.tally.refused += choices as u64;
                std::thread::sleep(Duration::from_millis(self.random.below(20) as u64));
            }
            Err(error) => self
                .tally
                .wrong(format!("a good request was refused: {error}")),
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

    fn ask_the_impossible(&mut self) {
        let len = self.world.capabilities.max_context;
        let request = GenerateRequest {
            prompt: vec![0; len],
            max_tokens: 1,
            sampling: SamplingParams::greedy(),
            ..GenerateRequest::default()
        };
        match self.engine.submit(request) {
            Err(error) if error.blame() == Blame::Request => self.tally.impossible += 1,
            Err(error) => self
                .tally
                .wrong(format!("beyond the context, yet: {error}")),
            Ok(_) => self
                .tally
                .wrong("a request beyond the context was taken".to_owned()),
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
            max_tokens: random.within(self.world.outputs),
            sampling: if self.world.capabilities.logits && random.chance(0.5) {
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

    /// A new prompt, or one that somebody sent before: as it was, or longer.
    fn prompt(&mut self) -> Vec<u32> {
        let Capabilities { vocab_size, .. } = *self.world.capabilities;
        let len = self.random.within(self.world.prompts);
        let mut prompt = if self.random.chance(0.4) {
            self.remembered()
        } else {
            Vec::new()
        };
        if !prompt.is_empty() {
            self.tally.resent += 1;
        }
        if prompt.is_empty() || self.random.chance(0.5) {
            prompt.extend(self.random.tokens(vocab_size, len));
        }
        prompt.truncate(self.world.prompts.high);
        self.memories(|memories| memories.keep(prompt.clone()));
        prompt
    }

    fn remembered(&mut self) -> Vec<u32> {
        let place = self.random.below(Memories::KEPT);
        let prompt = self.memories(|memories| memories.0.get(place).cloned());
        prompt.unwrap_or_default()
    }

    fn memories<T>(&self, look: impl FnOnce(&mut Memories) -> T) -> T {
        let memories = self.world.memories.lock();
        look(&mut memories.unwrap_or_else(PoisonError::into_inner))
    }

    fn manner(&mut self, max_tokens: usize) -> Manner {
        let after = self.random.below(max_tokens);
        match self.random.below(10) {
            0..5 => Manner::ToTheEnd,
            5..8 => Manner::Leave { after },
            _ => Manner::Stall {
                after,
                pause: Duration::from_millis(self.random.below(300) as u64),
            },
        }
    }

    /// Reads a stream in its manner, and notes how it ended.
    fn attend(&mut self, mut stream: Generation, promise: Promise, mut manner: Manner) {
        let (mut delivered, mut endings) = (0, 0);
        loop {
            match manner {
                Manner::Leave { after } if delivered >= after => {
                    self.tally.left += 1;
                    return;
                }
                Manner::Stall { after, pause } if delivered >= after => {
                    std::thread::sleep(pause);
                    self.tally.stalls += 1;
                    manner = Manner::ToTheEnd;
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
                    self.finished(promise, delivered, reason, usage);
                }
                Event::Failed(error) => {
                    endings += 1;
                    self.failed(error);
                }
                Event::PromptLogprobs(_) | Event::Embedding(_) => {
                    self.tally.wrong("news that nobody asked for".to_owned());
                }
            }
        }
        if endings != 1 {
            self.tally
                .wrong(format!("a stream with {endings} last events"));
        }
    }

    fn finished(&mut self, promise: Promise, delivered: usize, reason: FinishReason, usage: Usage) {
        self.tally.finished += 1;
        let Promise {
            prompt_tokens,
            max_tokens,
        } = promise;
        let as_promised = reason == FinishReason::Length
            && delivered == max_tokens
            && usage.completion_tokens == delivered
            && usage.prompt_tokens == prompt_tokens
            && usage.cached_tokens <= prompt_tokens;
        if !as_promised {
            self.tally.wrong(format!(
                "{prompt_tokens} + {max_tokens} tokens asked for, {delivered} delivered, but \
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
                self.tally.wrong(format!("a stream failed: {error}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_latest_prompts_are_kept() {
        let mut memories = Memories::default();
        for prompt in 0..40 {
            memories.keep(vec![prompt]);
        }
        assert_eq!(memories.0.len(), Memories::KEPT);
        assert_eq!(memories.0.front(), Some(&vec![24]));
    }

    #[test]
    fn tallies_add_up_and_keep_the_first_complaints() {
        let mut one = Tally {
            accepted: 2,
            tokens: 7,
            ..Tally::default()
        };
        for place in 0..20 {
            one.wrong(format!("complaint {place}"));
        }
        let both = one.clone().and(one);
        assert_eq!((both.accepted, both.tokens, both.wrongs), (4, 14, 40));
        assert_eq!(both.complaints.len(), Tally::COMPLAINTS);
        assert_eq!(both.complaints[0], "complaint 0");
    }
}
