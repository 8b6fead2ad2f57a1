//! The cost of serving over HTTP: streaming against the bare session, the time from the engine to
//! the socket with many clients, and the time and memory of a server's start.
//!
//! The server and the bare loop use the same session in turns, so that their ratio is the cost of
//! the engine and the server together. The start is measured in processes of its own.

mod client;
mod report;
mod server_process;
mod shared_session;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use loquat::ModelFiles;
use loquat_chat::ChatContext;
use loquat_engine::{EngineOptions, SamplingParams};
use loquat_server::config::{Config, ModelConfig};
use loquat_server::{ModelInfo, OpenFailure, Opened, Opener, Planned, Server, resident_bytes};
use loquat_session::{Capabilities, Memory, Session};
use loquat_text::format::FormatOverrides;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use self::client::{Client, Streamed};
use self::report::Measured;
use self::server_process::ServerStart;
use self::shared_session::SharedSession;
use super::error::BenchError;
use super::random::Random;
use super::report::Report;
use super::stats::Spread;
use super::timed_answer::millis;
use super::workload::{Workload, on_session, prompt};
use super::{Harness, Scenario, plain_options, warm_up};

/// The model's name on the server.
const NAME: &str = "bench";
/// Requests of each client.
const REQUESTS: usize = 2;
/// Tokens of the clients' prompts.
const PROMPT: usize = 32;
/// Server starts, of which the median is reported.
const STARTS: usize = 3;

pub struct Http {
    /// Clients at once, after one client alone.
    pub clients: usize,
    pub rounds: usize,
    /// Tokens that each request generates.
    pub tokens: usize,
    pub seed: u64,
    /// As `loquat serve` sets it for this model.
    pub reader_grace: Duration,
    /// Arguments of `loquat serve` that open the same model the same way.
    pub serve_arguments: Vec<String>,
}

impl Http {
    fn workload(&self) -> Workload {
        Workload::Decode {
            tokens: self.tokens,
            depth: 1,
            batch: 1,
        }
    }
}

impl Scenario for Http {
    fn name(&self) -> &'static str {
        "http"
    }

    fn sequences(&self) -> usize {
        self.clients
    }

    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), BenchError> {
        let longest = PROMPT.saturating_add(self.tokens).saturating_add(1);
        let all = memory.sequence_tokens(longest).checked_mul(self.clients);
        let fits = all.is_some_and(|all| all <= memory.kv_capacity);
        if fits && longest <= capabilities.max_context {
            Ok(())
        } else {
            let Self {
                tokens, clients, ..
            } = self;
            let what = format!("`--decode-tokens {tokens}` with {clients} clients");
            Err(BenchError::does_not_fit(
                what,
                capabilities.max_context,
                memory,
            ))
        }
    }

    fn run(&self, session: Box<dyn Session>, harness: &Harness<'_>) -> Result<Report, BenchError> {
        // With the session open, before anything else of the model is loaded.
        let resident = resident_bytes();
        let session = SharedSession::new(warm_up(session)?);
        let chat = chat(harness.model)?;
        let server = runtime(Builder::new_multi_thread())?;
        // Clients have their own runtime; the server's threads only serve.
        let clients = runtime(Builder::new_current_thread())?;
        let measured = clients.block_on(self.measure(&server, session, chat, resident, harness));
        measured.map(report::report)
    }
}

fn runtime(mut builder: Builder) -> Result<Runtime, BenchError> {
    builder.enable_all().build().map_err(BenchError::Thread)
}

/// Sufficient for completions.
fn chat(model: &ModelFiles) -> Result<ChatContext, BenchError> {
    let tokenizer = model.tokenizer()?;
    let grammars = model.grammars(tokenizer.clone());
    let overrides = FormatOverrides::default();
    Ok(ChatContext::new(tokenizer, None, grammars, overrides))
}

impl Http {
    async fn measure(
        &self,
        server: &Runtime,
        session: SharedSession,
        chat: ChatContext,
        session_alone: Option<u64>,
        harness: &Harness<'_>,
    ) -> Result<Measured, BenchError> {
        let opener = SharedOpener {
            session: session.clone(),
            chat,
            clients: self.clients,
            reader_grace: self.reader_grace,
        };
        let running = RunningServer::start(server, opener, self.clients).await?;
        let (mut served, mut alone) = (Vec::new(), Vec::new());
        // Round 0 is a warm-up and is not counted.
        for round in 0..=self.rounds {
            let one = self.one_client(&running).await?;
            let bare = on_session(session.lock().as_mut(), self.workload())?;
            if round > 0 {
                served.push(one.speed());
                alone.push(bare);
            }
            harness.progress(round + 1, self.rounds + 2);
        }
        let many_clients = self
            .many_clients(&running, session.capabilities().vocab_size)
            .await?;
        running.stop().await;
        let mut starts = Vec::new();
        for _ in 0..STARTS {
            let start = server_process::start(&self.serve_arguments).await;
            starts.push(start.map_err(BenchError::Http)?);
        }
        Ok(Measured {
            tokens: self.tokens,
            clients: self.clients,
            served,
            alone,
            many_clients,
            starts,
            session_alone,
        })
    }

