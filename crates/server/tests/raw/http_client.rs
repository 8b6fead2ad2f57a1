//! A bare HTTP/1 client.

use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::test_server::{KEY, TIMEOUT};

/// One end of a connection.
pub struct HttpClient<S = TcpStream> {
    pub stream: S,
    unread: Vec<u8>,
}

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    head: String,
    pub body: String,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().skip(1);
        lines.find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A request with a key.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\n");
    for (name, value) in headers {
        write!(head, "{name}: {value}\r\n").expect("a string");
    }
    head.push_str("\r\n");
    [head.as_bytes(), body].concat()
}

pub fn post(path: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len().to_string();
    let headers = [
        ("content-type", "application/json"),
        ("content-length", length.as_str()),
    ];
    request("POST", path, &headers, body.as_bytes())
}

impl HttpClient {
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("a connection");
        Self::over(stream)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> HttpClient<S> {
    pub fn over(stream: S) -> Self {
        Self {
            stream,
            unread: Vec::new(),
        }
    }

    /// Ignores errors: the server may have closed the connection.
    pub async fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
        let _ = self.stream.flush().await;
    }

    pub async fn get(&mut self, path: &str) {
        self.send(&request("GET", path, &[], b"")).await;
    }

    pub async fn post(&mut self, path: &str, body: &Value) {
        self.send(&post(path, body)).await;
    }

    /// Reads more bytes; 0 at the end.
    async fn more(&mut self) -> usize {
        let read = timeout(TIMEOUT, self.stream.read_buf(&mut self.unread)).await;
        // A reset counts as the end.
        read.expect("bytes in time").unwrap_or(0)
    }

    async fn until(&mut self, mark: &str) -> Option<String> {
        loop {
            let found = self.unread.windows(mark.len());
            if let Some(at) = found.into_iter().position(|part| part == mark.as_bytes()) {
                let rest = self.unread.split_off(at + mark.len());
                let bytes = std::mem::replace(&mut self.unread, rest);
                return Some(String::from_utf8(bytes).expect("text"));
            }
            if self.more().await == 0 {
                return None;
            }
        }
    }

    /// The next response's head; `None` if the connection ended.
    pub async fn head(&mut self) -> Option<Response> {
        let head = self.until("\r\n\r\n").await?;
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        Some(Response {
            status: status.unwrap_or_else(|| panic!("no status in {head:?}")),
            head,
            body: String::new(),
        })
    }

    async fn exactly(&mut self, length: usize) -> Option<String> {
        while self.unread.len() < length {
            if self.more().await == 0 {
                return None;
            }
        }
        let rest = self.unread.split_off(length);
        let bytes = std::mem::replace(&mut self.unread, rest);
        Some(String::from_utf8(bytes).expect("text"))
    }

    /// The next chunk of a body; empty at its end, `None` if it broke off.
    pub async fn chunk(&mut self) -> Option<String> {
        let size = self.until("\r\n").await?;
        let size = usize::from_str_radix(size.trim_end(), 16).expect("a size");
        let chunk = self.exactly(size + 2).await?;
        Some(chunk[..size].to_owned())
    }

    /// A whole response; `None` if the connection ended early.
    pub async fn try_response(&mut self) -> Option<Response> {
        let mut response = self.head().await?;
        if response.header("transfer-encoding") == Some("chunked") {
            loop {
                match self.chunk().await?.as_str() {
                    "" => return Some(response),
                    chunk => response.body.push_str(chunk),
                }
            }
        }
        let length = response.header("content-length").unwrap_or("0");
        response.body = self.exactly(length.parse().expect("a length")).await?;
        Some(response)
    }

    pub async fn response(&mut self) -> Response {
        self.try_response().await.expect("a whole response")
    }

    /// Waits for the head of a stream and its first chunk.
    pub async fn begins_to_stream(&mut self) {
        let head = self.head().await.expect("a head");
        assert_eq!(head.status, 200, "{head:?}");
        self.chunk().await.expect("a first frame");
    }

    /// The server closes without sending more.
    pub async fn ends(&mut self) {
        while self.more().await > 0 {}
        let left = String::from_utf8_lossy(&self.unread);
        assert!(left.is_empty(), "it says {left:?}");
    }

    /// The server sends nothing for this time.
    pub async fn is_silent_for(&mut self, time: Duration) {
        let read = timeout(time, self.stream.read_buf(&mut self.unread)).await;
        assert!(read.is_err(), "{read:?}: {:?}", self.unread);
    }
}
