//! `loquat serve` in a process of its own.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use loquat_server::resident_bytes_of;

use super::client::Client;

/// The longest that a start may take.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// How often readiness is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// By then the process has freed what only its start needed.
const SETTLE_TIME: Duration = Duration::from_millis(300);

/// One measured start.
pub struct ServerStart {
    pub ready: Duration,
    /// Resident bytes, if the system reports them.
    pub resident: Option<u64>,
}

/// Kills the process when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `loquat serve` with these arguments, waits until it is ready, and stops it.
pub async fn start(arguments: &[String]) -> io::Result<ServerStart> {
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
        if started.elapsed() > START_TIMEOUT {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the server did not become ready",
            ));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let ready = started.elapsed();
    tokio::time::sleep(SETTLE_TIME).await;
    Ok(ServerStart {
        ready,
        resident: resident_bytes_of(process.0.id()),
    })
}

/// The address that the server prints on stderr. Later output is read and dropped, so that the
/// pipe does not fill up.
fn address(child: &mut Child) -> io::Result<SocketAddr> {
    let stderr = child.stderr.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let mut lines = BufReader::new(stderr).lines();
    let mut last = String::new();
    for line in lines.by_ref() {
        let line = line?;
        if let Some(address) = address_in(&line) {
            std::thread::spawn(move || lines.for_each(drop));
            return Ok(address);
        }
        last = line;
    }
    let what = format!("the server exited before it listened: {last}");
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
    fn address_is_found_in_server_output() {
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
