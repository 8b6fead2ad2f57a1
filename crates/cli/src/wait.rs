//! Waiting: for the next event or for Ctrl-C, whichever comes first, and for many things at once.

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

/// Waits for a future on this thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
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

/// Runs futures side by side on one thread, and gives what each came to.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<_> = futures.into_iter().map(Box::pin).map(Some).collect();
    let mut outputs: Vec<Option<F::Output>> = pending.iter().map(|_| None).collect();
    std::future::poll_fn(move |context| {
        for (slot, output) in pending.iter_mut().zip(&mut outputs) {
            if let Some(future) = slot
                && let Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *output = Some(ready);
                *slot = None;
            }
        }
        match pending.iter().all(Option::is_none) {
            true => Poll::Ready(outputs.drain(..).flatten().collect()),
            false => Poll::Pending,
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_waited_for_in_their_order() {
        let (sender, receiver) = async_channel::bounded::<u32>(1);
        let waits = async { receiver.recv().await.unwrap_or(0) };
        let sends = async { sender.send(7).await.map_or(0, |()| 1) };
        let futures: [std::pin::Pin<Box<dyn Future<Output = u32>>>; 2] =
            [Box::pin(waits), Box::pin(sends)];
        assert_eq!(block_on(join_all(futures)), [7, 1]);
        assert_eq!(block_on(join_all(Vec::<std::future::Ready<()>>::new())), []);
    }
}
