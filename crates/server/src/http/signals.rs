//! Signal handling.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::Server;
use crate::app::App;

/// How long closing takes at most after the shutdown timeout: telling clients, closing connections and
/// models, and sending the last traces and log lines.
const CLOSING: Duration = Duration::from_secs(35);
/// How long it takes at most after a second signal: sending the last traces and log lines.
const CLOSING_AT_ONCE: Duration = Duration::from_secs(5);

/// SIGINT and SIGTERM.
#[cfg(unix)]
struct StopSignals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl StopSignals {
    fn listen() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};

        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Ctrl-C.
#[cfg(not(unix))]
struct StopSignals(tokio::signal::windows::CtrlC);

#[cfg(not(unix))]
impl StopSignals {
    fn listen() -> io::Result<Self> {
        tokio::signal::windows::ctrl_c().map(Self)
    }

    async fn recv(&mut self) {
        self.0.recv().await;
    }
}

impl Server {
    /// Serves until SIGINT or SIGTERM starts a graceful shutdown; a second signal stops at once.
    /// SIGHUP reloads the configuration. The process ends soon after the shutdown timeout, even if
    /// something hangs.
    pub async fn run(self) -> io::Result<()> {
        let mut signals = StopSignals::listen()?;
        let app = Arc::clone(&self.app);
        enforce_shutdown(Arc::downgrade(&app)).await;
        let (stop, stopped) = oneshot::channel();
        let signalled = async move {
            signals.recv().await;
            tracing::info!("stopping; a second signal stops at once");
            // Fails only if the server has ended already.
            let _ = stop.send(());
            signals.recv().await;
        };
        tokio::select! {
            () = self.serve(async { stopped.await.unwrap_or_default() }) => {}
            () = signalled => tracing::warn!("stopped at once"),
            reloading = reload_on_hangup(app) => reloading?,
        }
        Ok(())
    }
}

/// Ends the process if it does not end by itself after a stop signal. The thread listens on its own,
/// so that nothing that blocks the server's threads keeps it from that. Returns when it listens.
async fn enforce_shutdown(app: Weak<App>) {
    let (listening, listens) = oneshot::channel();
    let thread = std::thread::Builder::new().name("loquat-exit".to_owned());
    let spawned = thread.spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let listened = runtime.and_then(|runtime| {
            runtime.block_on(async {
                let signals = StopSignals::listen()?;
                // Fails only if the server has been dropped.
                let _ = listening.send(());
                overstay(signals, &app).await;
                Ok(())
            })
        });
        if let Err(error) = listened {
            return warn_unenforced(&error);
        }
        // SAFETY: takes no pointer. Unlike `exit`, it does not run the destructors of libraries,
        // which may wait for a device that hangs.
        unsafe { libc::_exit(0) };
    });
    match spawned {
        Ok(_) => listens.await.unwrap_or_default(),
        Err(error) => warn_unenforced(&error),
    }
}

fn warn_unenforced(error: &io::Error) {
    tracing::warn!("the shutdown timeout cannot be enforced: {error}");
}

/// Returns when a process that was told to stop should have ended.
async fn overstay(mut signals: StopSignals, app: &Weak<App>) {
    signals.recv().await;
    let limit = app
        .upgrade()
        .map(|app| app.config().server.shutdown_timeout);
    let limit = limit.unwrap_or_default().saturating_add(CLOSING);
    if timeout(limit, signals.recv()).await.is_ok() {
        sleep(CLOSING_AT_ONCE).await;
    }
}

/// Each reload logs its own outcome.
#[cfg(unix)]
async fn reload_on_hangup(app: Arc<App>) -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut hangups = signal(SignalKind::hangup())?;
    while hangups.recv().await.is_some() {
        let _ = app.reload().await;
    }
    std::future::pending().await
}

#[cfg(not(unix))]
async fn reload_on_hangup(_: Arc<App>) -> io::Result<()> {
    std::future::pending().await
}
