//! A model hub for tests: serves the Hugging Face Hub's protocol over real sockets and injects
//! faults on request.
//!
//! Like the real hub it has two origins: the hub itself, and the storage that large files are
//! redirected to. It accepts one token, [`TOKEN`], and records its requests, so that tests can
//! check which origin received the token and which bytes were sent twice. For development only.

mod http;
mod response;
mod routes;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The token that private and gated repositories accept.
pub const TOKEN: &str = "hf_testtoken";

/// A repository, with one commit.
#[derive(Debug, Clone)]
pub struct FakeRepo {
    /// `owner/name`.
    pub id: String,
    pub commit: String,
    /// Branches and tags that point to the commit.
    pub refs: Vec<String>,
    pub files: Vec<FakeFile>,
    pub access: Access,
    /// Whether the listing includes sizes and hashes; some mirrors omit them.
    pub lists_hashes: bool,
}

#[derive(Debug, Clone)]
pub struct FakeFile {
    pub path: String,
    pub content: Vec<u8>,
    /// Stored in LFS: identified by its SHA-256 and redirected to the second origin.
    pub large: bool,
    /// A false size for the listing.
    pub claimed_size: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Open,
    /// Visible only with the [`TOKEN`].
    Private,
    /// Listed for everyone; files need the [`TOKEN`].
    Gated,
    /// Files are refused even with the [`TOKEN`], as for an account that has not accepted the
    /// terms.
    GatedForAll,
}

impl FakeRepo {
    /// An open repository with these files on `main`.
    pub fn new(id: &str, files: Vec<FakeFile>) -> Self {
        let commit = git_hash(id.as_bytes());
        Self {
            id: id.to_owned(),
            commit,
            refs: vec!["main".to_owned()],
            files,
            access: Access::Open,
            lists_hashes: true,
        }
    }
}

impl FakeFile {
    pub fn small(path: &str, content: impl Into<Vec<u8>>) -> Self {
        Self {
            path: path.to_owned(),
            content: content.into(),
            large: false,
            claimed_size: None,
        }
    }

    pub fn large(path: &str, content: impl Into<Vec<u8>>) -> Self {
        Self {
            large: true,
            ..Self::small(path, content)
        }
    }

    /// The name of its blob in a cache.
    pub fn etag(&self) -> String {
        if self.large {
            hexadecimal(&Sha256::digest(&self.content))
        } else {
            git_hash(&self.content)
        }
    }
}

/// Deterministic pseudo-random bytes.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    // Marsaglia's xorshift.
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    });
    words.flat_map(u64::to_le_bytes).take(length).collect()
}

/// The endpoint of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// The listing.
    Api,
    /// The listing for Python's client.
    Tree,
    /// A file's address on the hub.
    Resolve,
    /// The redirect target of a small file, on the hub.
    Small,
    /// The redirect target of a large file, on the second origin.
    Large,
}

/// A fault in a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HubFault {
    /// This status, with these headers and no content.
    Status(u16, Vec<(&'static str, String)>),
    /// The connection closes after this many bytes.
    Truncate(usize),
    /// The connection stays open after this many bytes without sending more.
    Stall(usize),
    /// Sends the whole file, ignoring the range.
    IgnoreRange,
    /// Refuses ranges with status 416.
    RefuseRange,
    /// Wrong content of the right length, with the right ETag.
    Corrupt,
    /// Other content of the same length, with its own ETag.
    Changed,
}

/// A received request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedRequest {
    pub site: Site,
    pub method: String,
    /// The requested file, if any.
    pub file: Option<String>,
    pub range: Option<String>,
    /// The `Authorization` header.
    pub authorization: Option<String>,
    pub user_agent: Option<String>,
}

/// A running hub; stops on drop.
pub struct HubServer {
    hub: SocketAddr,
    state: Arc<ServerState>,
}

pub(crate) struct ServerState {
    repos: Vec<FakeRepo>,
    /// The second origin.
    storage: SocketAddr,
    stopped: AtomicBool,
    activity: Mutex<ServerActivity>,
    /// Notified when `activity` changes in a way that a thread may wait for.
    changed: Condvar,
}

#[derive(Default)]
struct ServerActivity {
    requests: Vec<RecordedRequest>,
    faults: Vec<FaultRule>,
    sent: u64,
    /// `sent` does not pass this.
    send_limit: Option<u64>,
    connections: usize,
    bytes_per_second: Option<u64>,
}

