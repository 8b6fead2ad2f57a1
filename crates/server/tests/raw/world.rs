//! A server at work, and the look behind it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loquat_server::config::{Config, Key, KeyHash, Model, Scope};
use loquat_server::{Load, Observer, Opener, Server};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::scripted::{MODEL, Scripted};
use crate::wire::Wire;

/// Longer than anything here takes on the slowest of machines.
pub const PATIENCE: Duration = Duration::from_secs(10);
pub const KEY: &str = "the-key";

pub struct World {
    pub address: SocketAddr,
    observer: Observer,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<()>,
}

/// A model that talks for long: some 30 s, if nobody stops it.
pub fn talker() -> Scripted {
    Scripted {
        delay: Duration::from_millis(10),
        ..Scripted::new(&"la ".repeat(1000))
    }
}

pub fn config() -> Config {
    let mut config = Config {
        models: vec![Model::new(MODEL, "nowhere")],
        keys: vec![Key {
            name: "raw".to_owned(),
            hash: KeyHash(Sha256::digest(KEY).into()),
            scopes: vec![Scope::Inference],
            models: None,
            requests_per_minute: None,
            tokens_per_minute: None,
            concurrent: None,
        }],
        ..Config::default()
    };
    config.server.port = 0;
    config
}

/// A conversation of one word, as JSON.
pub fn chat(stream: bool) -> Value {
    json!({
        "model": MODEL,
        "messages": [{ "role": "user", "content": "sing" }],
        "stream": stream,
    })
}

impl World {
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
                // Dropping the world stops the server as well.
                let _ = stopped.await;
            })),
        }
    }

    pub async fn connect(&self) -> Wire {
        Wire::connect(self.address).await
    }

    pub fn load(&self) -> Load {
        self.observer.load()
    }

    /// Waits until the server's load is as described.
    pub async fn until(&self, what: &str, is: impl Fn(&Load) -> bool) {
        let began = Instant::now();
        while !is(&self.load()) {
            assert!(began.elapsed() < PATIENCE, "{what}: {:?}", self.load());
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// The server answers, and has nothing else to do.
    pub async fn is_well(&self) {
        let nothing = Load::default();
        self.until("nothing stays behind", |load| *load == nothing)
            .await;
        let mut wire = self.connect().await;
        let body = json!({ "model": MODEL, "prompt": "la" });
        wire.post("/tokenize", &body).await;
        let response = wire.response().await;
        assert_eq!(response.status, 200, "{response:?}");
        drop(wire);
        self.until("nothing comes back", |load| *load == nothing)
            .await;
    }

    pub fn tell_to_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    pub async fn stopped(self) {
        let ended = timeout(PATIENCE, self.served).await;
        ended.expect("in time").expect("without a panic");
    }
}
