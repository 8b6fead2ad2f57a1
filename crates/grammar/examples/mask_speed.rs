//! Measures constraints: `cargo run --release -p loquat-grammar --example mask_speed FILE`, where
//! FILE is a model's `.gguf` or the folder of its `tokenizer.json`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use loquat_engine::{Constraint, RequestConstraint, TokenMask};
use loquat_grammar::{GrammarSource, Grammars};
use loquat_text::Tokenizer;
use loquat_weights::gguf::Gguf;
use serde_json::json;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let path = std::env::args_os().nth(1).map(PathBuf::from);
    let path = path.ok_or("usage: mask_speed FILE, a .gguf or a folder with tokenizer.json")?;
    let tokenizer = tokenizer(&path)?;
    let grammars = Grammars::new(tokenizer.clone(), tokenizer.vocab_size());
    let began = Instant::now();
    grammars.compile(&GrammarSource::Choice(vec!["yes".into()]))?;
    println!(
        "{} tokens; trie and slices {:?}",
        tokenizer.vocab_size(),
        began.elapsed()
    );
    println!(
        "{:>12} {:>10} {:>10} {:>8} {:>30} {:>10}",
        "", "compile", "start", "tokens", "mask mean / p99 / max", "accept"
    );
    for (name, source, answer) in samples() {
        let began = Instant::now();
        let grammar = grammars.compile(&source)?;
        let compiled = began.elapsed();
        let began = Instant::now();
        let mut constraint = grammar.constraint();
        let started = began.elapsed();
        let times = replay(&tokenizer, &mut constraint, answer.as_bytes())?;
        println!("{name:>12} {compiled:>10.0?} {started:>10.0?} {times}");
    }
    Ok(())
}

fn tokenizer(path: &Path) -> Result<Tokenizer, Failure> {
    Ok(
        if path
            .extension()
            .is_some_and(|extension| extension == "gguf")
        {
            Tokenizer::from_gguf(Gguf::open(path)?.metadata())?
        } else {
            Tokenizer::from_huggingface(path)?
        },
    )
}

fn samples() -> Vec<(&'static str, GrammarSource, &'static str)> {
    let person = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "email": {"type": "string", "format": "email"},
            "tags": {"type": "array", "items": {"enum": ["old", "new", "rare"]}},
            "notes": {"type": "string", "maxLength": 400}
        },
        "required": ["name", "age", "email", "tags", "notes"],
        "additionalProperties": false
    });
    let note = "The quick brown fox jumps over the lazy dog, and then it goes home again.";
    vec![
        (
            "schema",
            GrammarSource::JsonSchema(person),
            r#"{"name": "Ada Lovelace", "age": 36, "email": "ada.lovelace@example.org", "tags": ["old", "rare"], "notes": "She wrote the first program, long before there was a machine to run it on."}"#,
        ),
        (
            "any object",
            GrammarSource::JsonObject,
            r#"{"city": "Paris", "population": 2102650, "districts": [1, 2, 3], "river": {"name": "Seine", "long": true}}"#,
        ),
        (
            "regex",
            GrammarSource::Regex("[A-Z][a-z ,]+[.]".into()),
            note,
        ),
        (
            "choice",
            GrammarSource::Choice(vec![note.into(), "The quick red fox.".into(), "No.".into()]),
            note,
        ),
    ]
}

struct Times {
    masks: Vec<Duration>,
    accepting: Duration,
    tokens: usize,
}

/// Walks through `answer` with the longest tokens that the constraint allows.
fn replay(
    tokenizer: &Tokenizer,
    constraint: &mut RequestConstraint,
    answer: &[u8],
) -> Result<Times, Failure> {
    let mut mask = TokenMask::none(tokenizer.vocab_size());
    let mut times = Times {
        masks: Vec::new(),
        accepting: Duration::ZERO,
        tokens: 0,
    };
    let mut rest = answer;
    while !rest.is_empty() && !constraint.is_complete() {
        let began = Instant::now();
        let mut next = constraint.forced()?;
        if next.is_empty() {
            constraint.allowed(&mut mask)?;
            times.masks.push(began.elapsed());
            next.push(
                longest(tokenizer, &mask, rest).ok_or("the sample does not match its grammar")?,
            );
        }
        let began = Instant::now();
        for token in next {
            constraint.accept(token)?;
            let bytes = tokenizer.token_bytes(token).unwrap_or_default();
            rest = rest
                .strip_prefix(bytes)
                .ok_or("the sample does not match its grammar")?;
            times.tokens += 1;
        }
        times.accepting += began.elapsed();
    }
    Ok(times)
}

fn longest(tokenizer: &Tokenizer, mask: &TokenMask, text: &[u8]) -> Option<u32> {
    let allowed = (0..mask.vocab_size() as u32).filter(|id| mask.contains(*id));
    let fitting = allowed.filter_map(|id| {
        let bytes = tokenizer.token_bytes(id)?;
        (!bytes.is_empty() && text.starts_with(bytes)).then_some((bytes.len(), id))
    });
    fitting.max().map(|(_, id)| id)
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut masks = self.masks.clone();
        masks.sort_unstable();
        let total: Duration = masks.iter().sum();
        let mean = total / masks.len().max(1) as u32;
        let p99 = masks
            .get(masks.len() * 99 / 100)
            .copied()
            .unwrap_or_default();
        let max = masks.last().copied().unwrap_or_default();
        let accept = self.accepting / self.tokens.max(1) as u32;
        let columns = format!("{mean:.0?} / {p99:.0?} / {max:.0?}");
        write!(f, "{:>8} {columns:>30} {accept:>10.0?}", self.tokens)
    }
}
