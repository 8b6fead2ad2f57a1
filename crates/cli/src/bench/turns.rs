//! A growing conversation, resent whole at every turn, with the prefix cache and without it.

use loquat_engine::{Engine, EngineOptions};
use loquat_session::{Capabilities, Memory, Session};
use serde_json::{Value, json};

use super::figure::{Figure, Line, Panel, Style};
use super::random::Random;
use super::reading::{ask, greedy};
use super::report::{Report, Table, number};
use super::stats::median;
use super::{Scenario, held, warm_up};
use crate::args::BenchArgs;
use crate::error::CliError;
use crate::progress::ShareBar;

pub struct Turns {
    turns: usize,
    user_tokens: usize,
    answer_tokens: usize,
    rounds: usize,
    seed: u64,
}

/// One turn in every round.
#[derive(Default, Clone)]
struct Turn {
    prompt_tokens: usize,
    cached_tokens: usize,
    first_token_ms: Vec<f64>,
}

/// A conversation, turn by turn.
type Conversation = Vec<Turn>;

impl Turns {
    pub fn new(args: &BenchArgs, turns: usize) -> Self {
        Self {
            turns,
            user_tokens: args.user_tokens.get(),
            answer_tokens: args.decode_tokens.get(),
            rounds: args.rounds(3),
            seed: args.seed,
        }
    }

    /// Adds a round to what was measured.
    fn converse(
        &self,
        session: Box<dyn Session>,
        options: EngineOptions,
        round: usize,
        measured: &mut Conversation,
    ) -> Result<Box<dyn Session>, CliError> {
        let vocab_size = session.capabilities().vocab_size;
        let engine = Engine::start(session, None, options)?;
        let mut random = Random::new(self.seed, round as u64);
        let mut conversation = Vec::new();
        for turn in measured {
            conversation.extend(random.tokens(vocab_size, self.user_tokens));
            let answer = ask(&engine, greedy(conversation.clone(), self.answer_tokens))?;
            turn.prompt_tokens = answer.usage.prompt_tokens;
            turn.cached_tokens = answer.usage.cached_tokens;
            turn.first_token_ms.push(answer.first_token_ms());
            conversation.extend(answer.ids);
        }
        Ok(engine.into_session()?)
    }
}

impl Scenario for Turns {
    fn name(&self) -> &'static str {
        "turns"
    }

    fn sequences(&self) -> usize {
        1
    }

    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), CliError> {
        let Self {
            turns,
            user_tokens,
            answer_tokens,
            ..
        } = *self;
        let (context, capacity) = (capabilities.max_context, memory.kv_capacity);
        let turn = user_tokens.saturating_add(answer_tokens);
        let whole = turn.saturating_mul(turns);
        if whole > context || held(whole, memory) > capacity {
            return Err(CliError::Usage {
                what: format!("`--turns {turns}` of {user_tokens} + {answer_tokens} tokens"),
                expected: format!("within the context of {context} and {capacity} tokens of KV"),
            });
        }
        Ok(())
    }

    fn run(&self, session: Box<dyn Session>) -> Result<Report, CliError> {
        let mut session = warm_up(session)?;
        let bar = ShareBar::start("measuring");
        let (mut cached, mut uncached) = (self.empty(), self.empty());
        for round in 0..self.rounds {
            let with = EngineOptions::default();
            let without = EngineOptions {
                cache_bytes: Some(0),
                ..EngineOptions::default()
            };
            session = self.converse(session, with, round, &mut cached)?;
            session = self.converse(session, without, round, &mut uncached)?;
            bar.set((round + 1) as f32 / self.rounds as f32);
        }
        drop(bar);
        let rounds = match self.rounds {
            1 => "one round".to_owned(),
            rounds => format!("median of {rounds} rounds"),
        };
        let Self {
            user_tokens,
            answer_tokens,
            ..
        } = *self;
        Ok(Report {
            heading: format!("{rounds}, turns of {user_tokens} + {answer_tokens} tokens"),
            text: table(&cached, &uncached),
            json: json!({
                "seed": self.seed,
                "user_tokens": user_tokens,
                "answer_tokens": answer_tokens,
                "cache": as_json(&cached),
                "no_cache": as_json(&uncached),
            }),
            figure: Some(figure(&cached, &uncached)),
            failures: Vec::new(),
        })
    }
}

impl Turns {
    fn empty(&self) -> Conversation {
        vec![Turn::default(); self.turns]
    }
}

impl Turn {
    fn first_token_ms(&self) -> f64 {
        median(&self.first_token_ms)
    }
}

/// How much longer the last turn's first token takes than the first turn's.
fn growth(conversation: &[Turn]) -> f64 {
    match conversation {
        [first, .., last] => last.first_token_ms() / first.first_token_ms(),
        _ => 1.0,
    }
}

fn as_json(conversation: &[Turn]) -> Value {
    let turns = conversation.iter().enumerate().map(|(place, turn)| {
        json!({
            "turn": place + 1,
            "prompt_tokens": turn.prompt_tokens,
            "cached_tokens": turn.cached_tokens,
            "first_token_ms": turn.first_token_ms(),
            "first_token_ms_rounds": turn.first_token_ms,
        })
    });
    json!({
        "last_to_first": growth(conversation),
        "turns": turns.collect::<Vec<_>>(),
    })
}

fn table(cached: &[Turn], uncached: &[Turn]) -> String {
    let mut table = Table::new(&["turn", "prompt", "cached", "first token", "without cache"]);
    for (place, (with, without)) in cached.iter().zip(uncached).enumerate() {
        table.row(vec![
            (place + 1).to_string(),
            with.prompt_tokens.to_string(),
            with.cached_tokens.to_string(),
            number(with.first_token_ms(), 1),
            number(without.first_token_ms(), 1),
        ]);
    }
    format!(
        "{}\nMilliseconds. The last turn takes {} × the first, {} × without the cache.\n",
        table.text(),
        number(growth(cached), 2),
        number(growth(uncached), 2),
    )
}

fn figure(cached: &[Turn], uncached: &[Turn]) -> Figure {
    let line = |name: &str, conversation: &[Turn]| Line {
        name: name.to_owned(),
        points: (conversation.iter().enumerate())
            .map(|(place, turn)| ((place + 1) as f64, turn.first_token_ms()))
            .collect(),
        style: Style::Marked,
    };
    Figure {
        title: "A growing conversation".to_owned(),
        panels: vec![Panel {
            title: "Time to first token".to_owned(),
            x: "turn".to_owned(),
            y: "milliseconds".to_owned(),
            lines: vec![
                line("without the prefix cache", uncached),
                line("with it", cached),
            ],
            shade: None,
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_compares_medians_of_the_ends() {
        let turn = |first_token_ms: &[f64]| Turn {
            first_token_ms: first_token_ms.to_vec(),
            ..Turn::default()
        };
        let conversation = [
            turn(&[1.0, 2.0, 9.0]),
            turn(&[50.0]),
            turn(&[8.0, 5.0, 6.0]),
        ];
        assert_eq!(growth(&conversation), 3.0);
        assert_eq!(growth(&conversation[..1]), 1.0);
    }
}
