//! A minimal HTTP/1.1 client: one connection, one request at a time.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A stream of server-sent events with arrival times.
pub struct Streamed {
    pub submitted: Instant,
    /// One per read that brought events.
    pub arrivals: Vec<Instant>,
    /// From the server's usage.
    pub tokens: usize,
}

impl Streamed {
    /// Tokens per second after the first; over the whole time if all arrived at once.
    pub fn speed(&self) -> f64 {
        match self.arrivals.as_slice() {
            [first, .., last] => (self.tokens - 1) as f64 / (*last - *first).as_secs_f64(),
            [all] => self.tokens as f64 / (*all - self.submitted).as_secs_f64(),
            [] => f64::NAN,
        }
    }
}

pub struct Client {
    stream: TcpStream,
    /// Received and not yet parsed.
    buffer: Vec<u8>,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            buffer: Vec::with_capacity(16 << 10),
        })
    }

    /// The status of a `GET`.
    pub async fn get(&mut self, path: &str) -> io::Result<u16> {
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        self.stream.write_all(head.as_bytes()).await?;
        let head = self.head().await?;
        let length = header(&head, "content-length").and_then(|length| length.parse().ok());
        let length: usize = length.ok_or_else(|| invalid("a response has no length"))?;
        while self.buffer.len() < length {
            self.more().await?;
        }
        self.buffer.drain(..length);
        status(&head)
    }

    /// Streams exactly `max_tokens` greedy tokens after a prompt.
    pub async fn complete(
        &mut self,
        model: &str,
        prompt: &[u32],
        max_tokens: usize,
    ) -> io::Result<Streamed> {
        let body = json!({
            "model": model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": true,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        let body = body.to_string();
        let request = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let submitted = Instant::now();
        self.stream.write_all(request.as_bytes()).await?;
        let head = self.head().await?;
        if status(&head)? != 200 {
            return Err(invalid(head.lines().next().unwrap_or_default()));
        }
        let mut events = Vec::new();
        let mut arrivals = Vec::new();
        loop {
            let before = events.len();
            let ended = take_chunks(&mut self.buffer, &mut events)?;
            if events.len() > before {
                arrivals.push(Instant::now());
            }
            if ended {
                break;
            }
            self.more().await?;
        }
        let tokens = usage(&events).ok_or_else(|| invalid("a stream ended without its usage"))?;
        if tokens != max_tokens {
            return Err(invalid(&format!("{tokens} of {max_tokens} tokens arrived")));
        }
        Ok(Streamed {
            submitted,
            arrivals,
            tokens,
        })
    }

    async fn head(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
                return Ok(String::from_utf8_lossy(&head).into_owned());
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// Moves all complete chunks from the front of the buffer to `data`; returns whether the last
/// arrived.
fn take_chunks(buffer: &mut Vec<u8>, data: &mut Vec<u8>) -> io::Result<bool> {
    while let Some(chunk) = take_chunk(buffer)? {
        if chunk.is_empty() {
            return Ok(true);
        }
        data.extend(chunk);
    }
    Ok(false)
}

/// A complete chunk from the front of the buffer, if there is one.
fn take_chunk(buffer: &mut Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    let Some(line) = find(buffer, b"\r\n") else {
        return Ok(None);
    };
    let size = std::str::from_utf8(&buffer[..line]).ok();
    let size = size.and_then(|size| usize::from_str_radix(size, 16).ok());
    let size = size.ok_or_else(|| invalid("a chunk has no size"))?;
    let start = line + 2;
    if buffer.len() < start + size + 2 {
        return Ok(None);
    }
    let chunk = buffer[start..start + size].to_vec();
    buffer.drain(..start + size + 2);
    Ok(Some(chunk))
}

/// The completion tokens in the last event with a usage.
fn usage(events: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(events).ok()?;
    let events = text
        .lines()
        .rev()
        .filter_map(|line| line.strip_prefix("data: "));
    let mut usages = events.filter_map(|event| {
        let event: Value = serde_json::from_str(event).ok()?;
        event["usage"]["completion_tokens"].as_u64()
    });
    usages.next().and_then(|tokens| tokens.try_into().ok())
}

fn status(head: &str) -> io::Result<u16> {
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    status.ok_or_else(|| invalid("a response has no status"))
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_chunks_stay_buffered() {
        let whole = b"5\r\nhello\r\n0\r\n\r\n";
        for cut in 0..10 {
            let mut buffer = whole[..cut].to_vec();
            assert_eq!(take_chunk(&mut buffer).unwrap(), None, "{cut}");
        }
        let (mut buffer, mut data) = (whole.to_vec(), Vec::new());
        assert!(take_chunks(&mut buffer, &mut data).unwrap());
        assert_eq!(
            (buffer.as_slice(), data.as_slice()),
            (&b""[..], &b"hello"[..])
        );
        assert!(!take_chunks(&mut b"1\r\nx\r\n2".to_vec(), &mut data).unwrap());
        assert!(take_chunk(&mut b"x\r\n".to_vec()).is_err());
    }

    #[test]
    fn last_usage_counts() {
        let events = b"data: {\"usage\":null}\n\ndata: {\"usage\":{\"completion_tokens\":7}}\n\n\
            data: [DONE]\n\n";
        assert_eq!(usage(events), Some(7));
        assert_eq!(usage(b"data: [DONE]\n\n"), None);
    }

    #[test]
    fn status_and_headers_are_parsed() {
        let head = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 12\r\n\r\n";
        assert_eq!(status(head).unwrap(), 503);
        assert_eq!(header(head, "content-length"), Some("12"));
        assert_eq!(header(head, "etag"), None);
    }
}
