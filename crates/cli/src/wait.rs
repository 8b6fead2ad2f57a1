//! Waiting for the next event or for Ctrl-C, whichever comes first.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use async_channel::Receiver;
use loquat_engine::{Event, Generation};

use crate::error::CliError;

/// Ctrl-C presses, from now on ours to answer.
pub struct Interrupts(Receiver<()>);

pub enum Next {
    Event(Event),
    /// After the last event.
    End,
    Interrupted,
}

impl Interrupts {
    /// From here on Ctrl-C no longer ends the process by itself.
    pub fn listen() -> Result<Self, CliError> {
        let (sender, receiver) = async_channel::bounded(1);
        let handler = move || {
            // A press that finds one waiting adds nothing to it.
            let _ = sender.try_send(());
        };
        ctrlc::set_handler(handler).map_err(|error| CliError::Terminal(error.to_string()))?;
        Ok(Self(receiver))
    }

    /// Forgets presses that were not meant for what comes next.
    pub fn clear(&self) {
        while self.0.try_recv().is_ok() {}
    }

    pub fn next(&self, generation: &mut Generation) -> Next {
        let mut event = pin!(generation.recv());
        let mut pressed = pin!(self.0.recv());
        block_on(std::future::poll_fn(move |context| {
            if let Poll::Ready(Ok(())) = pressed.as_mut().poll(context) {
                return Poll::Ready(Next::Interrupted);
            }
            match event.as_mut().poll(context) {
                Poll::Ready(Some(event)) => Poll::Ready(Next::Event(event)),
                Poll::Ready(None) => Poll::Ready(Next::End),
                Poll::Pending => Poll::Pending,
            }
        }))
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}