struct FaultRule {
    site: Site,
    left: usize,
    fault: HubFault,
}

impl HubServer {
    pub fn start(repos: Vec<FakeRepo>) -> io::Result<Self> {
        let (hub, storage) = (listener()?, listener()?);
        let state = Arc::new(ServerState {
            repos,
            storage: storage.local_addr()?,
            stopped: AtomicBool::new(false),
            activity: Mutex::default(),
            changed: Condvar::new(),
        });
        let server = Self {
            hub: hub.local_addr()?,
            state: Arc::clone(&state),
        };
        for (listener, is_storage) in [(hub, false), (storage, true)] {
            let state = Arc::clone(&state);
            thread::spawn(move || accept(&listener, &state, is_storage));
        }
        Ok(server)
    }

    /// The hub's address, without a trailing slash.
    pub fn url(&self) -> String {
        format!("http://{}", self.hub)
    }

    /// Injects a fault into the next `times` responses at `site`, after those of earlier calls.
    pub fn inject_fault(&self, site: Site, times: usize, fault: HubFault) {
        let left = times;
        self.state
            .activity()
            .faults
            .push(FaultRule { site, left, fault });
    }

    /// Limits each connection's speed; `None` removes the limit.
    pub fn throttle(&self, bytes_per_second: Option<u64>) {
        self.state.activity().bytes_per_second = bytes_per_second;
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.state.activity().requests.clone()
    }

    /// Pauses file content once this many bytes are sent in all; `None` removes the limit.
    pub fn limit_sent(&self, bytes: Option<u64>) {
        self.state.activity().send_limit = bytes;
        self.state.changed.notify_all();
    }

    /// Waits until all connections are closed, so that [`HubServer::sent`] is final.
    pub fn wait_idle(&self) {
        drop(self.state.wait_while(|activity| activity.connections > 0));
    }

    /// Waits until this many bytes of file content are sent in all.
    pub fn wait_sent(&self, bytes: u64) {
        drop(self.state.wait_while(|activity| activity.sent < bytes));
    }

    /// Bytes of file content sent so far.
    pub fn sent(&self) -> u64 {
        self.state.activity().sent
    }
}

impl Drop for HubServer {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::Relaxed);
        self.limit_sent(None);
        // Wakes the accepting threads; fails if they have ended.
        for address in [self.hub, self.state.storage] {
            let _ = TcpStream::connect(address);
        }
    }
}

impl ServerActivity {
    fn remaining(&self) -> u64 {
        let limit = self.send_limit.unwrap_or(u64::MAX);
        limit.saturating_sub(self.sent)
    }
}

impl ServerState {
    fn activity(&self) -> MutexGuard<'_, ServerActivity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(
        &self,
        condition: impl Fn(&ServerActivity) -> bool,
    ) -> MutexGuard<'_, ServerActivity> {
        self.changed
            .wait_while(self.activity(), |activity| condition(activity))
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until file content may be sent; counts up to `bytes` as sent and returns how many.
    /// Counting comes before sending, so that a client that has everything sees the full count.
    fn reserve(&self, bytes: usize) -> usize {
        let mut activity = self.wait_while(|activity| activity.remaining() == 0);
        let bytes = activity.remaining().min(bytes as u64);
        activity.sent += bytes;
        self.changed.notify_all();
        bytes as usize
    }

    /// Records the request; returns the fault for its response.
    fn record(&self, request: RecordedRequest) -> Option<HubFault> {
        let mut activity = self.activity();
        let site = request.site;
        activity.requests.push(request);
        let rule = activity
            .faults
            .iter_mut()
            .find(|rule| rule.site == site && rule.left > 0)?;
        rule.left = rule.left.saturating_sub(1);
        Some(rule.fault.clone())
    }
}

fn listener() -> io::Result<TcpListener> {
    TcpListener::bind(("127.0.0.1", 0))
}

fn accept(listener: &TcpListener, state: &Arc<ServerState>, is_storage: bool) {
    for connection in listener.incoming().flatten() {
        if state.stopped.load(Ordering::Relaxed) {
            return;
        }
        let state = Arc::clone(state);
        state.activity().connections += 1;
        thread::spawn(move || {
            // Errors mean that the client hung up.
            let _ = routes::serve(&connection, &state, is_storage);
            state.activity().connections -= 1;
            state.changed.notify_all();
        });
    }
}

fn git_hash(content: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(format!("blob {}\0", content.len()));
    hash.update(content);
    hexadecimal(&hash.finalize())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
