//! TLS with the machine's trusted certificates.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::thread;

use rcgen::CertifiedKey;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::fixture::{child, hub_from_env, repo};

const LISTING: &str = r#"{"sha": "0123456789abcdef", "siblings": [{"rfilename": "config.json"}]}"#;

/// Serves a listing to this many connections; those that fail the handshake get none.
fn serve(listener: TcpListener, identity: &CertifiedKey<rcgen::KeyPair>, connections: usize) {
    let key = PrivatePkcs8KeyDer::from(identity.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![identity.cert.der().clone()], key.into())
        .unwrap();
    let config = Arc::new(config);
    thread::spawn(move || {
        for connection in listener.incoming().flatten().take(connections) {
            let session = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = BufReader::new(StreamOwned::new(session, connection));
            let mut line = String::new();
            while stream.read_line(&mut line).is_ok_and(|read| read > 2) {
                line.clear();
            }
            let length = LISTING.len();
            // A client that does not trust the certificate has disconnected.
            let _ = write!(
                stream.get_mut(),
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{LISTING}"
            );
            let _ = stream.read(&mut [0]);
        }
    });
}

fn list(port: u16, certificates: &Path) -> Output {
    let url = format!("https://localhost:{port}");
    child("hub::tls::list_in_another_process", &url, certificates)
        .env("SSL_CERT_FILE", certificates)
        .env_remove("SSL_CERT_DIR")
        .output()
        .unwrap()
}

#[test]
fn only_system_certificates_are_trusted() {
    let folder = tempfile::tempdir().unwrap();
    let names = || vec!["localhost".to_owned()];
    let trusted = rcgen::generate_simple_self_signed(names()).unwrap();
    let other = rcgen::generate_simple_self_signed(names()).unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    serve(listener, &trusted, usize::MAX);
    for (name, identity, trusted) in [("trusted", &trusted, true), ("other", &other, false)] {
        let file = folder.path().join(name);
        fs::write(&file, identity.cert.pem()).unwrap();
        let output = list(port, &file);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), trusted, "{name}: {stderr}");
        if !trusted {
            assert!(stderr.contains("certificate"), "{stderr}");
        }
    }
}

/// Not a test by itself: certificates are read once, from the environment.
#[test]
#[ignore = "run by other tests"]
fn list_in_another_process() {
    if let Some((hub, _)) = hub_from_env() {
        let listing = hub
            .listing(&repo())
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(listing.files[0].path, "config.json");
    }
}
