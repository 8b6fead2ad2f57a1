//! Accepts connections up to the limit.

use std::io::{self, ErrorKind};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::connection::{self, ServerContext};

/// The response beyond the limit. It is sent at once, so that the client or a load balancer can try
/// another server instead of waiting in an invisible queue.
const REJECTION: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\
    content-type: application/json\r\ncontent-length: 70\r\nconnection: close\r\n\r\n\
    {\"error\":{\"message\":\"too many connections\",\"type\":\"overloaded_error\"}}";
/// How many rejections run at once, and for how long. Further connections are closed silently.
const MAX_REJECTIONS: usize = 64;
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);
/// How long to wait if the system has no more sockets.
const PAUSE: Duration = Duration::from_millis(100);

/// All connections. Dropping it ends them.
pub struct Connections {
    context: ServerContext,
    open: JoinSet<()>,
    rejected: JoinSet<()>,
}

impl Connections {
    pub fn new(context: ServerContext) -> Self {
        Self {
            context,
            open: JoinSet::new(),
            rejected: JoinSet::new(),
        }
    }

    /// Accepts connections for as long as it is polled.
    pub async fn accept(&mut self, listener: &TcpListener) {
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.start(stream),
                    Err(error) => recover(&error).await,
                },
                Some(_) = self.open.join_next() => {}
                Some(_) = self.rejected.join_next() => {}
            }
        }
    }

    fn start(&mut self, stream: TcpStream) {
        let app = &self.context.app;
        let tls = app.tls.acceptor();
        if self.open.len() < app.config().limits.connections {
            let served = connection::serve(stream, tls, self.context.clone());
            self.open.spawn(served);
        } else if tls.is_none() && self.rejected.len() < MAX_REJECTIONS {
            self.rejected.spawn(reject(stream));
        }
    }

    /// Returns when every connection has ended.
    pub async fn ended(&mut self) {
        while self.open.join_next().await.is_some() {}
    }

    /// Ends the remaining connections.
    pub async fn end(mut self) {
        self.open.shutdown().await;
    }
}

/// Ignores clients that left; after other errors, waits before the next attempt.
async fn recover(error: &io::Error) {
    let gone = [
        ErrorKind::ConnectionAborted,
        ErrorKind::ConnectionRefused,
        ErrorKind::ConnectionReset,
        ErrorKind::Interrupted,
    ];
    if !gone.contains(&error.kind()) {
        tracing::warn!("cannot accept a connection: {error}");
        sleep(PAUSE).await;
    }
}

/// Reads what comes until the client has read the answer: closing earlier would reset it.
async fn reject(mut stream: TcpStream) {
    let write = async {
        stream.write_all(REJECTION).await?;
        stream.shutdown().await?;
        let mut scratch = [0; 1024];
        while stream.read(&mut scratch).await? > 0 {}
        Ok::<_, io::Error>(())
    };
    // The connection is closed in any case.
    let _ = timeout(REJECTION_TIMEOUT, write).await;
}

#[test]
fn rejection_is_valid_http_and_json() {
    let text = std::str::from_utf8(REJECTION).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.contains(&format!("content-length: {}", body.len())));
    assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
}
