//! What serving over HTTP costs: streaming beside the bare session, tokens' way to the socket with
//! many clients, and what the server takes before anybody asks anything.
//!
//! Server and bare loop compute on the same session, in turns, so that their ratio is what engine
//! and server cost together. The server's start is measured on processes of its own.

mod child;
mod client;
mod report;
mod shared;

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use loquat_chat::ChatContext;
use loquat_engine::{Engine, EngineOptions, SamplingParams};
use loquat_server::config::{Config, Model as Served};
use loquat_server::{ModelInfo, OpenFailure, Opened, Opener, Planned, Server, resident_bytes};
use loquat_session::{Capabilities, Memory, Session};
use loquat_text::format::FormatOverrides;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use self::child::Start;
use self::client::{Client, Streamed};
use self::report::Measured;
use self::shared::SharedSession;
use super::random::Random;
use super::report::Report;
use super::stats::Spread;
use super::work::{Work, bare, prompt};
use super::{Scenario, held, warm_up};
use crate::args::{BenchArgs, Chosen, NetworkArgs};
use crate::error::CliError;
use crate::load::{Model, locate, open_store_on};
use crate::progress::ShareBar;
use crate::serve::reader_grace;

/// What the model is called here.
const NAME: &str = "bench";
const CLIENTS: usize = 32;
/// Requests of each of many clients.
const REQUESTS: usize = 2;
/// Tokens of their prompts.
const PROMPT: usize = 32;
/// Starts of the server whose median is told.
const STARTS: usize = 3;

pub struct Http {
    clients: usize,
    rounds: usize,
    tokens: usize,
    seed: u64,
    model: Chosen,
    network: NetworkArgs,
    threads: Option<usize>,
    /// Of `loquat serve`.
    arguments: Vec<String>,
}

impl Http {
    pub fn new(args: &BenchArgs) -> Self {
        Self {
            clients: args.batches(CLIENTS)[0],
            threads: args.session.threads.map(NonZeroUsize::get),
            rounds: args.rounds(5),
            tokens: args.decode_tokens.get(),
            seed: args.seed,
            model: args.chosen(),
            network: args.source.network,
            arguments: arguments(args),
        }
    }

    fn work(&self) -> Work {
        Work::Decode {
            tokens: self.tokens,
            depth: 1,
            batch: 1,
        }
    }
}

/// What opens the same model the same way in `loquat serve`.
fn arguments(args: &BenchArgs) -> Vec<String> {
    let session = &args.session;
    let mut arguments: Vec<String> = args.model.iter().cloned().collect();
    let mut flag = |name: &str, value: Option<String>| {
        arguments.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
    };
    flag("--backend", Some(session.backend.clone()));
    flag(
        "--context",
        session.context.map(|tokens| tokens.to_string()),
    );
    flag(
        "--threads",
        session.threads.map(|threads| threads.to_string()),
    );
    if args.source.network.offline {
        arguments.push("--offline".to_owned());
    }
    arguments
}

impl Scenario for Http {
    fn name(&self) -> &'static str {
        "http"
    }

    fn sequences(&self) -> usize {
        self.clients
    }

    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), CliError> {
        let longest = PROMPT.saturating_add(self.tokens).saturating_add(1);
        let all = held(longest, memory).checked_mul(self.clients);
        let fits = all.is_some_and(|all| all <= memory.kv_capacity);
        if fits && longest <= capabilities.max_context {
            Ok(())
        } else {
            Err(CliError::Usage {
                what: format!(
                    "`--decode-tokens {}` of {} clients",
                    self.tokens, self.clients
                ),
                expected: format!(
                    "within the context of {} and {} tokens of KV",
                    capabilities.max_context, memory.kv_capacity
                ),
            })
        }
    }

    fn run(&self, session: Box<dyn Session>) -> Result<Report, CliError> {
        // With the session, and as yet with nothing else of a model.
        let resident = resident_bytes();
        let session = SharedSession::new(warm_up(session)?);
        let chat = self.chat()?;
        let server = runtime(Builder::new_multi_thread())?;
        // Of their own, as clients are: the server's threads serve.
        let clients = runtime(Builder::new_current_thread())?;
        let measured = clients.block_on(self.measure(&server, session, chat, resident));
        measured.map(report::report)
    }
}

