//! Tracks what a connection waits for, to enforce its timeouts.
//!
//! hyper's header timeout would also end idle connections; it has no write timeout, and for HTTP/2
//! neither.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use axum::http::Version;

use super::outgoing::BodySlot;
use crate::config::Limits;

/// One per connection, shared by its socket, requests and timer.
#[derive(Debug)]
pub struct Watch {
    state: Mutex<WatchState>,
}

#[derive(Debug)]
struct WatchState {
    /// Requests between the end of their headers and the end of their answer.
    active: usize,
    /// When the last request ended, or the connection began.
    quiet_since: Instant,
    /// When the first byte of the next request arrived.
    head_since: Option<Instant>,
    /// Since when the socket accepts no more data.
    stalled_since: Option<Instant>,
    served: LastProtocol,
    /// Whether the client may be sending a body that will not be read.
    unread: bool,
    request: RequestProgress,
    /// The client has closed its side.
    half_closed: bool,
    /// Something was sent to find out whether a half-closed client still reads.
    probed: bool,
    answers: Vec<Weak<BodySlot>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastProtocol {
    Nothing,
    Http1,
    /// Frames need not belong to a request, so received bytes mean nothing.
    Http2,
}

/// How far the latest request of HTTP/1 is.
#[derive(Debug, Clone, Copy, Default)]
struct RequestProgress {
    /// Whether the client knows interim responses.
    is_http11: bool,
    body_read: bool,
    /// The response's head may be on its way.
    answered: bool,
}

/// What to do when the client has closed its side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HalfClose {
    /// The connection ends.
    End,
    /// Nothing is under way, unless a request has arrived that nobody has begun to handle, or whose
    /// body has arrived and was not read.
    Unclear,
    /// A request is under way. The client may still read its answer.
    Wait,
    /// The same; an interim response shows whether it does.
    Probe,
}

/// The limit that a connection exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overdue {
    /// No request for too long; ends gracefully.
    Idle,
    /// A request's headers take too long.
    Headers,
    /// The client does not read.
    Stalled,
}

/// Counts as an active request of its connection until it is dropped.
#[derive(Debug)]
pub struct WatchedRequest(Arc<Watch>);

impl Watch {
    pub fn new(now: Instant) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(WatchState {
                active: 0,
                quiet_since: now,
                head_since: None,
                stalled_since: None,
                served: LastProtocol::Nothing,
                unread: false,
                request: RequestProgress::default(),
                half_closed: false,
                probed: false,
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

    pub fn begin(self: &Arc<Self>, version: Version) -> WatchedRequest {
        let mut state = self.lock();
        state.active += 1;
        state.head_since = None;
        state.unread = false;
        state.request = RequestProgress {
            is_http11: version == Version::HTTP_11,
            ..RequestProgress::default()
        };
        state.served = match version {
            Version::HTTP_2 => LastProtocol::Http2,
            _ => LastProtocol::Http1,
        };
        WatchedRequest(Arc::clone(self))
    }

    /// The request's body was read to its end.
    pub fn body_read(&self) {
        self.lock().request.body_read = true;
    }

    /// The response's head is about to be written.
    pub fn answered(&self) {
        self.lock().request.answered = true;
    }

    /// The client has closed its side of a connection.
    pub fn half_close(&self) -> HalfClose {
        let mut state = self.lock();
        if state.served == LastProtocol::Http2 {
            return HalfClose::End;
        }
        if state.active == 0 || !state.request.body_read {
            return HalfClose::Unclear;
        }
        state.half_closed = true;
        // An interim response must not interrupt another one.
        let between_responses = !state.request.answered && state.stalled_since.is_none();
        if state.probed || !between_responses || !state.request.is_http11 {
            return HalfClose::Wait;
        }
        state.probed = true;
        HalfClose::Probe
    }

    /// Whether a response in progress should send something, to see whether the client still reads.
    pub fn wants_ping(&self) -> bool {
        let mut state = self.lock();
        let wants = state.half_closed && !state.probed;
        state.probed |= wants;
        wants
    }

    /// Applies the write timeout to a response.
    pub fn follow(&self, answer: &Arc<BodySlot>) {
        let mut state = self.lock();
        state.answers.retain(|answer| answer.strong_count() > 0);
        state.answers.push(Arc::downgrade(answer));
    }

    /// Ends unread responses; returns why the whole connection should end, if so.
    pub fn check(&self, limits: &Limits, now: Instant) -> Option<Overdue> {
        let answers = self.lock().answers.clone();
        for answer in answers.iter().filter_map(Weak::upgrade) {
            answer.end_if_unread(limits.write_timeout, now);
        }
        self.lock().overdue(limits, now)
    }

    fn lock(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchState {
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
            LastProtocol::Nothing => Some(self.quiet_since),
            LastProtocol::Http1 => self.head_since,
            LastProtocol::Http2 => None,
        };
        match head_since {
            Some(since) => past(since, limits.header_timeout).then_some(Overdue::Headers),
            None => past(self.quiet_since, limits.idle_timeout).then_some(Overdue::Idle),
        }
    }
}

impl Drop for WatchedRequest {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.active -= 1;
        state.quiet_since = Instant::now();
    }
}

/// How often to check: a limit is exceeded by a quarter at most, and never by more than a second.
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
    fn each_wait_has_its_own_timeout() {
        type Story = fn(&Arc<Watch>) -> Option<WatchedRequest>;
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
