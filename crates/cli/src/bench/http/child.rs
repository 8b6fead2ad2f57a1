//! The server as people start it: a process of its own.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use loquat_server::resident_bytes_of;

use super::client::Client;

/// How long a start may take before something is wrong.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often it is asked.
const BEAT: Duration = Duration::from_millis(2);
/// What a process frees after its start is free by then.
const REST: Duration = Duration::from_millis(300);

/// What a start came to.
pub struct Start {
    pub ready: Duration,
    /// Where the system tells.
    pub resident: Option<u64>,
}

/// Ends with this.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // One that ended by itself is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `loquat serve` with these arguments, waits until it is ready, and ends it.
pub async fn start(arguments: &[String]) -> io::Result<Start> {
    let started = Instant::now();
    let child = Command::new(std::env::current_exe()?)
        .arg("serve")
        .args(arguments)
        .args(["--port", "0"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut process = Process(child);
    let address = address(&mut process.0)?;
    let mut client = Client::connect(address).await?;
    while client.get("/health/ready").await? != 200 {
        if started.elapsed() > PATIENCE {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the server did not get ready",
            ));
        }
        tokio::time::sleep(BEAT).await;
    }
    let ready = started.elapsed();
    tokio::time::sleep(REST).await;
    Ok(Start {
        ready,
        resident: resident_bytes_of(process.0.id()),
    })
}

/// Where the server listens, as it says on stderr; whatever it says later is read and dropped,
/// lest it wait for a reader.
fn address(child: &mut Child) -> io::Result<SocketAddr> {
    let stderr = child.stderr.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let mut lines = BufReader::new(stderr).lines();
    let mut said = String::new();
    for line in lines.by_ref() {
        let line = line?;
        if let Some(address) = address_in(&line) {
            std::thread::spawn(move || lines.for_each(drop));
            return Ok(address);
        }
        said = line;
    }
    let what = format!("the server ended before it listened: {said}");
    Err(io::Error::other(what))
}

fn address_in(line: &str) -> Option<SocketAddr> {
    let (_, address) = line.split_once("http://")?;
    let end = address.find(|c: char| c.is_whitespace() || c == '/');
    address[..end.unwrap_or(address.len())].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_what_the_server_says() {
        for (line, expected) in [
            (
                "loquat serves m at http://127.0.0.1:4567",
                Some("127.0.0.1:4567"),
            ),
            ("at http://[::1]:80/ now", Some("[::1]:80")),
            ("http://localhost:80", None),
            ("warning: nothing", None),
        ] {
            let expected = expected.map(|address| address.parse().unwrap());
            assert_eq!(address_in(line), expected, "{line}");
        }
    }
}