fn runtime(mut builder: Builder) -> Result<Runtime, CliError> {
    builder.enable_all().build().map_err(CliError::Runtime)
}

impl Http {
    /// Enough to complete texts.
    fn chat(&self) -> Result<ChatContext, CliError> {
        let model = Model::open(&locate(&open_store_on(self.network)?, &self.model)?)?;
        let tokenizer = model.tokenizer()?;
        let grammars = model.grammars(tokenizer.clone());
        let overrides = FormatOverrides::default();
        Ok(ChatContext::new(tokenizer, None, grammars, overrides))
    }

    async fn measure(
        &self,
        server: &Runtime,
        session: SharedSession,
        chat: ChatContext,
        session_alone: Option<u64>,
    ) -> Result<Measured, CliError> {
        let bar = ShareBar::start("measuring");
        let opener = SharedOpener {
            session: session.clone(),
            chat,
            clients: self.clients,
            threads: self.threads,
        };
        let running = Running::start(server, opener, self.clients).await?;
        let (mut served, mut alone) = (Vec::new(), Vec::new());
        // The first round warms caches and clocks, and is not counted.
        for round in 0..=self.rounds {
            let one = self.one_client(&running).await?;
            let bare = bare(session.lock().as_mut(), self.work())?;
            if round > 0 {
                served.push(one.speed());
                alone.push(bare);
            }
            bar.set((round + 1) as f32 / (self.rounds + 2) as f32);
        }
        let crowd = self
            .crowd(&running, session.capabilities().vocab_size)
            .await?;
        running.stop().await;
        drop(bar);
        let mut starts = Vec::new();
        for _ in 0..STARTS {
            starts.push(
                child::start(&self.arguments)
                    .await
                    .map_err(CliError::Http)?,
            );
        }
        Ok(Measured {
            tokens: self.tokens,
            clients: self.clients,
            served,
            alone,
            crowd,
            starts,
            session_alone,
        })
    }

    async fn one_client(&self, running: &Running) -> Result<Streamed, CliError> {
        let vocab_size = running.vocab_size;
        let prompt = prompt(vocab_size, 1, 0);
        let streamed = async {
            let mut client = Client::connect(running.address).await?;
            // The first token comes with the prompt.
            client.complete(NAME, &prompt, self.tokens + 1).await
        };
        streamed.await.map_err(CliError::Http)
    }

    /// Many clients at once, each with requests one after the other.
    async fn crowd(&self, running: &Running, vocab_size: usize) -> Result<Crowd, CliError> {
        running.token_times();
        let started = Instant::now();
        let clients: Vec<JoinHandle<io::Result<Vec<Streamed>>>> = (0..self.clients)
            .map(|name| {
                let mut random = Random::new(self.seed, name as u64);
                let (address, tokens) = (running.address, self.tokens);
                tokio::spawn(async move {
                    let mut client = Client::connect(address).await?;
                    let mut streams = Vec::new();
                    for _ in 0..REQUESTS {
                        let prompt = random.tokens(vocab_size, PROMPT);
                        streams.push(client.complete(NAME, &prompt, tokens).await?);
                    }
                    Ok(streams)
                })
            })
            .collect();
        let mut streams = Vec::new();
        for client in clients {
            let streamed = client.await.map_err(io::Error::other);
            streams.extend(
                streamed
                    .and_then(|streamed| streamed)
                    .map_err(CliError::Http)?,
            );
        }
        Ok(Crowd::of(&streams, started, running.token_times()))
    }
}

