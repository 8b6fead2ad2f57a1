//! Connections: taking them, bounding them, and ending them in order.
//!
//! A client that closes its side of a connection has left: what it asked for is cancelled. One
//! that half-closes and reads on is treated alike, since nothing tells it from one that is gone.

mod accept;
mod browser;
mod connection;
mod identify;
mod incoming;
mod outgoing;
mod signals;
mod socket;
mod tls;
mod traffic;
mod watch;
mod work;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch as channel;
use tokio::time::timeout;

use crate::app::App;
use crate::config::Config;
use crate::models::Opener;
use crate::reload::Reloading;
use crate::router::router;

use accept::Connections;
pub use browser::{cors, guard};
use connection::{Door, ENDING};
pub use identify::{catch_panics, identify};
pub use incoming::{Bodies, read_body};
pub use outgoing::hold;
pub use tls::{Certified, Tls, TlsError};
pub use traffic::Traffic;
pub use work::bound;

/// A server that listens, and serves once it is told to.
pub struct Server {
    app: Arc<App>,
    listener: TcpListener,
    address: SocketAddr,
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {source}")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl Server {
    /// Binds the address; nothing is served yet. Port 0 takes any that is free.
    pub async fn bind(config: Config, opener: Arc<dyn Opener>) -> Result<Self, ServeError> {
        let asked = SocketAddr::new(config.server.host, config.server.port);
        let failed = |source| ServeError::Listen {
            address: asked,
            source,
        };
        let app = App::new(config, opener);
        app.tls.replace(Certified::read(&app.config())?);
        let listener = TcpListener::bind(asked).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self {
            app,
            listener,
            address,
        })
    }

    /// Says how the configuration is read again, for SIGHUP and the admin API.
    pub fn reload_with(self, how: Reloading) -> Self {
        self.app.set_reloading(how);
        self
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A look at the server from outside, also while it serves.
    pub fn observer(&self) -> Observer {
        Observer(Arc::clone(&self.app))
    }

    /// Serves until `stop` is ready, then refuses new work, lets requests end within the
    /// configured time, cancels the rest, and returns when everything is closed. Dropping the
    /// future ends everything at once.
    pub async fn serve(self, stop: impl Future<Output = ()> + Send) {
        let Self {
            app,
            listener,
            address: _,
        } = self;
        for doubt in app.config().doubts() {
            tracing::warn!("{doubt}");
        }
        app.models.preload();
        let (close, closing) = channel::channel(false);
        let door = Door {
            app: Arc::clone(&app),
            router: router(&app),
            closing,
        };
        let mut connections = Connections::new(door);
        tokio::select! {
            () = connections.accept(&listener) => {}
            () = stop => {}
        }
        drop(listener);
        finish_requests(&app).await;
        close.send_replace(true);
        // What has not ended by then is ended.
        let _ = timeout(ENDING, connections.ended()).await;
        connections.end().await;
        if timeout(ENDING, app.models.close()).await.is_err() {
            // Nothing can hurry one that is being loaded.
            tracing::warn!("models that are not closed yet are left to the end of the process");
        }
    }
}

/// Returns when nothing uses a model: because all ended, or because their time was up. Probes and
/// operators, who may go on asking, are not waited for.
async fn finish_requests(app: &App) {
    app.traffic.stop();
    let patience = app.config().server.shutdown_timeout;
    if timeout(patience, app.traffic.idle()).await.is_err() {
        tracing::warn!(
            requests = app.traffic.working(),
            "requests that are still under way are cancelled"
        );
        app.in_flight.stop_all();
        // Time to tell their clients.
        let _ = timeout(ENDING, app.traffic.idle()).await;
    }
}

/// What a server has to do at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// HTTP requests between the end of their headers and the end of their answer.
    pub requests: usize,
    /// Those of them that generate.
    pub generating: usize,
    /// Of requests with keys: those that count against what their keys may do at once.
    pub admitted: usize,
    /// At the engines: sequences that compute, and requests that wait.
    pub running: usize,
    pub waiting: usize,
    /// KV tokens set aside for the running sequences.
    pub kv_reserved: usize,
}

/// Sees a server's load.
#[derive(Clone)]
pub struct Observer(Arc<App>);

impl Observer {
    /// Has somebody told of each token's time from the engine to the socket, on connections to
    /// come. Only the first to ask is.
    pub fn watch_tokens(&self, watcher: impl Fn(Duration) + Send + Sync + 'static) {
        self.0.metrics.watch_tokens(Arc::new(watcher));
    }

    pub fn load(&self) -> Load {
        let Self(app) = self;
        let keys = app.keys.list();
        let mut load = Load {
            requests: app.traffic.requests(),
            generating: app.in_flight.count(),
            admitted: keys.iter().map(|key| key.usage().running as usize).sum(),
            ..Load::default()
        };
        for stats in app.models.status().iter().filter_map(|model| model.stats) {
            load.running += stats.running;
            load.waiting += stats.waiting;
            load.kv_reserved += stats.kv_reserved;
        }
        load
    }
}
