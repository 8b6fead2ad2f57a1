//! The handle to an engine: start it, give it requests, stop it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use loquat_kvdisk::DiskOptions;
use loquat_session::{
    AdapterId, AdapterWeights, Capabilities, Memory, PrefixCopy, Session, SessionError,
};
use loquat_text::Tokenizer;

use crate::adapters::{AdapterCommand, UnloadMode};
use crate::disk_tier::DiskTier;
use crate::generation::channel;
use crate::limits::Limits;
use crate::monitor::{EngineThread, StepMonitor};
use crate::request::ValidationContext;
use crate::sampling::fresh_seed;
use crate::sequence::{NewSequence, Sequence};
use crate::shared::{EngineSnapshot, QueueLimits, QueueSlot, Shared};
use crate::speculation::Speculator;
use crate::text_stream::TextStream;
use crate::time::TimeSource;
use crate::worker::{Command, Worker};
use crate::{Choices, EngineError, GenerateRequest, Generation, SpeculationOptions, Stats};

/// The most choices of a request.
const MOST_CHOICES: usize = 1 << 16;

/// Options of an engine.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineOptions {
    /// Most new tokens per step, over all sequences; `None` uses the session's limit.
    pub step_tokens: Option<usize>,
    /// Most running sequences; `None` uses the session's limit. The session's other sequences are
    /// available to the prefix cache.
    pub max_running: Option<usize>,
    /// Most queued requests, besides those that can run at once. A request with several choices
    /// counts once.
    pub max_queue: usize,
    /// Most queued requests per client; `None` for no limit.
    pub max_queue_per_client: Option<usize>,
    /// Unread events at which a sequence pauses.
    pub event_buffer: usize,
    /// How long to wait between steps for several readers to take their events. Readers that share
    /// cores with the session would otherwise interrupt the next step, and its other threads would
    /// wait.
    pub reader_grace: Duration,
    /// Device memory for the prefix cache; `None` uses what running sequences leave, 0 disables it.
    pub cache_bytes: Option<u64>,
    /// Stores cached prefixes on disk, so that they survive eviction and restarts; `None` to keep them
    /// in memory only. If the session cannot export parts of sequences, it is refused or, unless
    /// required, not used.
    pub kv_disk: Option<DiskOptions>,
    /// How much slower running streams may get per token while prompts are computed: a factor of at
    /// least 1; infinity for no bound.
    pub max_slowdown: f32,
    /// Waiting this long improves the priority by one.
    pub aging: Duration,
    /// Default of [`GenerateRequest::queue_timeout`].
    pub queue_timeout: Option<Duration>,
    /// Default of [`GenerateRequest::first_token_timeout`].
    pub first_token_timeout: Option<Duration>,
    /// Whether and how drafts of the next tokens are verified in one step. They change no token.
    pub speculation: SpeculationOptions,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            step_tokens: None,
            max_running: None,
            max_queue: 256,
            max_queue_per_client: None,
            event_buffer: 64,
            reader_grace: Duration::ZERO,
            cache_bytes: None,
            kv_disk: None,
            max_slowdown: 2.0,
            aging: Duration::from_secs(1),
            queue_timeout: None,
            first_token_timeout: None,
            speculation: SpeculationOptions::default(),
        }
    }
}

impl EngineOptions {
    fn check(&self, capabilities: &Capabilities) -> Result<(), EngineError> {
        let Self {
            step_tokens,
            max_running,
            max_queue,
            max_queue_per_client,
            event_buffer,
            reader_grace: _,
            cache_bytes: _,
            kv_disk: _,
            max_slowdown,
            aging,
            queue_timeout: _,
            first_token_timeout: _,
            speculation,
        } = self;
        let most = capabilities.max_step_tokens;
        check_option("step_tokens", step_tokens.unwrap_or(most), most)?;
        let most = capabilities.max_sequences;
        check_option("max_running", max_running.unwrap_or(most), most)?;
        check_option("max_queue", *max_queue, 1 << 20)?;
        let per_client = max_queue_per_client.unwrap_or(*max_queue);
        check_option("max_queue_per_client", per_client, *max_queue)?;
        check_option("event_buffer", *event_buffer, 1 << 20)?;
        let most = SpeculationOptions::MOST_TOKENS;
        check_option("speculation.max_tokens", speculation.max_tokens, most)?;
        Speculator::check(speculation, capabilities)?;
        if !(1.0..=f32::INFINITY).contains(max_slowdown) {
            return Err(EngineError::OutOfRange {
                field: "max_slowdown",
                found: max_slowdown.to_string(),
                expected: "at least 1".into(),
            });
        }
        if aging.is_zero() {
            return Err(EngineError::OutOfRange {
                field: "aging",
                found: "0".into(),
                expected: "longer than no time".into(),
            });
        }
        Ok(())
    }
}

/// Returns its session if that is still usable.
type Thread = JoinHandle<Option<Box<dyn Session>>>;

