//! A server in the hands of its operating system.

use std::sync::Arc;

use super::Server;
use crate::app::App;

impl Server {
    /// Serves until SIGINT or SIGTERM asks it to stop, which it does in order; a second of them
    /// ends everything at once. SIGHUP has the configuration read again.
    #[cfg(unix)]
    pub async fn run(self) -> std::io::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};

        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let hangups = signal(SignalKind::hangup())?;
        let app = Arc::clone(&self.app);
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let signalled = async move {
            let mut asked = async || {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
            };
            asked().await;
            tracing::info!("stopping; a second signal stops at once");
            // Gone only when the server has ended anyway.
            let _ = stop.send(());
            asked().await;
        };
        tokio::select! {
            () = self.serve(async { stopped.await.unwrap_or_default() }) => {}
            () = signalled => tracing::warn!("stopped at once"),
            () = reload_on(hangups, app) => {}
        }
        Ok(())
    }

    /// Serves until Ctrl-C asks it to stop, which it does in order; a second one ends everything
    /// at once.
    #[cfg(not(unix))]
    pub async fn run(self) -> std::io::Result<()> {
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let signalled = async move {
            tokio::signal::ctrl_c().await?;
            // Gone only when the server has ended anyway.
            let _ = stop.send(());
            tokio::signal::ctrl_c().await
        };
        tokio::select! {
            () = self.serve(async { stopped.await.unwrap_or_default() }) => Ok(()),
            ended = signalled => ended,
        }
    }
}

/// Each reload says itself in the log what came of it.
#[cfg(unix)]
async fn reload_on(mut hangups: tokio::signal::unix::Signal, app: Arc<App>) {
    while hangups.recv().await.is_some() {
        let _ = app.reload().await;
    }
    std::future::pending().await
}
