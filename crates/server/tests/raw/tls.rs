//! The same behind TLS.

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

use crate::scripted::Scripted;
use crate::wire::Wire;
use crate::world::{self, World, chat, talker};

const CHAT: &str = "/v1/chat/completions";

/// A server's configuration with a certificate of its own, and whom to trust to believe it.
fn certified(folder: &std::path::Path) -> (Config, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let files = config::Tls {
        certificate: folder.join("certificate.pem"),
        private_key: folder.join("key.pem"),
    };
    std::fs::write(&files.certificate, made.cert.pem()).expect("a file");
    std::fs::write(&files.private_key, made.signing_key.serialize_pem()).expect("a file");
    let config = Config {
        tls: Some(files),
        ..world::config()
    };
    (config, made.cert.der().clone())
}

pub async fn connect(
    world: &World,
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
    let stream = TcpStream::connect(world.address)
        .await
        .expect("a connection");
    let name = ServerName::try_from("localhost").expect("a name");
    let connected = TlsConnector::from(Arc::new(config)).connect(name, stream);
    connected.await.expect("a handshake")
}

/// Waits until nothing stays behind; the usual look speaks without TLS.
async fn is_idle(world: &World) {
    world
        .until("nothing stays behind", |load| *load == Default::default())
        .await;
}

#[tokio::test]
async fn conversations_are_served_and_cancelled_behind_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    let (config, trusted) = certified(folder.path());
    let world = World::with(talker(), config).await;
    let mut wire = Wire::over(connect(&world, &trusted, b"http/1.1").await);
    wire.post(CHAT, &chat(true)).await;
    wire.begins_to_stream().await;
    drop(wire);
    is_idle(&world).await;
    let mut wire = Wire::over(connect(&world, &trusted, b"http/1.1").await);
    for _ in 0..2 {
        wire.get("/health").await;
        assert_eq!(wire.response().await.status, 200);
    }
    is_idle(&world).await;
}

#[tokio::test]
async fn the_protocol_is_agreed_on_in_the_handshake() {
    let folder = tempfile::tempdir().expect("a folder");
    let (config, trusted) = certified(folder.path());
    let world = World::with(Scripted::new("hello"), config).await;
    let stream = connect(&world, &trusted, b"h2").await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let mut client = crate::http2::handshake(stream, None).await;
    let answer = crate::http2::ask(&mut client, CHAT, &chat(false)).await;
    assert_eq!(answer.status(), 200);
    drop(answer);
    is_idle(&world).await;
}

#[tokio::test]
async fn who_does_not_speak_tls_is_not_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut config, trusted) = certified(folder.path());
    config.limits.header_timeout = Duration::from_millis(200);
    let world = World::with(Scripted::new("hello"), config).await;
    let mut silent = world.connect().await;
    silent.ends().await;
    let mut plain = world.connect().await;
    plain.get("/health").await;
    // An alert, which is no HTTP; then the end.
    while plain.stream.readable().await.is_ok() {
        let mut buffer = [0; 64];
        match plain.stream.try_read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    let mut wire = Wire::over(connect(&world, &trusted, b"http/1.1").await);
    wire.get("/health").await;
    assert_eq!(wire.response().await.status, 200);
    is_idle(&world).await;
}

#[tokio::test]
async fn another_certificate_takes_effect_with_a_reload_or_refuses_it() {
    let [old, new] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let (mut before, old_trusted) = certified(old.path());
    before.keys[0].scopes = vec![Scope::Inference, Scope::Admin];
    let (files, new_trusted) = certified(new.path());
    let next = Arc::new(Mutex::new(Config {
        tls: files.tls,
        ..before.clone()
    }));
    let read = Arc::clone(&next);
    let server = Server::bind(before, Arc::new(Scripted::new("hello"))).await;
    let world = World::serving(server.expect("a port").reload_with(Reloading {
        read: Box::new(move || Ok(read.lock().expect("no panic").clone())),
        log_level: Box::new(|_| Ok(())),
    }));
    let reload = async |trusted| {
        let mut wire = Wire::over(connect(&world, trusted, b"http/1.1").await);
        wire.post("/admin/v1/config/reload", &serde_json::json!({}))
            .await;
        wire.response().await
    };
    let reloaded = reload(&old_trusted).await;
    assert_eq!(reloaded.json()["applied"], serde_json::json!(["tls"]));

    {
        let mut next = next.lock().expect("no panic");
        next.keys.clear();
        next.tls.as_mut().expect("files").private_key = new.path().join("missing.pem");
    }
    for _ in 0..2 {
        // The keys and the certificate from before are in force: both are asked for.
        let refused = reload(&new_trusted).await;
        assert_eq!(refused.status, 409, "{refused:?}");
        assert!(refused.body.contains("missing.pem"), "{refused:?}");
    }
    is_idle(&world).await;
}