/// What many clients saw.
struct Crowd {
    generated_per_second: f64,
    /// Microseconds, as the server timed them.
    to_socket: Spread,
    /// Milliseconds.
    first_token: Spread,
    between_tokens: Spread,
}

impl Crowd {
    fn of(streams: &[Streamed], started: Instant, to_socket: Vec<f64>) -> Self {
        let tokens: usize = streams.iter().map(|stream| stream.tokens).sum();
        let first = streams.iter().filter_map(|stream| {
            let first = stream.arrivals.first()?;
            Some(super::reading::millis(stream.submitted, *first))
        });
        let gaps = streams.iter().flat_map(|stream| stream.arrivals.windows(2));
        let gaps = gaps.map(|pair| super::reading::millis(pair[0], pair[1]));
        Self {
            generated_per_second: tokens as f64 / started.elapsed().as_secs_f64(),
            to_socket: Spread::of(to_socket),
            first_token: Spread::of(first.collect()),
            between_tokens: Spread::of(gaps.collect()),
        }
    }
}

/// A server in this process.
struct Running {
    address: SocketAddr,
    vocab_size: usize,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
    /// Microseconds from the engine to the socket, of each token since they were last taken.
    times: Arc<Mutex<Vec<f64>>>,
}

impl Running {
    async fn start(
        runtime: &Runtime,
        opener: SharedOpener,
        clients: usize,
    ) -> Result<Self, CliError> {
        let mut config = Config {
            models: vec![Served {
                preload: true,
                parallel: clients,
                ..Served::new(NAME, NAME)
            }],
            ..Config::default()
        };
        config.server.port = 0;
        let vocab_size = opener.session.capabilities().vocab_size;
        // Its sockets belong to the runtime that it is bound in.
        let bound = runtime.spawn(Server::bind(config, Arc::new(opener)));
        let server = bound.await.map_err(io::Error::other);
        let server = server.map_err(CliError::Runtime)??;
        let times: Arc<Mutex<Vec<f64>>> = Arc::default();
        let kept = Arc::clone(&times);
        server.observer().watch_tokens(move |time| {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push(time.as_secs_f64() * 1e6);
        });
        let address = server.address();
        let (stop, stopped) = oneshot::channel();
        let served = runtime.spawn(server.serve(async {
            // Dropping the sender stops as well.
            let _ = stopped.await;
        }));
        Ok(Self {
            address,
            vocab_size,
            stop,
            served,
            times,
        })
    }

    fn token_times(&self) -> Vec<f64> {
        std::mem::take(&mut *self.times.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn stop(self) {
        let _ = self.stop.send(());
        // A server that panicked has said so.
        let _ = self.served.await;
    }
}

/// Gives the server the session that is measured.
struct SharedOpener {
    session: SharedSession,
    chat: ChatContext,
    clients: usize,
    threads: Option<usize>,
}

impl Opener for SharedOpener {
    fn plan(&self, _model: &Served) -> Result<Planned, OpenFailure> {
        Ok(Planned {
            info: self.info(),
            resident_bytes: 0,
        })
    }

    fn open(&self, _model: &Served) -> Result<Opened, OpenFailure> {
        let chat = self.chat.clone();
        let options = EngineOptions {
            max_running: Some(self.clients),
            max_queue: EngineOptions::default().max_queue.max(self.clients),
            // Each round computes everything again.
            cache_bytes: Some(0),
            reader_grace: reader_grace(self.threads),
            ..EngineOptions::default()
        };
        let session = Box::new(self.session.clone());
        let engine = Engine::start(session, Some(chat.tokenizer().clone()), options);
        Ok(Opened {
            engine: engine.map_err(|error| OpenFailure(error.to_string()))?,
            chat,
            sampling: SamplingParams::greedy(),
            info: self.info(),
            resident_bytes: 0,
        })
    }
}

impl SharedOpener {
    fn info(&self) -> ModelInfo {
        ModelInfo {
            context: self.session.capabilities().max_context,
            ..ModelInfo::default()
        }
    }
}
