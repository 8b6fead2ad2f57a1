//! Who listens on the server's port, and whether the hub answers.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use loquat_store::HubOptions;
use loquat_store::hub;
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Port {
    Free,
    /// A server of ours has it.
    Loquat {
        version: String,
    },
    /// Somebody else has it.
    Taken,
    /// Nobody has it, and it cannot be had.
    Refused(String),
}

/// Looks by taking the port for a moment.
pub fn port(address: SocketAddr) -> Port {
    match TcpListener::bind(address) {
        Ok(_) => Port::Free,
        Err(error) if error.kind() == ErrorKind::AddrInUse => match loquat_version(address) {
            Some(version) => Port::Loquat { version },
            None => Port::Taken,
        },
        Err(error) => Port::Refused(error.to_string()),
    }
}

/// For a neighbour on this machine.
const NEIGHBOUR: Duration = Duration::from_secs(1);

/// Other servers have `/version` too, so the API's description is asked whose it is.
fn loquat_version(address: SocketAddr) -> Option<String> {
    let description = get(address, "/openapi.json")?;
    let info = &description["info"];
    let is_ours = info["title"] == "Loquat";
    is_ours.then(|| info["version"].as_str().unwrap_or("?").to_owned())
}

fn get(address: SocketAddr, path: &str) -> Option<Value> {
    /// Several times what ours has.
    const MOST_BYTES: u64 = 4 << 20;
    let mut stream = TcpStream::connect_timeout(&address, NEIGHBOUR).ok()?;
    stream.set_read_timeout(Some(NEIGHBOUR)).ok()?;
    stream.set_write_timeout(Some(NEIGHBOUR)).ok()?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8(answer).ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    serde_json::from_str(body).ok()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hub {
    /// Whatever its status, somebody is there.
    Answers { name: String, status: u16 },
    /// In words that name it.
    Silent(String),
    /// It was not asked, as somebody wants.
    Offline { name: String },
}

const HUB_PATIENCE: Duration = Duration::from_secs(3);

pub fn hub() -> Hub {
    reach(HubOptions::default())
}

fn reach(options: HubOptions) -> Hub {
    let hub = match hub::Hub::open(options) {
        Ok(hub) => hub,
        Err(error) => return Hub::Silent(error.to_string()),
    };
    let name = hub.name().to_owned();
    if hub.is_offline() {
        return Hub::Offline { name };
    }
    match hub.ping(HUB_PATIENCE) {
        Ok(status) => Hub::Answers { name, status },
        Err(error) => Hub::Silent(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// A server that gives everybody this answer.
    fn answering(answer: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut request = [0; 1024];
                let _ = (&stream).read(&mut request);
                let _ = (&stream).write_all(answer.as_bytes());
            }
        });
        address
    }

    #[test]
    fn a_port_s_owner_is_told() {
        let ours = "HTTP/1.0 200 OK\r\n\r\n{\"info\": {\"title\": \"Loquat\", \"version\": \"9\"}}";
        let version = "9".to_owned();
        assert_eq!(port(answering(ours)), Port::Loquat { version });
        for other in ["HTTP/1.0 200 OK\r\n\r\n{\"info\": {}}", "SSH-2.0\r\n", ""] {
            assert_eq!(port(answering(other)), Port::Taken, "{other:?}");
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        assert_eq!(port(address), Port::Free);
        // One that listens and never answers.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(port(silent.local_addr().unwrap()), Port::Taken);
    }

    #[test]
    fn any_status_of_the_hub_is_an_answer() {
        for (answer, status) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200),
            ("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", 503),
            (
                "HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",
                302,
            ),
        ] {
            let name = format!("http://{}", answering(answer));
            assert_eq!(reach(at(&name)), Hub::Answers { name, status });
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let nobody = listener.local_addr().unwrap();
        drop(listener);
        for endpoint in [&format!("http://{nobody}"), "nonsense", "http://"] {
            assert!(matches!(reach(at(endpoint)), Hub::Silent(_)), "{endpoint}");
        }
        let offline = HubOptions {
            offline: true,
            ..at("http://hub.example")
        };
        assert!(matches!(reach(offline), Hub::Offline { .. }));
    }

    fn at(endpoint: &str) -> HubOptions {
        HubOptions {
            endpoint: Some(endpoint.to_owned()),
            ..HubOptions::default()
        }
    }
}
