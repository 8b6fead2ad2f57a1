//! An answer, and the ways in which it can go wrong on the wire.

use std::io::{self, Write};
use std::net::TcpStream;
use std::ops::{ControlFlow, Range};
use std::thread;
use std::time::{Duration, Instant};

use crate::http::{self, Head};
use crate::{Fault, File, State, hexadecimal};

/// Small enough that a throttled connection moves steadily.
const CHUNK: usize = 16 * 1024;

pub(crate) struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    content: Vec<u8>,
    is_file: bool,
    ends: Ends,
}

enum Ends {
    Well,
    /// The connection closes after so many bytes.
    Early(usize),
    /// The client has to close it after so many bytes.
    Never(usize),
}

impl Answer {
    pub(crate) fn content(status: u16, content: Vec<u8>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            content,
            is_file: false,
            ends: Ends::Well,
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

    pub(crate) fn file(file: &File, head: &Head, fault: Option<Fault>) -> Self {
        let mut content = file.content.clone();
        let mut etag = file.etag();
        match fault {
            Some(Fault::Corrupt) => content.iter_mut().for_each(|byte| *byte ^= 1),
            Some(Fault::Changed) => {
                content.iter_mut().for_each(|byte| *byte ^= 2);
                etag = hexadecimal(&etag.as_bytes()[..20]);
            }
            _ => {}
        }
        let ends = match fault {
            Some(Fault::Truncate(bytes)) => Ends::Early(bytes),
            Some(Fault::Stall(bytes)) => Ends::Never(bytes),
            _ => Ends::Well,
        };
        let etag = format!("\"{etag}\"");
        let range = wanted(head, &etag).filter(|_| fault != Some(Fault::IgnoreRange));
        let size = content.len();
        let mut headers = vec![("ETag", etag), ("Accept-Ranges", "bytes".to_owned())];
        let (status, content) = match range {
            None => (200, content),
            Some(range) if range.start >= size || fault == Some(Fault::RefuseRange) => {
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
            ends,
        }
    }

    pub(crate) fn with(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Says whether the connection may be used again.
    pub(crate) fn send(
        self,
        mut connection: &TcpStream,
        head: &Head,
        state: &State,
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
        let (bytes, flow) = match self.ends {
            Ends::Well => (self.content.len(), ControlFlow::Continue(())),
            Ends::Early(bytes) | Ends::Never(bytes) => (bytes, ControlFlow::Break(())),
        };
        let content = &self.content[..bytes.min(self.content.len())];
        let began = Instant::now();
        let mut sent = 0;
        for chunk in content.chunks(CHUNK) {
            connection.write_all(chunk)?;
            sent += chunk.len() as u64;
            let pace = {
                let mut memory = state.memory();
                if self.is_file {
                    memory.sent += chunk.len() as u64;
                }
                memory.bytes_per_second
            };
            if let Some(pace) = pace {
                let due = began + Duration::from_secs_f64(sent as f64 / pace as f64);
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        }
        if let Ends::Never(_) = self.ends {
            // Ends when the client has had enough.
            io::copy(&mut connection, &mut io::sink())?;
        }
        Ok(flow)
    }
}

/// The bytes that are asked for; `None` is all of them.
fn wanted(head: &Head, etag: &str) -> Option<Range<usize>> {
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
