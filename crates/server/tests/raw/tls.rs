//! The server over TLS.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use loquat_server::config::{self, Scope};
use loquat_server::{Config, Reloading, Server};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::http_client::HttpClient;
use crate::scripted::Scripted;
use crate::test_server::{self, TestServer, chat, long_reply};

const CHAT: &str = "/v1/chat/completions";

/// A configuration with a self-signed certificate, and the certificate to trust.
fn tls_config(folder: &std::path::Path) -> (Config, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let files = config::Tls {
        certificate: folder.join("certificate.pem"),
        private_key: folder.join("key.pem"),
    };
    std::fs::write(&files.certificate, made.cert.pem()).expect("a file");
    std::fs::write(&files.private_key, made.signing_key.serialize_pem()).expect("a file");
    let config = Config {
        tls: Some(files),
        ..test_server::config()
    };
    (config, made.cert.der().clone())
}

pub async fn connect(
    test_server: &TestServer,
    trusted: &CertificateDer<'static>,
    protocol: &[u8],
) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).expect("a root");
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(test_server.address)
        .await
        .expect("a connection");
    let name = ServerName::try_from("localhost").expect("a name");
    let connected = TlsConnector::from(Arc::new(config)).connect(name, stream);
    connected.await.expect("a handshake")
}

/// Waits until there is no load. The usual check does not use TLS.
async fn becomes_idle(test_server: &TestServer) {
    test_server
        .until("nothing stays behind", |load| *load == Default::default())
        .await;
}

#[tokio::test]
async fn tls_requests_are_served_and_cancelled() {
    let folder = tempfile::tempdir().expect("a folder");
    let (config, trusted) = tls_config(folder.path());
    let test_server = TestServer::with(long_reply(), config).await;
    let mut http = HttpClient::over(connect(&test_server, &trusted, b"http/1.1").await);
    http.post(CHAT, &chat(true)).await;
    http.begins_to_stream().await;
    drop(http);
    becomes_idle(&test_server).await;
    let mut http = HttpClient::over(connect(&test_server, &trusted, b"http/1.1").await);
    for _ in 0..2 {
        http.get("/health").await;
        assert_eq!(http.response().await.status, 200);
    }
    becomes_idle(&test_server).await;
}

#[tokio::test]
async fn alpn_selects_the_protocol() {
    let folder = tempfile::tempdir().expect("a folder");
    let (config, trusted) = tls_config(folder.path());
    let test_server = TestServer::with(Scripted::new("hello"), config).await;
    let stream = connect(&test_server, &trusted, b"h2").await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let mut client = crate::http2::handshake(stream, None).await;
    let answer = crate::http2::send(&mut client, CHAT, &chat(false)).await;
    assert_eq!(answer.status(), 200);
    drop(answer);
    becomes_idle(&test_server).await;
}

#[tokio::test]
async fn plain_text_clients_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut config, _) = tls_config(folder.path());
    config.limits.header_timeout = Duration::from_secs(1);
    let test_server = TestServer::with(Scripted::new("hello"), config).await;
    let mut silent = test_server.connect().await;
    silent.ends().await;
    // Without a limit that a busy machine could exceed.
    let (config, trusted) = tls_config(folder.path());
    let test_server = TestServer::with(Scripted::new("hello"), config).await;
    let mut plain = test_server.connect().await;
    plain.get("/health").await;
    // A TLS alert, then the end.
    while plain.stream.readable().await.is_ok() {
        let mut buffer = [0; 64];
        match plain.stream.try_read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    let mut http = HttpClient::over(connect(&test_server, &trusted, b"http/1.1").await);
    http.get("/health").await;
    assert_eq!(http.response().await.status, 200);
    becomes_idle(&test_server).await;
}

#[tokio::test]
async fn reload_replaces_or_refuses_certificates() {
    let [old, new] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let (mut before, old_trusted) = tls_config(old.path());
    before.keys[0].scopes = vec![Scope::Inference, Scope::Admin];
    let (files, new_trusted) = tls_config(new.path());
    let next = Arc::new(Mutex::new(Config {
        tls: files.tls,
        ..before.clone()
    }));
    let read = Arc::clone(&next);
    let server = Server::bind(before, Arc::new(Scripted::new("hello"))).await;
    let test_server = TestServer::serving(server.expect("a port").reload_with(Reloading {
        read: Box::new(move || Ok(read.lock().expect("no panic").clone())),
        log_level: Box::new(|_| Ok(())),
    }));
    let reload = async |trusted| {
        let mut http = HttpClient::over(connect(&test_server, trusted, b"http/1.1").await);
        http.post("/admin/v1/config/reload", &serde_json::json!({}))
            .await;
        http.response().await
    };
    let reloaded = reload(&old_trusted).await;
    assert_eq!(reloaded.json()["applied"], serde_json::json!(["tls"]));

    {
        let mut next = next.lock().expect("no panic");
        next.keys.clear();
        next.tls.as_mut().expect("files").private_key = new.path().join("missing.pem");
    }
    for _ in 0..2 {
        // The earlier keys and certificate stay in effect.
        let refused = reload(&new_trusted).await;
        assert_eq!(refused.status, 409, "{refused:?}");
        assert!(refused.body.contains("missing.pem"), "{refused:?}");
    }
    becomes_idle(&test_server).await;
}
