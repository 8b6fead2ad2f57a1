//! Ctrl-C.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use loquat::Canceller;

use crate::error::CliError;
use crate::terminal::remark;

/// A second press within this time ends the program.
const TWICE: Duration = Duration::from_secs(2);

/// The handler of Ctrl-C.
pub struct Interrupts {
    presses: Arc<Mutex<Presses>>,
}

/// What the program is doing, which decides what a press does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// Downloading, loading, exiting: a press ends the program.
    Working,
    /// Loading another model for a conversation, which cannot be cancelled: the first press warns,
    /// the second ends the program and the conversation.
    Switching,
    /// A press cancels the answer.
    Answering,
    /// Between an answer and the next line.
    Turning,
    /// The line editor handles the keys. A signal from elsewhere is ignored, since the editor must
    /// restore the terminal.
    Reading,
}

/// What a press does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Press {
    CancelAnswer,
    /// Say what another press does.
    Warn,
    Exit,
    Ignore,
}

#[derive(Debug)]
struct Presses {
    doing: Doing,
    last: Option<Instant>,
    /// Of the answer being printed.
    canceller: Option<Canceller>,
}

impl Presses {
    fn press(&mut self, now: Instant) -> Press {
        let twice = self.is_recent(now);
        let last = self.last.replace(now);
        match self.doing {
            Doing::Working => Press::Exit,
            Doing::Switching if last.is_none() => Press::Warn,
            Doing::Switching => Press::Exit,
            Doing::Answering | Doing::Turning if twice => Press::Exit,
            Doing::Answering => Press::CancelAnswer,
            Doing::Turning | Doing::Reading => Press::Ignore,
        }
    }

    fn is_recent(&self, now: Instant) -> bool {
        let since = |last| now.saturating_duration_since(last);
        self.last.is_some_and(|last| since(last) < TWICE)
    }
}

/// Ignores poisoning: every change is a single assignment.
fn lock(presses: &Mutex<Presses>) -> MutexGuard<'_, Presses> {
    presses.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Interrupts {
    /// Installs the handler. A press ends the process until [`now`](Self::now) says otherwise.
    pub fn listen() -> Result<Self, CliError> {
        let presses = Arc::new(Mutex::new(Presses {
            doing: Doing::Working,
            last: None,
            canceller: None,
        }));
        let pressed = presses.clone();
        let handler = move || {
            let mut presses = lock(&pressed);
            let press = presses.press(Instant::now());
            let canceller = presses.canceller.clone();
            drop(presses);
            match press {
                Press::CancelAnswer => {
                    if let Some(canceller) = canceller {
                        canceller.cancel();
                    }
                }
                // The line has the terminal's echo, and maybe a progress bar.
                Press::Warn => {
                    remark("\nPress Ctrl-C again to leave; the conversation is not saved.")
                }
                Press::Exit => std::process::exit(CliError::Interrupted.exit_code().into()),
                Press::Ignore => {}
            }
        };
        ctrlc::set_handler(handler).map_err(|error| CliError::Terminal(error.to_string()))?;
        Ok(Self { presses })
    }

    /// Sets what presses do from now on.
    pub fn now(&self, doing: Doing) {
        let mut presses = lock(&self.presses);
        presses.doing = doing;
        presses.canceller = None;
        // An earlier press meant something else.
        if matches!(doing, Doing::Answering | Doing::Switching) {
            presses.last = None;
        }
    }

    /// From now on a press cancels this answer.
    pub fn answering(&self, canceller: Canceller) {
        self.now(Doing::Answering);
        lock(&self.presses).canceller = Some(canceller);
    }

    /// Records a press that the line editor read. Returns whether it follows another so soon that
    /// it ends the program.
    pub fn pressed_twice(&self) -> bool {
        let now = Instant::now();
        let mut presses = lock(&self.presses);
        let twice = presses.is_recent(now);
        presses.last = Some(now);
        twice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn press_depends_on_activity() {
        let began = Instant::now();
        let seconds = |seconds: f32| began + Duration::from_secs_f32(seconds);
        for (doing, first, soon, later) in [
            (Doing::Working, Press::Exit, Press::Exit, Press::Exit),
            (Doing::Switching, Press::Warn, Press::Exit, Press::Exit),
            (
                Doing::Answering,
                Press::CancelAnswer,
                Press::Exit,
                Press::CancelAnswer,
            ),
            (Doing::Turning, Press::Ignore, Press::Exit, Press::Ignore),
            (Doing::Reading, Press::Ignore, Press::Ignore, Press::Ignore),
        ] {
            let mut presses = Presses {
                doing,
                last: None,
                canceller: None,
            };
            let found = [0.0, 1.5, 4.0].map(|at| presses.press(seconds(at)));
            assert_eq!(found, [first, soon, later], "{doing:?}");
        }
    }
}
