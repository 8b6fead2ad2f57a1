//! Waiting: for the next event or for Ctrl-C, whichever comes first.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use async_channel::Receiver;
use loquat_engine::{Event, Generation};

use crate::error::CliError;
use crate::terminal::remark;

/// A second press within this time is meant for the program, not for what it is doing.
const TWICE: Duration = Duration::from_secs(2);

/// Ctrl-C presses, from now on ours to answer.
pub struct Interrupts {
    stops: Receiver<()>,
    presses: Arc<Mutex<Presses>>,
}

pub enum Next {
    Event(Event),
    /// After the last event.
    End,
    Interrupted,
}

/// What the program is doing, which is what a press is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// Downloading, loading, leaving: what a press ends at once, with the program.
    Working,
    /// Opening another model for a conversation, which cannot be stopped and which a person may
    /// not mean to lose: the second press leaves.
    Switching,
    /// What a press stops.
    Answering,
    /// About to ask for a line.
    Turning,
    /// The line editor has the keys, and tells presses itself; a signal from elsewhere would
    /// leave the terminal in its hands.
    Reading,
}

/// What comes of a press.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Press {
    Stop,
    /// Told what another press does.
    Warn,
    Leave,
    Nothing,
}

#[derive(Debug)]
struct Presses {
    doing: Doing,
    last: Option<Instant>,
}

impl Presses {
    fn press(&mut self, now: Instant) -> Press {
        let twice = self.is_recent(now);
        let last = self.last.replace(now);
        match self.doing {
            Doing::Working => Press::Leave,
            Doing::Switching if last.is_none() => Press::Warn,
            Doing::Switching => Press::Leave,
            Doing::Answering | Doing::Turning if twice => Press::Leave,
            Doing::Answering => Press::Stop,
            Doing::Turning | Doing::Reading => Press::Nothing,
        }
    }

    fn is_recent(&self, now: Instant) -> bool {
        let since = |last| now.saturating_duration_since(last);
        self.last.is_some_and(|last| since(last) < TWICE)
    }
}

/// Every change is whole at once, so that a poisoned lock guards a sound value.
fn lock(presses: &Mutex<Presses>) -> MutexGuard<'_, Presses> {
    presses.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Interrupts {
    /// From here on Ctrl-C ends the process with its exit code, unless it is [`Doing`] something
    /// else than work.
    pub fn listen() -> Result<Self, CliError> {
        let (sender, stops) = async_channel::bounded(1);
        let presses = Arc::new(Mutex::new(Presses {
            doing: Doing::Working,
            last: None,
        }));
        let pressed = presses.clone();
        let handler = move || {
            let press = lock(&pressed).press(Instant::now());
            match press {
                // One that finds another waiting adds nothing to it.
                Press::Stop => drop(sender.try_send(())),
                // The line already holds the terminal's echo, and maybe a progress bar.
                Press::Warn => {
                    remark("\nPress Ctrl-C again to leave; the conversation is not saved.")
                }
                Press::Leave => std::process::exit(CliError::Interrupted.exit_code().into()),
                Press::Nothing => {}
            }
        };
        ctrlc::set_handler(handler).map_err(|error| CliError::Terminal(error.to_string()))?;
        Ok(Self { stops, presses })
    }

    /// What presses are about from here on.
    pub fn now(&self, doing: Doing) {
        let mut presses = lock(&self.presses);
        presses.doing = doing;
        // What came before was about something else.
        if matches!(doing, Doing::Answering | Doing::Switching) {
            presses.last = None;
        }
        while self.stops.try_recv().is_ok() {}
    }

    /// A press that the line editor told. Whether it followed another so soon that it is meant
    /// for the program.
    pub fn pressed_twice(&self) -> bool {
        let now = Instant::now();
        let mut presses = lock(&self.presses);
        let twice = presses.is_recent(now);
        presses.last = Some(now);
        twice
    }

    pub fn next(&self, generation: &mut Generation) -> Next {
        let mut event = pin!(generation.recv());
        let mut pressed = pin!(self.stops.recv());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_press_does_depends_on_what_it_finds() {
        let began = Instant::now();
        let seconds = |seconds: f32| began + Duration::from_secs_f32(seconds);
        for (doing, first, soon, later) in [
            (Doing::Working, Press::Leave, Press::Leave, Press::Leave),
            (Doing::Switching, Press::Warn, Press::Leave, Press::Leave),
            (Doing::Answering, Press::Stop, Press::Leave, Press::Stop),
            (Doing::Turning, Press::Nothing, Press::Leave, Press::Nothing),
            (
                Doing::Reading,
                Press::Nothing,
                Press::Nothing,
                Press::Nothing,
            ),
        ] {
            let mut presses = Presses { doing, last: None };
            let found = [0.0, 1.5, 4.0].map(|at| presses.press(seconds(at)));
            assert_eq!(found, [first, soon, later], "{doing:?}");
        }
    }
}