    async fn one_client(&self, running: &RunningServer) -> Result<Streamed, BenchError> {
        let vocab_size = running.vocab_size;
        let prompt = prompt(vocab_size, 1, 0);
        let streamed = async {
            let mut client = Client::connect(running.address).await?;
            // The first token comes with the prompt.
            client.complete(NAME, &prompt, self.tokens + 1).await
        };
        streamed.await.map_err(BenchError::Http)
    }

    /// Many clients at once; each sends its requests one after the other.
    async fn many_clients(
        &self,
        running: &RunningServer,
        vocab_size: usize,
    ) -> Result<ManyClients, BenchError> {
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
                    .map_err(BenchError::Http)?,
            );
        }
        Ok(ManyClients::from_streams(
            &streams,
            started,
            running.token_times(),
        ))
    }
}

/// Results of many clients.
struct ManyClients {
    generated_per_second: f64,
    /// Microseconds, measured by the server.
    to_socket: Spread,
    /// Milliseconds.
    first_token: Spread,
    between_tokens: Spread,
}

impl ManyClients {
    fn from_streams(streams: &[Streamed], started: Instant, to_socket: Vec<f64>) -> Self {
        let tokens: usize = streams.iter().map(|stream| stream.tokens).sum();
        let first = streams.iter().filter_map(|stream| {
            let first = stream.arrivals.first()?;
            Some(millis(stream.submitted, *first))
        });
        let gaps = streams.iter().flat_map(|stream| stream.arrivals.windows(2));
        let gaps = gaps.map(|pair| millis(pair[0], pair[1]));
        Self {
            generated_per_second: tokens as f64 / started.elapsed().as_secs_f64(),
            to_socket: Spread::from_values(to_socket),
            first_token: Spread::from_values(first.collect()),
            between_tokens: Spread::from_values(gaps.collect()),
        }
    }
}

/// A server in this process.
struct RunningServer {
    address: SocketAddr,
    vocab_size: usize,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
    /// Microseconds from the engine to the socket, per token, since `token_times` was last called.
    times: Arc<Mutex<Vec<f64>>>,
}

impl RunningServer {
    async fn start(
        runtime: &Runtime,
        opener: SharedOpener,
        clients: usize,
    ) -> Result<Self, BenchError> {
        let mut config = Config {
            models: vec![ModelConfig {
                preload: true,
                parallel: clients,
                ..ModelConfig::new(NAME, NAME)
            }],
            ..Config::default()
        };
        config.server.port = 0;
        let vocab_size = opener.session.capabilities().vocab_size;
        // The sockets belong to the runtime that binds them.
        let bound = runtime.spawn(Server::bind(config, Arc::new(opener)));
        let server = bound.await.map_err(io::Error::other);
        let server = server.map_err(BenchError::Thread)??;
        let times: Arc<Mutex<Vec<f64>>> = Arc::default();
        let recorded = Arc::clone(&times);
        server.observer().watch_tokens(move |time| {
            let mut recorded = recorded.lock().unwrap_or_else(PoisonError::into_inner);
            recorded.push(time.as_secs_f64() * 1e6);
        });
        let address = server.address();
        let (stop, stopped) = oneshot::channel();
        let served = runtime.spawn(server.serve(async {
            // A dropped sender also stops the server.
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
        // A panic has already been printed.
        let _ = self.served.await;
    }
}

/// Opens the measured session for the server.
struct SharedOpener {
    session: SharedSession,
    chat: ChatContext,
    clients: usize,
    reader_grace: Duration,
}

impl Opener for SharedOpener {
    fn plan(&self, _model: &ModelConfig) -> Result<Planned, OpenFailure> {
        Ok(Planned {
            info: self.info(),
            resident_bytes: 0,
        })
    }

    fn open(&self, _model: &ModelConfig) -> Result<Opened, OpenFailure> {
        let options = EngineOptions {
            max_running: Some(self.clients),
            max_queue: EngineOptions::default().max_queue.max(self.clients),
            // Each round computes its prompt again.
            cache_bytes: Some(0),
            reader_grace: self.reader_grace,
            ..plain_options()
        };
        let session = Box::new(self.session.clone());
        let model = loquat::Model::from_session("bench", session, self.chat.clone(), options);
        let model = model.map_err(OpenFailure::new)?;
        Ok(Opened {
            model: model.with_defaults(loquat::RequestDefaults {
                sampling: SamplingParams::greedy(),
                ..loquat::RequestDefaults::default()
            }),
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
