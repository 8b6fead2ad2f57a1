//! The state of the server's port, and whether the hub is reachable.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use loquat_store::HubOptions;
use loquat_store::hub;
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Port {
    Free,
    /// A Loquat server listens on it.
    Loquat {
        version: String,
    },
    /// Another program listens on it.
    Taken,
    /// It cannot be bound.
    Refused(String),
}

/// Checks by binding the port for a moment.
pub fn port(address: SocketAddr) -> Port {
    port_within(address, LOCAL_TIMEOUT)
}

fn port_within(address: SocketAddr, timeout: Duration) -> Port {
    match TcpListener::bind(address) {
        Ok(_) => Port::Free,
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            match loquat_version(address, timeout) {
                Some(version) => Port::Loquat { version },
                None => Port::Taken,
            }
        }
        Err(error) => Port::Refused(error.to_string()),
    }
}

/// For servers on this machine.
const LOCAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Other servers also have `/version`, so the title in the API description decides.
fn loquat_version(address: SocketAddr, timeout: Duration) -> Option<String> {
    let description = get(address, "/openapi.json", timeout)?;
    let info = &description["info"];
    let is_ours = info["title"] == "Loquat";
    is_ours.then(|| info["version"].as_str().unwrap_or("?").to_owned())
}

fn get(address: SocketAddr, path: &str, timeout: Duration) -> Option<Value> {
    /// Several times the size of ours.
    const MAX_BYTES: u64 = 4 << 20;
    let mut stream = TcpStream::connect_timeout(&address, timeout).ok()?;
    stream.set_read_timeout(Some(timeout)).ok()?;
    stream.set_write_timeout(Some(timeout)).ok()?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.take(MAX_BYTES).read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8(answer).ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    serde_json::from_str(body).ok()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hub {
    /// Any status.
    Responds { name: String, status: u16 },
    /// Why, with its name.
    Unreachable(String),
    /// Not contacted in offline mode.
    Offline { name: String },
}

const HUB_TIMEOUT: Duration = Duration::from_secs(3);

pub fn hub() -> Hub {
    reach(HubOptions::default(), HUB_TIMEOUT)
}

fn reach(options: HubOptions, timeout: Duration) -> Hub {
    let hub = match hub::Hub::open(options) {
        Ok(hub) => hub,
        Err(error) => return Hub::Unreachable(error.to_string()),
    };
    let name = hub.name().to_owned();
    if hub.is_offline() {
        return Hub::Offline { name };
    }
    match hub.ping(timeout) {
        Ok(status) => Hub::Responds { name, status },
        Err(error) => Hub::Unreachable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Only a hang takes this long.
    const GENEROUS: Duration = Duration::from_secs(300);

    /// A server that always sends this response.
    fn responding(response: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut request = [0; 1024];
                let _ = (&stream).read(&mut request);
                let _ = (&stream).write_all(response.as_bytes());
            }
        });
        address
    }

    #[test]
    fn owner_of_port_is_detected() {
        let ours = "HTTP/1.0 200 OK\r\n\r\n{\"info\": {\"title\": \"Loquat\", \"version\": \"9\"}}";
        let version = "9".to_owned();
        assert_eq!(
            port_within(responding(ours), GENEROUS),
            Port::Loquat { version }
        );
        for other in ["HTTP/1.0 200 OK\r\n\r\n{\"info\": {}}", "SSH-2.0\r\n", ""] {
            assert_eq!(
                port_within(responding(other), GENEROUS),
                Port::Taken,
                "{other:?}"
            );
        }
        // Another program may take it in between, but not every time.
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
        assert!((0..100).any(|_| port(free().unwrap()) == Port::Free));
        // One that listens and never responds.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = silent.local_addr().unwrap();
        assert_eq!(port_within(silent, Duration::from_millis(10)), Port::Taken);
    }

    #[test]
    fn any_hub_status_counts_as_reachable() {
        for (answer, status) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200),
            ("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", 503),
            (
                "HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",
                302,
            ),
        ] {
            let name = format!("http://{}", responding(answer));
            assert_eq!(reach(at(&name), GENEROUS), Hub::Responds { name, status });
        }
        // Nobody listens on the reserved port.
        for endpoint in ["http://127.0.0.1:1", "nonsense", "http://"] {
            assert!(
                matches!(reach(at(endpoint), GENEROUS), Hub::Unreachable(_)),
                "{endpoint}"
            );
        }
        let offline = HubOptions {
            offline: true,
            ..at("http://hub.example")
        };
        assert!(matches!(reach(offline, GENEROUS), Hub::Offline { .. }));
    }

    fn at(endpoint: &str) -> HubOptions {
        HubOptions {
            endpoint: Some(endpoint.to_owned()),
            ..HubOptions::default()
        }
    }
}
