//! The handle to an engine: start it, give it requests, stop it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use loquat_session::{Capabilities, Memory, Session};
use loquat_text::Tokenizer;

use crate::generation::channel;
use crate::request::Limits;
use crate::sampling::fresh_seed;
use crate::scheduler::Scheduler;
use crate::sequence::Arrival;
use crate::shared::{Shared, Ticket};
use crate::text_stream::TextStream;
use crate::worker::{Command, Worker};
use crate::{EngineError, GenerateRequest, Generation, Load};

/// How to run a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// Most new tokens in one step, over all sequences; `None` takes as many as the session
    /// does. Fewer make running sequences wait less for a long prompt that joins them.
    pub step_tokens: Option<usize>,
    /// Most requests that wait for room.
    pub max_queue: usize,
    /// Events that a reader may lag behind before its sequence pauses.
    pub event_buffer: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            step_tokens: None,
            max_queue: 256,
            event_buffer: 64,
        }
    }
}

/// Ends with the session it owned, if that is still whole.
type Thread = JoinHandle<Option<Box<dyn Session>>>;

/// A session at work on its own thread. Dropping the engine shuts it down.
pub struct Engine {
    commands: mpsc::Sender<Command>,
    thread: Mutex<Option<Thread>>,
    shared: Arc<Shared>,
    capabilities: Capabilities,
    tokenizer: Option<Tokenizer>,
    max_queue: usize,
    event_buffer: usize,
}

impl Engine {
    /// Takes the session over. Without a tokenizer, requests give tokens and no text.
    pub fn start(
        session: Box<dyn Session>,
        tokenizer: Option<Tokenizer>,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let EngineOptions {
            step_tokens,
            max_queue,
            event_buffer,
        } = options;
        let capabilities = session.capabilities().clone();
        let memory = session.memory();
        let most = capabilities.max_step_tokens;
        let step_tokens = step_tokens.unwrap_or(most);
        check_option("step_tokens", step_tokens, most)?;
        check_option("max_queue", max_queue, 1 << 20)?;
        check_option("event_buffer", event_buffer, 1 << 20)?;

        let shared = Arc::new(Shared::new(memory));
        let (commands, inbox) = mpsc::channel();
        let scheduler = Scheduler::new(&capabilities, memory, step_tokens);
        let worker = Worker::new(session, scheduler, inbox, Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("loquat-engine".into())
            .spawn(move || worker.run_to_end())
            .map_err(|error| EngineError::NoThread(error.to_string()))?;
        Ok(Self {
            commands,
            thread: Mutex::new(Some(thread)),
            shared,
            capabilities,
            tokenizer,
            max_queue,
            event_buffer,
        })
    }

    /// Queues a request, or refuses it at once.
    pub fn submit(&self, request: GenerateRequest) -> Result<Generation, EngineError> {
        self.shared.check_alive()?;
        request.validate(&Limits {
            capabilities: &self.capabilities,
            memory: self.memory(),
            has_tokenizer: self.tokenizer.is_some(),
        })?;
        let text = TextStream::new(self.tokenizer.as_ref(), &request)?;
        let ticket = Ticket::take(&self.shared, self.max_queue)?;
        let (sink, generation) = channel(
            self.event_buffer,
            self.commands.clone(),
            Arc::clone(&self.shared),
        );
        let arrival = Arrival {
            seed: request.sampling.seed.unwrap_or_else(fresh_seed),
            request,
            text,
            sink,
            submitted: Instant::now(),
            ticket,
        };
        self.commands
            .send(Command::Submit(Box::new(arrival)))
            .map_err(|_| self.shared.end_reason())?;
        Ok(generation)
    }

    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// The session's memory as of the last step.
    pub fn memory(&self) -> Memory {
        self.shared.memory()
    }

    /// What runs and waits, as of the last step.
    pub fn load(&self) -> Load {
        self.shared.load()
    }

    /// Cancels every request, then drops the session, and returns when both are done.
    pub fn shutdown(&self) {
        drop(self.stop());
    }

    /// Cancels every request and gives the session back, without sequences.
    pub fn into_session(self) -> Result<Box<dyn Session>, EngineError> {
        self.stop().ok_or_else(|| self.shared.end_reason())
    }

    fn stop(&self) -> Option<Box<dyn Session>> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that ended by itself takes no commands and is joined all the same.
        let _ = self.commands.send(Command::Shutdown);
        thread.take()?.join().unwrap_or_else(|_| {
            tracing::error!("the engine's thread panicked outside every guard");
            None
        })
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("capabilities", &self.capabilities)
            .field("load", &self.load())
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