/// A session on its own thread. Dropping the engine shuts it down.
pub struct Engine {
    commands: mpsc::Sender<Command>,
    thread: Mutex<Option<Thread>>,
    shared: Arc<Shared>,
    capabilities: Arc<Capabilities>,
    limits: Limits,
    speculates: bool,
    tokenizer: Option<Tokenizer>,
    options: EngineOptions,
    /// The next group number of a request with several choices.
    groups: AtomicU64,
    time: TimeSource,
}

impl Engine {
    /// Starts an engine that owns the session. Without a tokenizer, events carry tokens but no
    /// text.
    pub fn start(
        session: Box<dyn Session>,
        tokenizer: Option<Tokenizer>,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let (mut engine, worker) =
            Self::assemble(session, tokenizer, options, TimeSource::default())?;
        let running = EngineThread(Arc::clone(&engine.shared));
        let thread = std::thread::Builder::new()
            .name("loquat-engine".into())
            .spawn(move || {
                let _running = running;
                worker.run_to_end()
            })
            .map_err(|error| EngineError::NoThread(error.kind()))?;
        engine.thread = Mutex::new(Some(thread));
        Ok(engine)
    }

    /// The engine and its worker, not yet running.
    pub(crate) fn assemble(
        session: Box<dyn Session>,
        tokenizer: Option<Tokenizer>,
        options: EngineOptions,
        time: TimeSource,
    ) -> Result<(Self, Worker), EngineError> {
        let capabilities = session.capabilities().clone();
        options.check(&capabilities)?;
        let view = EngineSnapshot::new(session.memory(), time.now());
        let shared = Arc::new(Shared::new(view));
        let (commands, inbox) = mpsc::channel();
        let caches = capabilities.prefix_copy != PrefixCopy::None && options.cache_bytes != Some(0);
        let disk = options.kv_disk.as_ref();
        let disk = disk.map(|disk| DiskTier::open(disk, &*session, caches, commands.clone()));
        let worker = Worker::new(
            session,
            options.clone(),
            inbox,
            Arc::clone(&shared),
            time.clone(),
            disk.transpose()?.flatten(),
        );
        let engine = Self {
            commands,
            thread: Mutex::new(None),
            shared,
            capabilities: Arc::new(capabilities),
            limits: worker.limits,
            speculates: worker.speculator.is_on(),
            tokenizer,
            options,
            groups: AtomicU64::new(0),
            time,
        };
        Ok((engine, worker))
    }

    /// Queues a request, or rejects it at once.
    pub fn submit(&self, request: GenerateRequest) -> Result<Generation, EngineError> {
        let mut queue_limits = self.accept(&request, 1)?;
        let seed = request.sampling.seed.unwrap_or_else(fresh_seed);
        match queue_limits.pop() {
            Some(place) => self.enqueue(request, seed, place, None),
            None => Err(EngineError::QueueFull),
        }
    }

    /// Queues `n` choices for one request, all or none. The prompt is computed once, unless the
    /// request asks for its log-probabilities. Choice `i` uses the request's seed plus `i`.
    pub fn submit_choices(
        &self,
        request: GenerateRequest,
        n: usize,
    ) -> Result<Choices, EngineError> {
        check_option("n", n, MOST_CHOICES)?;
        let queue_limits = self.accept(&request, n)?;
        let seed = request.sampling.seed.unwrap_or_else(fresh_seed);
        let group = self.groups.fetch_add(1, Ordering::Relaxed);
        let choices = queue_limits.into_iter().zip(0..).map(|(place, choice)| {
            let seed = seed.wrapping_add(choice);
            self.enqueue(request.clone(), seed, place, Some(group))
        });
        choices.collect::<Result<_, _>>().map(Choices::new)
    }

    /// Validates a request; reserves a queue slot and a text stream for each choice.
    fn accept(
        &self,
        request: &GenerateRequest,
        choices: usize,
    ) -> Result<Vec<(QueueSlot, TextStream)>, EngineError> {
        self.shared.check_open()?;
        request.validate(&ValidationContext {
            limits: self.limits,
            capabilities: &self.capabilities,
            has_tokenizer: self.tokenizer.is_some(),
        })?;
        let texts: Vec<TextStream> = (0..choices)
            .map(|_| TextStream::new(self.tokenizer.as_ref(), request))
            .collect::<Result<_, _>>()?;
        let client = request.client.as_deref();
        let tickets = QueueSlot::take(&self.shared, client, choices, self.queue_limits())?;
        Ok(tickets.into_iter().zip(texts).collect())
    }

    /// How many requests of so many choices an idle engine accepts in any case.
    pub fn idle_capacity(&self, choices: usize) -> usize {
        let QueueLimits {
            for_one, running, ..
        } = self.queue_limits();
        for_one.saturating_add(running.div_ceil(choices.max(1)))
    }

    fn queue_limits(&self) -> QueueLimits {
        let for_all = self.options.max_queue;
        QueueLimits {
            for_all,
            for_one: self.options.max_queue_per_client.unwrap_or(for_all),
            running: self.limits.max_running,
        }
    }

