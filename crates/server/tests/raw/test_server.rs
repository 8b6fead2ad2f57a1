//! A server under test, and its load.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loquat_server::config::{Config, Key, KeyHash, ModelConfig};
use loquat_server::{Load, Observer, Opener, Server};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::http_client::HttpClient;
use crate::scripted::{MODEL, Scripted};

/// Only a hang takes longer.
pub const TIMEOUT: Duration = Duration::from_secs(300);
pub const KEY: &str = "the-key";

pub struct TestServer {
    pub address: SocketAddr,
    observer: Observer,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<()>,
}

/// A model with a reply that takes at least five minutes.
pub fn long_reply() -> Scripted {
    Scripted {
        delay: Duration::from_millis(100),
        ..Scripted::new(&"la ".repeat(1000))
    }
}

/// Without a limit that a busy machine could exceed.
pub fn config() -> Config {
    let mut config = Config {
        models: vec![ModelConfig::new(MODEL, "nowhere")],
        keys: vec![Key::new("raw", KeyHash::digest(KEY))],
        ..Config::default()
    };
    config.server.port = 0;
    config.server.shutdown_timeout = TIMEOUT;
    config.limits.header_timeout = TIMEOUT;
    config.limits.body_timeout = TIMEOUT;
    config.limits.write_timeout = TIMEOUT;
    config.limits.idle_timeout = TIMEOUT;
    config
}

/// A chat request.
pub fn chat(stream: bool) -> Value {
    json!({
        "model": MODEL,
        "messages": [{ "role": "user", "content": "sing" }],
        "stream": stream,
    })
}

impl TestServer {
    pub async fn start(model: Scripted) -> Self {
        Self::with(model, config()).await
    }

    pub async fn with(model: impl Opener, config: Config) -> Self {
        let server = Server::bind(config, Arc::new(model)).await.expect("a port");
        Self::serving(server)
    }

    pub fn serving(server: Server) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self {
            address: server.address(),
            observer: server.observer(),
            stop: Some(stop),
            served: tokio::spawn(server.serve(async {
                // Dropping the sender stops the server too.
                let _ = stopped.await;
            })),
        }
    }

    pub async fn connect(&self) -> HttpClient {
        HttpClient::connect(self.address).await
    }

    pub fn load(&self) -> Load {
        self.observer.load()
    }

    /// Waits until the load satisfies `is`.
    pub async fn until(&self, what: &str, is: impl Fn(&Load) -> bool) {
        let began = Instant::now();
        while !is(&self.load()) {
            assert!(began.elapsed() < TIMEOUT, "{what}: {:?}", self.load());
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// The server answers, and has no other load.
    pub async fn is_healthy_and_idle(&self) {
        let none = Load::default();
        self.until("the load is zero", |load| *load == none).await;
        let mut client = self.connect().await;
        let body = json!({ "model": MODEL, "prompt": "la" });
        client.post("/tokenize", &body).await;
        let response = client.response().await;
        assert_eq!(response.status, 200, "{response:?}");
        drop(client);
        self.until("the load stays zero", |load| *load == none)
            .await;
    }

    pub fn request_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    pub async fn stopped(self) {
        let ended = timeout(TIMEOUT, self.served).await;
        ended.expect("in time").expect("without a panic");
    }
}
