//! Taking connections, as many as there may be.

use std::io::{self, ErrorKind};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::connection::{self, Door};

/// What a client is told who comes when there is no room: at once, so that it or whoever balances
/// load can go elsewhere, rather than wait in a queue that nobody sees.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\
    content-type: application/json\r\ncontent-length: 70\r\nconnection: close\r\n\r\n\
    {\"error\":{\"message\":\"too many connections\",\"type\":\"overloaded_error\"}}";
/// How many are told at once, and for how long at most. Others are closed without a word.
const MOST_TOLD: usize = 64;
const TELLING: Duration = Duration::from_secs(1);
/// How long to wait when the machine has no more sockets to give.
const PAUSE: Duration = Duration::from_millis(100);

/// Every connection there is. Dropping it ends them all.
pub struct Connections {
    door: Door,
    open: JoinSet<()>,
    turned_away: JoinSet<()>,
}

impl Connections {
    pub fn new(door: Door) -> Self {
        Self {
            door,
            open: JoinSet::new(),
            turned_away: JoinSet::new(),
        }
    }

    /// Takes connections for as long as it is polled.
    pub async fn accept(&mut self, listener: &TcpListener) {
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.take(stream),
                    Err(error) => recover(&error).await,
                },
                Some(_) = self.open.join_next() => {}
                Some(_) = self.turned_away.join_next() => {}
            }
        }
    }

    fn take(&mut self, stream: TcpStream) {
        let app = &self.door.app;
        let tls = app.tls.acceptor();
        if self.open.len() < app.config().limits.connections {
            let served = connection::serve(stream, tls, self.door.clone());
            self.open.spawn(served);
        } else if tls.is_none() && self.turned_away.len() < MOST_TOLD {
            self.turned_away.spawn(turn_away(stream));
        }
    }

    /// Returns when every connection has ended.
    pub async fn ended(&mut self) {
        while self.open.join_next().await.is_some() {}
    }

    /// Ends what has not ended yet.
    pub async fn end(mut self) {
        self.open.shutdown().await;
    }
}

/// A client that went away between two calls is its own affair; for everything else there may be
/// room again soon.
async fn recover(error: &io::Error) {
    let gone = [
        ErrorKind::ConnectionAborted,
        ErrorKind::ConnectionRefused,
        ErrorKind::ConnectionReset,
        ErrorKind::Interrupted,
    ];
    if !gone.contains(&error.kind()) {
        tracing::warn!("cannot take a connection: {error}");
        sleep(PAUSE).await;
    }
}

/// Reads what comes until the client has read the answer: closing earlier would reset it.
async fn turn_away(mut stream: TcpStream) {
    let tell = async {
        stream.write_all(FULL).await?;
        stream.shutdown().await?;
        let mut scratch = [0; 1024];
        while stream.read(&mut scratch).await? > 0 {}
        Ok::<_, io::Error>(())
    };
    // Whether it could be told or not, it is closed now.
    let _ = timeout(TELLING, tell).await;
}

#[test]
fn what_the_full_server_says_is_framed_right() {
    let text = std::str::from_utf8(FULL).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.contains(&format!("content-length: {}", body.len())));
    assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
}