    fn enqueue(
        &self,
        mut request: GenerateRequest,
        seed: u64,
        (queue_slot, text): (QueueSlot, TextStream),
        group: Option<u64>,
    ) -> Result<Generation, EngineError> {
        let (sink, generation) = channel(
            self.options.event_buffer,
            request.prompt.len(),
            self.commands.clone(),
            Arc::clone(&self.shared),
        );
        request.queue_timeout = request.queue_timeout.or(self.options.queue_timeout);
        request.first_token_timeout = request
            .first_token_timeout
            .or(self.options.first_token_timeout);
        let sequence = Sequence::new(NewSequence {
            request,
            seed,
            text,
            tokenizer: self.tokenizer.as_ref(),
            sink,
            queue_slot,
            group,
            now: self.time.now(),
        });
        self.commands
            .send(Command::Submit(Box::new(sequence)))
            .map_err(|_| self.shared.end_reason())?;
        Ok(generation)
    }

    /// The session's capabilities.
    pub fn capabilities(&self) -> Arc<Capabilities> {
        Arc::clone(&self.capabilities)
    }

    /// Whether tokens are drafted, as its [options](SpeculationOptions) and the session allow.
    pub fn speculates(&self) -> bool {
        self.speculates
    }

    /// The tokenizer it was started with; without one, events have no text.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// The session's memory as of the last step.
    pub fn memory(&self) -> Memory {
        self.shared.view().memory
    }

    /// Current load, speed and totals.
    pub fn stats(&self) -> Stats {
        self.shared.stats(self.time.now())
    }

    /// Watches the engine's steps.
    pub fn step_monitor(&self) -> StepMonitor {
        StepMonitor::new(Arc::clone(&self.shared))
    }

    /// Returns an error if the engine does not accept requests.
    pub fn check(&self) -> Result<(), EngineError> {
        self.shared.check_open()
    }

    /// Loads an adapter for requests to name, between two steps. Blocks until that is done. The
    /// session's [limits](Capabilities::adapters) apply.
    pub fn load_adapter(&self, weights: Arc<AdapterWeights>) -> Result<AdapterId, EngineError> {
        self.shared.check_open()?;
        let (reply, loaded) = mpsc::channel();
        self.on_thread(AdapterCommand::Load { weights, reply }, &loaded)
    }

    /// Unloads an adapter once no request uses it, and blocks until then. Cached prefixes that it
    /// computed are dropped.
    pub fn unload_adapter(&self, id: AdapterId, mode: UnloadMode) -> Result<(), EngineError> {
        let (reply, unloaded) = mpsc::channel();
        self.on_thread(AdapterCommand::Unload { id, mode, reply }, &unloaded)
    }

    fn on_thread<T>(
        &self,
        command: AdapterCommand,
        reply: &mpsc::Receiver<Result<T, SessionError>>,
    ) -> Result<T, EngineError> {
        let sent = self.commands.send(Command::Adapter(command));
        sent.map_err(|_| self.shared.end_reason())?;
        // The engine drops the sender if it ends first.
        let replied = reply.recv().map_err(|_| self.shared.end_reason())?;
        Ok(replied?)
    }

    /// Empties the prefix cache, within one step.
    pub fn clear_cache(&self) {
        // Fails only if the engine has ended.
        let _ = self.commands.send(Command::ClearCache);
    }

    /// Rejects new requests, lets current ones finish within `patience`, cancels the rest and drops
    /// the session. Returns when this is done.
    pub fn drain(&self, patience: Duration) {
        self.shared.close();
        self.stop(Command::Drain(self.deadline(patience)), drop);
    }

    /// Cancels all requests and drops the session. Returns when this is done.
    pub fn shutdown(&self) {
        self.stop(Command::Shutdown, drop);
    }

    /// Cancels all requests and returns the session, without sequences.
    pub fn into_session(self) -> Result<Box<dyn Session>, EngineError> {
        self.stop(Command::Shutdown, |session| session)
            .ok_or_else(|| self.shared.end_reason())
    }

    fn deadline(&self, patience: Duration) -> Instant {
        // Avoids overflow.
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
        self.time.now() + patience.min(CENTURY)
    }

    /// Sends the command before joining, so that a shutdown does not wait for a drain. A second
    /// caller returns when the first has joined the thread. An abandoned thread is not joined.
    fn stop<T>(&self, command: Command, then: impl FnOnce(Option<Box<dyn Session>>) -> T) -> T {
        // Fails if the thread has already ended; it is joined anyway.
        let _ = self.commands.send(command);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let session = thread.take().and_then(|thread| {
            if !self.shared.thread.wait() {
                return None;
            }
            thread.join().unwrap_or_else(|_| {
                tracing::error!("the engine's thread panicked outside every guard");
                None
            })
        });
        then(session)
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("options", &self.options)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown();
    }
}

fn check_option(field: &'static str, value: usize, max: usize) -> Result<(), EngineError> {
    if (1..=max).contains(&value) {
        return Ok(());
    }
    Err(EngineError::OutOfRange {
        field,
        found: value.to_string(),
        expected: format!("from 1 to {max}"),
    })
}
