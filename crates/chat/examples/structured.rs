//! Has SmolLM2 answer schemas for the judges: a JSON object with `schema` per line in, one per
//! line out, in the same order.
//!
//! Out: `text` and whether it `finished` before the token limit, or `refused` and why.

use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex};
use std::thread;

use loquat_chat::{ChatContext, ChatRequest, Message, Reply, Role};
use loquat_cpu::CpuBackend;
use loquat_engine::{Engine, EngineOptions, FinishReason, SamplingParams};
use loquat_grammar::{GrammarSource, Grammars};
use loquat_session::{Backend, ModelSource, SessionOptions};
use loquat_store::{NoProgress, Store, StoreOptions};
use loquat_text::format::FormatOverrides;
use loquat_text::{ChatTemplate, Tokenizer};
use loquat_weights::Checkpoint;
use serde_json::{Value, json};

const MODEL: &str = "smollm2:135m";
const AT_ONCE: usize = 16;
const MAX_TOKENS: usize = 96;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let cases: Vec<Value> = io::stdin()
        .lines()
        .map(|line| Ok(serde_json::from_str(&line?)?))
        .collect::<Result<_>>()?;
    let (engine, chat) = open()?;
    for answer in answer_all(&engine, &chat, &cases) {
        println!("{answer}");
    }
    Ok(())
}

fn open() -> Result<(Engine, ChatContext)> {
    let store = Store::open(StoreOptions::default())?;
    let located = store.locate(&MODEL.into(), &mut NoProgress)?;
    let checkpoint = Checkpoint::open(&located.path)?;
    let metadata = checkpoint.gguf_metadata().ok_or("it is not a GGUF file")?;
    let tokenizer = Tokenizer::from_gguf(metadata)?;
    let template = ChatTemplate::from_gguf(metadata)?;
    let source = ModelSource {
        spec: Arc::new(checkpoint.spec.clone()),
        weights: Arc::new(checkpoint.bind()?),
        paths: checkpoint.paths.clone(),
    };
    let session = CpuBackend::AUTO.open(source, &SessionOptions::default(), &mut |_| {})?;
    let grammars = Grammars::new(tokenizer.clone(), session.capabilities().vocab_size);
    let engine = Engine::start(session, Some(tokenizer.clone()), EngineOptions::default())?;
    Ok((
        engine,
        ChatContext::new(
            tokenizer,
            Some(template),
            grammars,
            FormatOverrides::default(),
        ),
    ))
}

/// Each thread takes the next case until none is left.
fn answer_all(engine: &Engine, chat: &ChatContext, cases: &[Value]) -> Vec<Value> {
    let queue = Mutex::new(cases.iter().enumerate());
    let next = || queue.lock().ok()?.next();
    let work = || {
        let mut done = Vec::new();
        while let Some((index, case)) = next() {
            let answer = answer(engine, chat, index, &case["schema"]);
            let refused = |why: Box<dyn Error>| json!({ "refused": why.to_string() });
            done.push((index, answer.unwrap_or_else(refused)));
        }
        done
    };
    let mut answers: Vec<(usize, Value)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        let done = workers.into_iter().filter_map(|worker| worker.join().ok());
        done.flatten().collect()
    });
    answers.sort_by_key(|(index, _)| *index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

fn answer(engine: &Engine, chat: &ChatContext, index: usize, schema: &Value) -> Result<Value> {
    let mut lowered = chat.lower(ChatRequest {
        messages: vec![Message::new(Role::User, "Give me an example, in JSON.")],
        answer: Some(GrammarSource::JsonSchema(schema.clone())),
        max_tokens: MAX_TOKENS,
        // Not greedy: an unlikely answer must be valid too.
        sampling: SamplingParams {
            temperature: 1.0,
            seed: Some(index as u64),
            ..SamplingParams::default()
        },
        ..ChatRequest::default()
    })?;
    let completion = engine.submit(lowered.generate)?.collect_blocking()?;
    let mut reply = Reply::default();
    for event in lowered.reply.push(&completion.text) {
        reply.add(&event);
    }
    for event in lowered.reply.finish() {
        reply.add(&event);
    }
    let finished = completion.reason != FinishReason::Length;
    Ok(json!({ "finished": finished, "text": reply.text }))
}
