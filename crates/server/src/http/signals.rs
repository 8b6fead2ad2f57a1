//! Signal handling.

use std::sync::Arc;

use super::Server;
use crate::app::App;

impl Server {
    /// Serves until SIGINT or SIGTERM starts a graceful shutdown; a second signal stops at once.
    /// SIGHUP reloads the configuration.
    #[cfg(unix)]
    pub async fn run(self) -> std::io::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};

        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let hangups = signal(SignalKind::hangup())?;
        let app = Arc::clone(&self.app);
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let signalled = async move {
            let mut stop_signal = async || {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
            };
            stop_signal().await;
            tracing::info!("stopping; a second signal stops at once");
            // Fails only if the server has ended already.
            let _ = stop.send(());
            stop_signal().await;
        };
        tokio::select! {
            () = self.serve(async { stopped.await.unwrap_or_default() }) => {}
            () = signalled => tracing::warn!("stopped at once"),
            () = reload_on(hangups, app) => {}
        }
        Ok(())
    }

    /// Serves until Ctrl-C starts a graceful shutdown; a second one stops at once.
    #[cfg(not(unix))]
    pub async fn run(self) -> std::io::Result<()> {
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let signalled = async move {
            tokio::signal::ctrl_c().await?;
            // Fails only if the server has ended already.
            let _ = stop.send(());
            tokio::signal::ctrl_c().await
        };
        tokio::select! {
            () = self.serve(async { stopped.await.unwrap_or_default() }) => Ok(()),
            ended = signalled => ended,
        }
    }
}

/// Each reload logs its own outcome.
#[cfg(unix)]
async fn reload_on(mut hangups: tokio::signal::unix::Signal, app: Arc<App>) {
    while hangups.recv().await.is_some() {
        let _ = app.reload().await;
    }
    std::future::pending().await
}
