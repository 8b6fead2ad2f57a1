//! The subset of HTTP/1.1 that hub clients use.

use std::io::{self, BufRead, Write};

pub(crate) struct Head {
    pub method: String,
    /// Percent-decoded, without the query.
    pub path: String,
    headers: Vec<(String, String)>,
}

impl Head {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Reads the next request; `None` if the connection has ended.
pub(crate) fn read(input: &mut impl BufRead) -> io::Result<Option<Head>> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (Some(method), Some(target)) = (words.next(), words.next()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let path = percent_decode(target.split('?').next().unwrap_or(target));
    let method = method.to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        input.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => {
                headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
            None => break,
        }
    }
    Ok(Some(Head {
        method,
        path,
        headers,
    }))
}

/// Writes the status line and headers of a response with `length` bytes of content.
pub(crate) fn write(
    output: &mut impl Write,
    status: u16,
    headers: &[(&str, String)],
    length: usize,
) -> io::Result<()> {
    let mut text = format!("HTTP/1.1 {status} Response\r\nContent-Length: {length}\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += "\r\n";
    output.write_all(text.as_bytes())
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escape = || {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            u8::from_str_radix(digits, 16).ok()
        };
        match (first, escape()) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
