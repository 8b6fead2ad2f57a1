//! Serves models that give scripted replies, for the programs of `clients/`:
//! `cargo run --package loquat-server --example scripted -- loquat.toml`.
//!
//! Each model's `source` is a JSON file: `vocabulary` is the path of a GGUF model, whose tokenizer
//! is used, `context` a number of tokens, and `replies` the texts of the assistant's turns in a
//! conversation, in order. A model calls tools between `<tool_call>` and `</tool_call>`. Everything
//! but the session is the product's own.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use loquat::RequestDefaults;
use loquat_chat::ChatContext;
use loquat_engine::{EngineOptions, SamplingParams, SpeculationMode, SpeculationOptions};
use loquat_grammar::Grammars;
use loquat_server::config::{ModelConfig, Sources};
use loquat_server::{ModelInfo, OpenFailure, Opened, Opener, Planned, Server};
use loquat_testkit::fake_session::{FakeOptions, FakeSession};
use loquat_text::format::FormatOverrides;
use loquat_text::{ChatTemplate, Special, Tokenizer};
use loquat_weights::gguf::Gguf;
use serde::Deserialize;

type Failure = Box<dyn Error + Send + Sync>;

const TEMPLATE: &str = include_str!("scripted.jinja");
/// Opens the assistant's turn in the template.
const OPENING: &str = "<|im_start|>assistant\n";
const WEIGHT_BYTES: u64 = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Script {
    vocabulary: PathBuf,
    context: usize,
    replies: Vec<String>,
}

impl Script {
    fn read(model: &ModelConfig) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(&model.source)?;
        Ok(serde_json::from_str(&text)?)
    }

    fn info(&self) -> ModelInfo {
        ModelInfo {
            family: "llama".to_owned(),
            format: "gguf".to_owned(),
            quantization: "bf16".to_owned(),
            backend: "fake".to_owned(),
            device: "fake".to_owned(),
            context: self.context,
            has_template: true,
            tools: true,
            embeddings: true,
            template: Some(TEMPLATE.to_owned()),
            ..ModelInfo::default()
        }
    }

    fn session(&self, tokenizer: &Tokenizer, model: &ModelConfig) -> Result<FakeSession, Failure> {
        let reply = |text: &String| -> Result<Vec<u32>, Failure> {
            let mut tokens = tokenizer.encode_inner(text, Special::PLAIN)?;
            tokens.extend(tokenizer.eos());
            Ok(tokens)
        };
        Ok(FakeSession::new(FakeOptions {
            vocab_size: tokenizer.vocab_size(),
            max_context: self.context,
            max_step_tokens: 4096,
            kv_capacity: self.context * model.parallel,
            opening: tokenizer.encode_inner(OPENING, Special::RENDERED)?,
            replies: self.replies.iter().map(reply).collect::<Result<_, _>>()?,
            ..FakeOptions::default()
        }))
    }
}

struct Scripts;

impl Scripts {
    fn open(model: &ModelConfig) -> Result<Opened, Failure> {
        let script = Script::read(model)?;
        let tokenizer = Tokenizer::from_gguf(Gguf::open(&script.vocabulary)?.metadata())?;
        let session = script.session(&tokenizer, model)?;
        let chat = ChatContext::new(
            tokenizer.clone(),
            Some(ChatTemplate::new(TEMPLATE)?),
            Grammars::new(tokenizer.clone(), tokenizer.vocab_size()),
            FormatOverrides::default(),
        );
        let options = EngineOptions {
            max_queue: model.max_queue,
            max_running: Some(model.parallel),
            // A script that repeats itself is still to take a step for each token.
            speculation: SpeculationOptions {
                mode: SpeculationMode::Off,
                ..SpeculationOptions::default()
            },
            ..EngineOptions::default()
        };
        let opened = loquat::Model::from_session(&model.name, Box::new(session), chat, options)?;
        Ok(Opened {
            model: opened.with_defaults(RequestDefaults {
                sampling: SamplingParams::greedy(),
                ..RequestDefaults::default()
            }),
            info: script.info(),
            resident_bytes: WEIGHT_BYTES,
        })
    }
}

impl Opener for Scripts {
    fn plan(&self, model: &ModelConfig) -> Result<Planned, OpenFailure> {
        let script = Script::read(model).map_err(OpenFailure::new)?;
        Ok(Planned {
            info: script.info(),
            resident_bytes: WEIGHT_BYTES,
        })
    }

    fn open(&self, model: &ModelConfig) -> Result<Opened, OpenFailure> {
        Self::open(model).map_err(OpenFailure::new)
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let path = std::env::args()
        .nth(1)
        .ok_or("usage: scripted loquat.toml")?;
    let text = std::fs::read_to_string(Path::new(&path))?;
    let sources = Sources {
        file: Some((path.into(), text)),
        ..Sources::default()
    };
    let config = sources.read()?.config;
    let server = Server::bind(config, Arc::new(Scripts)).await?;
    eprintln!("listening on http://{}", server.address());
    Ok(server.run().await?)
}
