//! Connections: taking them, bounding them, and ending them in order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tokio::net::TcpListener;

use crate::app::App;
use crate::caller::Caller;
use crate::config::Config;
use crate::models::Opener;
use crate::router::router;

/// A server that listens, and serves once it is told to.
pub struct Server {
    app: Arc<App>,
    listener: TcpListener,
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {source}")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
}

impl Server {
    /// Binds the address; nothing is served yet. Port 0 takes any that is free.
    pub async fn bind(config: Config, opener: Arc<dyn Opener>) -> Result<Self, ServeError> {
        let address = SocketAddr::new(config.server.host, config.server.port);
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| ServeError::Listen { address, source })?;
        Ok(Self {
            app: App::new(config, opener),
            listener,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is ready, then refuses new work, lets requests end within the
    /// configured time, cancels the rest, and returns when everything is closed.
    pub async fn serve(self, stop: impl Future<Output = ()> + Send + 'static) {
        let Self { app, listener } = self;
        let served = axum::serve(listener, router(&app)).with_graceful_shutdown(stop);
        if let Err(error) = served.await {
            tracing::error!("{error}");
        }
    }
}

/// The outermost layer: gives a request its name and its caller.
pub async fn identify(State(_app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let caller = Caller {
        request_id: uuid::Uuid::new_v4().to_string().into(),
        key: None,
        received: Instant::now(),
    };
    request.extensions_mut().insert(caller);
    next.run(request).await
}
