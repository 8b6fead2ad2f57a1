//! What a connection is waiting for, and since when: every time limit but the handlers' own.
//!
//! hyper has one for headers, which would also end connections that are merely idle; none for
//! writing; and for HTTP/2 neither.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use axum::http::Version;

use super::outgoing::Slot;
use crate::config::Limits;

/// One per connection, shared by its socket, its requests and its clock.
#[derive(Debug)]
pub struct Watch {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Requests between the end of their headers and the end of their answer.
    active: usize,
    /// When the last of them ended, or the connection began.
    quiet_since: Instant,
    /// When the first byte of the next request came.
    head_since: Option<Instant>,
    /// Since when the socket takes nothing more.
    stalled_since: Option<Instant>,
    served: Served,
    /// Whether the client may be sending what nobody will read.
    unread: bool,
    answers: Vec<Weak<Slot>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Served {
    Nothing,
    Http1,
    /// Its frames need not belong to a request, so that bytes say nothing.
    Http2,
}

/// Which limit a connection has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overdue {
    /// No request for long; it may be told.
    Idle,
    /// A request's headers take too long.
    Headers,
    /// The client does not read.
    Stalled,
}

/// Counts as an active request until it is dropped.
#[derive(Debug)]
pub struct Active(Arc<Watch>);

impl Watch {
    pub fn new(now: Instant) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                active: 0,
                quiet_since: now,
                head_since: None,
                stalled_since: None,
                served: Served::Nothing,
                unread: false,
                answers: Vec::new(),
            }),
        })
    }

    pub fn read(&self) {
        let mut state = self.lock();
        if state.active == 0 && state.head_since.is_none() {
            state.head_since = Some(Instant::now());
        }
    }

    pub fn wrote(&self) {
        self.lock().stalled_since = None;
    }

    pub fn stalled(&self) {
        let mut state = self.lock();
        state.stalled_since.get_or_insert_with(Instant::now);
    }

    pub fn leaves_unread(&self) {
        self.lock().unread = true;
    }

    pub fn is_unread(&self) -> bool {
        self.lock().unread
    }

    pub fn begin(self: &Arc<Self>, version: Version) -> Active {
        let mut state = self.lock();
        state.active += 1;
        state.head_since = None;
        state.unread = false;
        state.served = match version {
            Version::HTTP_2 => Served::Http2,
            _ => Served::Http1,
        };
        Active(Arc::clone(self))
    }

    /// An answer whose reader is waited for only so long.
    pub fn follow(&self, answer: &Arc<Slot>) {
        let mut state = self.lock();
        state.answers.retain(|answer| answer.strong_count() > 0);
        state.answers.push(Arc::downgrade(answer));
    }

    /// Ends answers that nobody takes; says whether the whole connection should end.
    pub fn check(&self, limits: &Limits, now: Instant) -> Option<Overdue> {
        let answers = self.lock().answers.clone();
        for answer in answers.iter().filter_map(Weak::upgrade) {
            answer.end_when_untaken(limits.write_timeout, now);
        }
        self.lock().overdue(limits, now)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn overdue(&self, limits: &Limits, now: Instant) -> Option<Overdue> {
        let past = |since: Instant, limit: Duration| now.saturating_duration_since(since) >= limit;
        if let Some(since) = self.stalled_since
            && past(since, limits.write_timeout)
        {
            return Some(Overdue::Stalled);
        }
        if self.active > 0 {
            return None;
        }
        let head_since = match self.served {
            Served::Nothing => Some(self.quiet_since),
            Served::Http1 => self.head_since,
            Served::Http2 => None,
        };
        match head_since {
            Some(since) => past(since, limits.header_timeout).then_some(Overdue::Headers),
            None => past(self.quiet_since, limits.idle_timeout).then_some(Overdue::Idle),
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.active -= 1;
        state.quiet_since = Instant::now();
    }
}

/// How often to look: a limit is exceeded by a quarter at most, and never by more than a second.
pub fn pace(limits: &Limits) -> Duration {
    let shortest = limits
        .header_timeout
        .min(limits.idle_timeout)
        .min(limits.write_timeout);
    (shortest / 4).clamp(Duration::from_millis(5), Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            header_timeout: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(5),
            ..Limits::default()
        }
    }

    #[test]
    fn what_a_connection_waits_for_decides_how_long_it_may() {
        type Story = fn(&Arc<Watch>) -> Option<Active>;
        let cases: &[(&str, Story, u64, Option<Overdue>)] = &[
            ("nothing came yet", |_| None, 2, Some(Overdue::Headers)),
            (
                "a request runs",
                |watch| Some(watch.begin(Version::HTTP_11)),
                100,
                None,
            ),
            (
                "a request ended",
                |watch| {
                    drop(watch.begin(Version::HTTP_11));
                    None
                },
                2,
                None,
            ),
            (
                "a request ended long ago",
                |watch| {
                    drop(watch.begin(Version::HTTP_11));
                    None
                },
                11,
                Some(Overdue::Idle),
            ),
            (
                "half of the next request came",
                |watch| {
                    drop(watch.begin(Version::HTTP_11));
                    watch.read();
                    None
                },
                2,
                Some(Overdue::Headers),
            ),
            (
                "frames that are no request came",
                |watch| {
                    drop(watch.begin(Version::HTTP_2));
                    watch.read();
                    None
                },
                2,
                None,
            ),
            (
                "the reader of an answer sleeps",
                |watch| {
                    watch.stalled();
                    Some(watch.begin(Version::HTTP_11))
                },
                6,
                Some(Overdue::Stalled),
            ),
            (
                "the reader woke up",
                |watch| {
                    watch.stalled();
                    watch.wrote();
                    Some(watch.begin(Version::HTTP_11))
                },
                6,
                None,
            ),
        ];
        for (name, story, later, expected) in cases {
            let watch = Watch::new(Instant::now());
            let _active = story(&watch);
            let later = Instant::now() + Duration::from_secs(*later);
            assert_eq!(watch.check(&limits(), later), *expected, "{name}");
        }
    }
}
