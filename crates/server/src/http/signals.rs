//! Signal handling.

use std::sync::Arc;
use std::time::Duration;

use super::Server;
use crate::app::App;

/// How long closing takes at most after the shutdown timeout: telling clients, closing connections and
/// models, and sending the last traces and log lines.
const CLOSING: Duration = Duration::from_secs(15);

/// Ends the process after this time, whatever its other threads wait for.
fn end_process_after(limit: Duration) {
    let ended = std::thread::Builder::new()
        .name("loquat-exit".to_owned())
        .spawn(move || {
            std::thread::sleep(limit);
            // SAFETY: takes no pointer. Unlike `exit`, it does not run the destructors of libraries,
            // which may wait for a device that hangs.
            unsafe { libc::_exit(0) };
        });
    if let Err(error) = ended {
        tracing::warn!("the shutdown timeout cannot be enforced: {error}");
    }
}

impl Server {
    /// Serves until SIGINT or SIGTERM starts a graceful shutdown; a second signal stops at once.
    /// SIGHUP reloads the configuration. The process ends soon after the shutdown timeout, even if
    /// something hangs.
    #[cfg(unix)]
    pub async fn run(self) -> std::io::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};

        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let hangups = signal(SignalKind::hangup())?;
        let app = Arc::clone(&self.app);
        let stopping = Arc::clone(&self.app);
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
            end_process_after(stopping.config().server.shutdown_timeout + CLOSING);
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
        let stopping = Arc::clone(&self.app);
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let signalled = async move {
            tokio::signal::ctrl_c().await?;
            end_process_after(stopping.config().server.shutdown_timeout + CLOSING);
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
