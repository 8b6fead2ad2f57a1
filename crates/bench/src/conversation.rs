//! A growing conversation, resent at every turn, with and without the prefix cache.

use loquat_engine::{DiskOptions, Engine, EngineOptions};
use loquat_session::{Capabilities, Memory, Session};
use serde_json::{Value, json};

use super::error::BenchError;
use super::figure::{Figure, Line, Panel, Style};
use super::random::Random;
use super::report::{Report, Table, number, rounds_heading};
use super::stats::{Spread, disk_json, median};
use super::timed_answer::{ask, greedy, millis};
use super::{Harness, Scenario, plain_options, warm_up};

pub struct Conversation {
    pub turns: usize,
    pub user_tokens: usize,
    pub answer_tokens: usize,
    pub rounds: usize,
    pub seed: u64,
    /// Stores the cached prefixes on disk.
    pub kv_disk: Option<DiskOptions>,
}

/// One turn, over all rounds.
#[derive(Default, Clone)]
struct Turn {
    prompt_tokens: usize,
    cached_tokens: usize,
    first_token_ms: Vec<f64>,
    /// Between tokens of its answers.
    inter_token_ms: Vec<f64>,
}

impl Conversation {
    /// Adds a round to `measured`. Returns what was stored on disk, too.
    fn converse(
        &self,
        session: Box<dyn Session>,
        options: EngineOptions,
        round: usize,
        measured: &mut [Turn],
    ) -> Result<(Box<dyn Session>, Value), BenchError> {
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
            let gaps = answer.arrivals.windows(2);
            let gaps = gaps.map(|pair| millis(pair[0], pair[1]));
            turn.inter_token_ms.extend(gaps);
            conversation.extend(answer.ids);
        }
        let disk = disk_json(&engine.stats());
        Ok((engine.into_session()?, disk))
    }
}

impl Scenario for Conversation {
    fn name(&self) -> &'static str {
        "turns"
    }

    fn sequences(&self) -> usize {
        1
    }

    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), BenchError> {
        let Self {
            turns,
            user_tokens,
            answer_tokens,
            ..
        } = *self;
        let context = capabilities.max_context;
        let turn = user_tokens.saturating_add(answer_tokens);
        let whole = turn.saturating_mul(turns);
        if whole > context || memory.sequence_tokens(whole) > memory.kv_capacity {
            let what = format!("`--turns {turns}` of {user_tokens} + {answer_tokens} tokens");
            return Err(BenchError::does_not_fit(what, context, memory));
        }
        Ok(())
    }

    fn run(&self, session: Box<dyn Session>, harness: &Harness<'_>) -> Result<Report, BenchError> {
        let mut session = warm_up(session)?;
        let mut cached = vec![Turn::default(); self.turns];
        let mut uncached = cached.clone();
        let mut disk = Vec::with_capacity(self.rounds);
        for round in 0..self.rounds {
            let with = EngineOptions {
                kv_disk: self.kv_disk.clone(),
                ..plain_options()
            };
            let without = EngineOptions {
                cache_bytes: Some(0),
                ..plain_options()
            };
            let stored;
            (session, stored) = self.converse(session, with, round, &mut cached)?;
            disk.push(stored);
            (session, _) = self.converse(session, without, round, &mut uncached)?;
            harness.progress(round + 1, self.rounds);
        }
        let Self {
            user_tokens,
            answer_tokens,
            ..
        } = *self;
        Ok(Report {
            heading: format!(
                "{}, turns of {user_tokens} + {answer_tokens} tokens",
                rounds_heading(self.rounds)
            ),
            text: table(&cached, &uncached),
            json: json!({
                "seed": self.seed,
                "user_tokens": user_tokens,
                "answer_tokens": answer_tokens,
                "cache": as_json(&cached),
                "no_cache": as_json(&uncached),
                "kv_disk_rounds": disk,
            }),
            figure: Some(figure(&cached, &uncached)),
            failures: Vec::new(),
        })
    }
}

impl Turn {
    fn first_token_ms(&self) -> f64 {
        median(&self.first_token_ms)
    }
}

/// Between tokens of all turns' answers.
fn inter_token(conversation: &[Turn]) -> Spread {
    let turns = conversation.iter();
    let gaps = turns.flat_map(|turn| turn.inter_token_ms.iter().copied());
    Spread::from_values(gaps.collect())
}

/// The time to first token of the last turn over that of the first.
fn growth(conversation: &[Turn]) -> f64 {
    match conversation {
        [first, .., last] => last.first_token_ms() / first.first_token_ms(),
        _ => 1.0,
    }
}

fn as_json(conversation: &[Turn]) -> Value {
    let turns = conversation.iter().enumerate().map(|(index, turn)| {
        json!({
            "turn": index + 1,
            "prompt_tokens": turn.prompt_tokens,
            "cached_tokens": turn.cached_tokens,
            "first_token_ms": turn.first_token_ms(),
            "first_token_ms_rounds": turn.first_token_ms,
        })
    });
    json!({
        "last_to_first": growth(conversation),
        "inter_token_ms": inter_token(conversation).to_json(),
        "turns": turns.collect::<Vec<_>>(),
    })
}

fn table(cached: &[Turn], uncached: &[Turn]) -> String {
    let mut table = Table::new(&["turn", "prompt", "cached", "first token", "without cache"]);
    for (index, (with, without)) in cached.iter().zip(uncached).enumerate() {
        table.row([
            (index + 1).to_string(),
            with.prompt_tokens.to_string(),
            with.cached_tokens.to_string(),
            number(with.first_token_ms(), 1),
            number(without.first_token_ms(), 1),
        ]);
    }
    let next = inter_token(cached);
    format!(
        "{}\nMilliseconds. The last turn takes {} × the first, {} × without the cache.\n\
         With it the next token takes {} (p50), {} (p99).\n",
        table.text(),
        number(growth(cached), 2),
        number(growth(uncached), 2),
        number(next.p50, 2),
        number(next.p99, 2),
    )
}

fn figure(cached: &[Turn], uncached: &[Turn]) -> Figure {
    let line = |name: &str, conversation: &[Turn]| Line {
        name: name.to_owned(),
        points: (conversation.iter().enumerate())
            .map(|(index, turn)| ((index + 1) as f64, turn.first_token_ms()))
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
                line("with the prefix cache", cached),
            ],
            shade: None,
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_compares_last_and_first_medians() {
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
