//! Responses and their faults on the wire.

use std::io::{self, Write};
use std::net::TcpStream;
use std::ops::{ControlFlow, Range};
use std::thread;
use std::time::{Duration, Instant};

use crate::http::{self, Head};
use crate::{FakeFile, HubFault, ServerState, hexadecimal};

/// Small enough for a steady throttled transfer.
const CHUNK: usize = 16 * 1024;

pub(crate) struct Response {
    status: u16,
    headers: Vec<(&'static str, String)>,
    content: Vec<u8>,
    is_file: bool,
    end: BodyEnd,
}

enum BodyEnd {
    Complete,
    /// The server closes the connection after this many bytes.
    Truncated(usize),
    /// The server stalls after this many bytes; the client must close the connection.
    Stalled(usize),
}

impl Response {
    pub(crate) fn content(status: u16, content: Vec<u8>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            content,
            is_file: false,
            end: BodyEnd::Complete,
        }
    }

    pub(crate) fn empty(status: u16, headers: Vec<(&'static str, String)>) -> Self {
        Self {
            headers,
            ..Self::content(status, Vec::new())
        }
    }

    pub(crate) fn error(status: u16, code: &str) -> Self {
        Self::empty(status, vec![("X-Error-Code", code.to_owned())])
    }

    pub(crate) fn file(file: &FakeFile, head: &Head, fault: Option<HubFault>) -> Self {
        let mut content = file.content.clone();
        let mut etag = file.etag();
        match fault {
            Some(HubFault::Corrupt) => content.iter_mut().for_each(|byte| *byte ^= 1),
            Some(HubFault::Changed) => {
                content.iter_mut().for_each(|byte| *byte ^= 2);
                etag = hexadecimal(&etag.as_bytes()[..20]);
            }
            _ => {}
        }
        let end = match fault {
            Some(HubFault::Truncate(bytes)) => BodyEnd::Truncated(bytes),
            Some(HubFault::Stall(bytes)) => BodyEnd::Stalled(bytes),
            _ => BodyEnd::Complete,
        };
        let etag = format!("\"{etag}\"");
        let range = requested_range(head, &etag).filter(|_| fault != Some(HubFault::IgnoreRange));
        let size = content.len();
        let mut headers = vec![("ETag", etag), ("Accept-Ranges", "bytes".to_owned())];
        let (status, content) = match range {
            None => (200, content),
            Some(range) if range.start >= size || fault == Some(HubFault::RefuseRange) => {
                headers.push(("Content-Range", format!("bytes */{size}")));
                (416, Vec::new())
            }
            Some(range) => {
                let range = range.start..range.end.min(size);
                let last = range.end - 1;
                headers.push((
                    "Content-Range",
                    format!("bytes {}-{last}/{size}", range.start),
                ));
                (206, content[range].to_vec())
            }
        };
        Self {
            status,
            headers,
            content,
            is_file: true,
            end,
        }
    }

    pub(crate) fn with(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Returns whether the connection may be reused.
    pub(crate) fn send(
        self,
        mut connection: &TcpStream,
        head: &Head,
        state: &ServerState,
    ) -> io::Result<ControlFlow<()>> {
        http::write(
            &mut connection,
            self.status,
            &self.headers,
            self.content.len(),
        )?;
        if head.method == "HEAD" {
            return Ok(ControlFlow::Continue(()));
        }
        let (bytes, flow) = match self.end {
            BodyEnd::Complete => (self.content.len(), ControlFlow::Continue(())),
            BodyEnd::Truncated(bytes) | BodyEnd::Stalled(bytes) => (bytes, ControlFlow::Break(())),
        };
        let mut content = &self.content[..bytes.min(self.content.len())];
        let began = Instant::now();
        let mut sent = 0;
        while !content.is_empty() {
            let bytes = content.len().min(CHUNK);
            let bytes = if self.is_file {
                state.reserve(bytes)
            } else {
                bytes
            };
            let (chunk, rest) = content.split_at(bytes);
            connection.write_all(chunk)?;
            content = rest;
            sent += bytes as u64;
            let pace = state.activity().bytes_per_second;
            if let Some(pace) = pace {
                let send_at = began + Duration::from_secs_f64(sent as f64 / pace as f64);
                thread::sleep(send_at.saturating_duration_since(Instant::now()));
            }
        }
        if let BodyEnd::Stalled(_) = self.end {
            // Returns when the client closes the connection.
            io::copy(&mut connection, &mut io::sink())?;
        }
        Ok(flow)
    }
}

/// The requested byte range; `None` for the whole file.
fn requested_range(head: &Head, etag: &str) -> Option<Range<usize>> {
    if head.header("if-range").is_some_and(|known| known != etag) {
        return None;
    }
    let (start, last) = head
        .header("range")?
        .strip_prefix("bytes=")?
        .split_once('-')?;
    let end = match last {
        "" => usize::MAX,
        last => last.parse::<usize>().ok()?.checked_add(1)?,
    };
    Some(start.parse().ok()?..end)
}
