//! A model hub on this machine, for tests: speaks the Hugging Face Hub's protocol over real
//! sockets, and misbehaves on request.
//!
//! It has two origins, as the real one does: the hub itself, and the place that large files are
//! redirected to. It knows one token, [`TOKEN`], and keeps what it was asked for, so that a test
//! can say who was shown that token and which bytes were sent twice. It is for development only,
//! and checks nothing that a test does not ask about.

mod answer;
mod http;
mod routes;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The token that opens what is not open to all.
pub const TOKEN: &str = "hf_testtoken";

/// A repository, with one commit.
#[derive(Debug, Clone)]
pub struct Repo {
    /// `owner/name`.
    pub id: String,
    pub commit: String,
    /// Branches and tags that stand at the commit.
    pub refs: Vec<String>,
    pub files: Vec<File>,
    pub access: Access,
    /// Whether the listing gives sizes and hashes, which some mirrors leave out.
    pub lists_hashes: bool,
}

#[derive(Debug, Clone)]
pub struct File {
    pub path: String,
    pub content: Vec<u8>,
    /// Kept as LFS does: known by its SHA-256, and redirected to the second origin.
    pub large: bool,
    /// What the listing says in place of its size.
    pub claimed_size: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Open,
    /// Known to whoever has the [`TOKEN`] only.
    Private,
    /// Its files are for the [`TOKEN`] only; everybody may know that it exists.
    Gated,
    /// Its files are for those who accepted its terms, and the token's owner has not.
    GatedForAll,
}

impl Repo {
    /// An open repository whose branch `main` holds these files.
    pub fn new(id: &str, files: Vec<File>) -> Self {
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

impl File {
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

/// Bytes that look random and are the same for the same seed.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    // Marsaglia's xorshift, which is enough to tell any two places of a file apart.
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    });
    words.flat_map(u64::to_le_bytes).take(length).collect()
}

/// Where a request arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// The listing.
    Api,
    /// The listing in the form that Python's client asks for.
    Tree,
    /// A file's address on the hub.
    Resolve,
    /// Where a small file is redirected to, on the hub.
    Small,
    /// Where a large file is redirected to, on the other origin.
    Large,
}

/// What goes wrong with an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Another status, with these headers and no content.
    Status(u16, Vec<(&'static str, String)>),
    /// The connection ends after so many bytes of content.
    Truncate(usize),
    /// After so many bytes nothing comes any more, and the connection stays.
    Stall(usize),
    /// The whole file, whatever range was asked for.
    IgnoreRange,
    /// Ranges are refused with status 416.
    RefuseRange,
    /// Wrong content of the right length, under the right name.
    Corrupt,
    /// Another file of the same length, under a name of its own.
    Changed,
}

/// One request, as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub site: Site,
    pub method: String,
    /// The file it was for, if any.
    pub file: Option<String>,
    pub range: Option<String>,
    /// The `Authorization` header.
    pub authorization: Option<String>,
    pub user_agent: Option<String>,
}

/// A running hub; it ends when dropped.
pub struct HubServer {
    hub: SocketAddr,
    state: Arc<State>,
}

pub(crate) struct State {
    repos: Vec<Repo>,
    /// The second origin.
    storage: SocketAddr,
    over: AtomicBool,
    memory: Mutex<Memory>,
}

/// What changes while it runs.
#[derive(Default)]
struct Memory {
    requests: Vec<Request>,
    faults: Vec<Rule>,
    sent: u64,
    connections: usize,
    bytes_per_second: Option<u64>,
}

struct Rule {
    site: Site,
    left: usize,
    fault: Fault,
}

impl HubServer {
    pub fn start(repos: Vec<Repo>) -> io::Result<Self> {
        let (hub, storage) = (listener()?, listener()?);
        let state = Arc::new(State {
            repos,
            storage: storage.local_addr()?,
            over: AtomicBool::new(false),
            memory: Mutex::default(),
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

    /// The address of the hub, without a slash at its end.
    pub fn url(&self) -> String {
        format!("http://{}", self.hub)
    }

    /// The next `times` answers at `site` go wrong so, after those of earlier calls.
    pub fn misbehave(&self, site: Site, times: usize, fault: Fault) {
        let left = times;
        self.state.memory().faults.push(Rule { site, left, fault });
    }

    /// Sends content no faster, on each connection; `None` is as fast as it goes.
    pub fn throttle(&self, bytes_per_second: Option<u64>) {
        self.state.memory().bytes_per_second = bytes_per_second;
    }

    /// What it was asked for so far.
    pub fn requests(&self) -> Vec<Request> {
        self.state.memory().requests.clone()
    }

    /// Waits until nobody is connected, so that what it sent will stay what it is.
    pub fn settle(&self) {
        while self.state.memory().connections > 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Bytes of files that it sent so far.
    pub fn sent(&self) -> u64 {
        self.state.memory().sent
    }
}

impl Drop for HubServer {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::Relaxed);
        // Wakes whoever accepts; a connection that fails means that nobody does.
        for address in [self.hub, self.state.storage] {
            let _ = TcpStream::connect(address);
        }
    }
}

impl State {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers the request, and says what is to go wrong with its answer.
    fn arrived(&self, request: Request) -> Option<Fault> {
        let mut memory = self.memory();
        let site = request.site;
        memory.requests.push(request);
        let rule = memory
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

fn accept(listener: &TcpListener, state: &Arc<State>, is_storage: bool) {
    for connection in listener.incoming().flatten() {
        if state.over.load(Ordering::Relaxed) {
            return;
        }
        let state = Arc::clone(state);
        state.memory().connections += 1;
        thread::spawn(move || {
            // A client that hangs up is no concern of the server.
            let _ = routes::serve(&connection, &state, is_storage);
            state.memory().connections -= 1;
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
