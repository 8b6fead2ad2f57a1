//! Connections: accepting them, enforcing their limits, and graceful shutdown.
//!
//! When a client leaves, its requests are cancelled. A client that half-closes its connection still
//! gets its answer: to tell the two apart, the server sends something harmless that a client who has
//! left rejects. Over TLS a half-closed connection counts as closed.

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
use crate::trim_memory::trim_when_idle;

use accept::Connections;
pub use browser::{cors, guard};
use connection::{ENDING, ServerContext};
pub use identify::{MAX_TOKENS_HEADER, MODEL_HEADER, SYSTEM_HEADER, catch_panics, identify};
pub use incoming::{Bodies, read_body};
pub use outgoing::hold;
pub use tls::{Certified, Tls, TlsError};
pub use traffic::Traffic;
pub use work::bound;

/// A bound server that does not serve yet.
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
    /// Binds the address; nothing is served yet. Port 0 chooses a free one.
    pub async fn bind(config: Config, opener: Arc<dyn Opener>) -> Result<Self, ServeError> {
        let requested = SocketAddr::new(config.server.host, config.server.port);
        let failed = |source| ServeError::Listen {
            address: requested,
            source,
        };
        let app = App::new(config, opener);
        app.tls.replace(Certified::read(&app.config())?);
        let listener = TcpListener::bind(requested).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self {
            app,
            listener,
            address,
        })
    }

    /// Sets how SIGHUP and the admin API reload the configuration.
    pub fn reload_with(self, how: Reloading) -> Self {
        self.app.set_reloading(how);
        self
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Observes the server, also while it serves.
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
        for warning in app.config().warnings() {
            tracing::warn!("{warning}");
        }
        app.models.preload();
        let (close, closing) = channel::channel(false);
        let context = ServerContext {
            app: Arc::clone(&app),
            router: router(&app),
            closing,
        };
        let mut connections = Connections::new(context);
        tokio::select! {
            () = connections.accept(&listener) => {}
            () = stop => {}
            () = trim_when_idle(&app.traffic) => {}
        }
        drop(listener);
        finish_requests(&app).await;
        close.send_replace(true);
        // Connections still open after that are ended.
        let _ = timeout(ENDING, connections.ended()).await;
        connections.end().await;
        let close = app.models.close();
        tokio::pin!(close);
        let mut closed = timeout(ENDING, &mut close).await.is_ok();
        if !closed && app.models.are_storing() {
            closed = timeout(STORING, &mut close).await.is_ok();
        }
        if !closed {
            // A model that is being loaded cannot be interrupted.
            tracing::warn!("some models are not closed; the process ends without closing them");
        }
    }
}

/// How long engines may store cached prefixes on disk after they were told to end, as they limit
/// themselves.
const STORING: Duration = Duration::from_secs(20);

/// Waits until no request uses a model, and cancels those that exceed the shutdown timeout. Probes and
/// admin requests are not waited for.
async fn finish_requests(app: &App) {
    app.traffic.stop();
    let limit = app.config().server.shutdown_timeout;
    if timeout(limit, app.traffic.idle()).await.is_err() {
        tracing::warn!(
            requests = app.traffic.working(),
            "cancelling requests that are still running"
        );
        app.in_flight.stop_all();
        // Time to notify their clients.
        let _ = timeout(ENDING, app.traffic.idle()).await;
    }
}

/// A server's current load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// HTTP requests between the end of their headers and the end of their answer.
    pub requests: usize,
    /// Those of them that generate.
    pub generating: usize,
    /// Requests that count against a key's concurrency limit.
    pub admitted: usize,
    /// In the engines: running sequences and queued requests.
    pub running: usize,
    pub waiting: usize,
    /// KV tokens reserved for the running sequences.
    pub kv_reserved: usize,
}

/// Reads a server's load.
#[derive(Clone)]
pub struct Observer(Arc<App>);

impl Observer {
    /// Reports each token's time from the engine to the socket, on later connections. Only the
    /// first watcher is set.
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
