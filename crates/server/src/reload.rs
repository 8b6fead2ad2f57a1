//! Reloads the configuration: which changes apply at once, and which need a restart.

use std::error::Error;
use std::sync::{Arc, OnceLock};

use crate::app::App;
use crate::config::{self, Config};
use crate::http::{Certified, TlsError};

pub type ReadConfig = Box<dyn Fn() -> Result<Config, BoxError> + Send + Sync>;
pub type SetLogLevel = Box<dyn Fn(&str) -> Result<(), BoxError> + Send + Sync>;
/// An error from a callback that the embedding program supplies.
type BoxError = Box<dyn Error + Send + Sync>;

/// How to reload, set by the server's caller.
pub struct Reloading {
    /// Reads the configuration as at the start. It may block.
    pub read: ReadConfig,
    /// Changes the log level.
    pub log_level: SetLogLevel,
}

/// Serializes reloads.
#[derive(Default)]
pub struct Reloads {
    how: OnceLock<Arc<Reloading>>,
    turn: tokio::sync::Mutex<()>,
}

/// The options that a reload changed, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reconfigured {
    /// Applied now.
    pub applied: Vec<String>,
    /// Unchanged until a restart.
    pub needs_restart: Vec<String>,
}

/// Why a reload failed.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    #[error("this server was started without a configuration that can be reloaded")]
    NoSource,
    #[error("the configuration cannot be read: {0}")]
    Unreadable(BoxError),
    #[error("tls: {0}")]
    Tls(#[from] TlsError),
    #[error("log.level: {0}")]
    LogLevel(BoxError),
}

impl App {
    /// Sets how to [reload](Self::reload). Only the first call counts.
    pub fn set_reloading(&self, how: Reloading) {
        // A second call is ignored.
        let _ = self.reloading.how.set(Arc::new(how));
    }

    /// Reads the configuration and applies what can change at run time. On an error nothing
    /// changes.
    pub async fn reload(self: &Arc<Self>) -> Result<Reconfigured, ReloadError> {
        let _turn = self.reloading.turn.lock().await;
        let outcome = self.read_and_apply().await;
        match &outcome {
            Ok(report) => tracing::info!(
                applied = report.applied.join(", "),
                needs_restart = report.needs_restart.join(", "),
                "configuration reloaded"
            ),
            Err(error) => tracing::error!("configuration not reloaded: {error}"),
        }
        outcome
    }

    async fn read_and_apply(self: &Arc<Self>) -> Result<Reconfigured, ReloadError> {
        let how = self.reloading.how.get().ok_or(ReloadError::NoSource)?;
        let (app, how) = (Arc::clone(self), Arc::clone(how));
        let applied = tokio::task::spawn_blocking(move || {
            let config = (how.read)().map_err(ReloadError::Unreadable)?;
            app.reconfigure(config)
        });
        let applied = applied.await;
        applied.unwrap_or_else(|error| Err(ReloadError::Unreadable(error.into())))
    }

    /// Applies what can change at run time. Always reads the certificate again, so that a renewed
    /// one needs no restart.
    pub fn reconfigure(&self, mut config: Config) -> Result<Reconfigured, ReloadError> {
        let old = self.config();
        let mut report = Reconfigured::default();
        report.compare(&old, &mut config);
        let certified = Certified::read(&config)?;
        if old.log.level != config.log.level {
            match self.reloading.how.get() {
                Some(how) => {
                    (how.log_level)(&config.log.level).map_err(ReloadError::LogLevel)?;
                    report.applied.push("log.level".to_owned());
                }
                None => report.fixed("log.level", &old.log.level, &mut config.log.level),
            }
        }
        // No errors from here on.
        self.tls.replace(certified);
        self.keys.replace(&config.keys);
        let changes = self.models.reconfigure(&config);
        report.applied.extend(changes.describe());
        self.set_config(config);
        self.models.preload();
        Ok(report)
    }
}

impl Reconfigured {
    /// Records every difference, and reverts options that need a restart.
    fn compare(&mut self, old: &Config, new: &mut Config) {
        // Exhaustive: a new option must be classified here.
        let Config {
            server,
            tls,
            limits,
            cors,
            log,
            telemetry,
            responses,
            remote_media,
            memory,
            keys,
            models: _,
        } = old;
        self.compare_server(server, &mut new.server);
        match (tls, &new.tls) {
            (Some(old), Some(new)) => self.live("tls", old, new),
            _ => self.fixed("tls", tls, &mut new.tls),
        }
        self.live("limits", limits, &new.limits);
        self.live("cors", cors, &new.cors);
        let config::Log {
            level: _,
            format,
            content,
        } = log;
        self.fixed("log.format", format, &mut new.log.format);
        self.live("log.content", content, &new.log.content);
        self.fixed("telemetry", telemetry, &mut new.telemetry);
        self.live("responses", responses, &new.responses);
        self.live("remote_media", remote_media, &new.remote_media);
        self.live("memory", memory, &new.memory);
        self.live("keys", keys, &new.keys);
    }

    fn compare_server(&mut self, old: &config::Server, new: &mut config::Server) {
        let config::Server {
            host,
            port,
            shutdown_timeout,
            page,
            host_names,
            strict_fields,
            strict_limits,
            strict_model_names,
        } = old;
        self.fixed("server.host", host, &mut new.host);
        self.fixed("server.port", port, &mut new.port);
        self.fixed("server.page", page, &mut new.page);
        let timeout = &new.shutdown_timeout;
        self.live("server.shutdown_timeout", shutdown_timeout, timeout);
        self.live("server.host_names", host_names, &new.host_names);
        let fields = &new.strict_fields;
        self.live("server.strict_fields", strict_fields, fields);
        let limits = &new.strict_limits;
        self.live("server.strict_limits", strict_limits, limits);
        let names = &new.strict_model_names;
        self.live("server.strict_model_names", strict_model_names, names);
    }

    /// An option that is read at each use.
    fn live<T: PartialEq>(&mut self, name: &str, old: &T, new: &T) {
        if old != new {
            self.applied.push(name.to_owned());
        }
    }

    /// An option that is fixed at start.
    fn fixed<T: PartialEq + Clone>(&mut self, name: &str, old: &T, new: &mut T) {
        if old != new {
            self.needs_restart.push(name.to_owned());
            new.clone_from(old);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::config::{Cors, LogFormat, ModelConfig, Tls};
    use crate::testing::{Harness, MODEL};

    fn changed(change: impl Fn(&mut Config)) -> Config {
        let mut config = Harness::config();
        change(&mut config);
        config
    }

    #[tokio::test]
    async fn every_change_applies_or_needs_restart() {
        type Case = (
            fn(&mut Config),
            &'static [&'static str],
            &'static [&'static str],
        );
        let cases: [Case; 17] = [
            (|_| {}, &[], &[]),
            (|new| new.server.port = 1, &[], &["server.port"]),
            (
                |new| new.server.host = IpAddr::from([127, 0, 0, 2]),
                &[],
                &["server.host"],
            ),
            (|new| new.server.page = false, &[], &["server.page"]),
            (
                |new| new.server.strict_fields = true,
                &["server.strict_fields"],
                &[],
            ),
            (
                |new| new.server.host_names.push("a.example".to_owned()),
                &["server.host_names"],
                &[],
            ),
            (
                |new| {
                    new.tls = Some(Tls {
                        certificate: "a.pem".into(),
                        private_key: "b.pem".into(),
                    });
                },
                &[],
                &["tls"],
            ),
            (|new| new.limits.body_bytes = 1, &["limits"], &[]),
            (
                |new| {
                    new.cors = Cors {
                        origins: vec!["*".to_owned()],
                    };
                },
                &["cors"],
                &[],
            ),
            (|new| new.log.format = LogFormat::Json, &[], &["log.format"]),
            (
                |new| new.log.level = "debug".to_owned(),
                &[],
                &["log.level"],
            ),
            (|new| new.memory = Some(1), &["memory"], &[]),
            (|new| new.telemetry.sample_ratio = 0.5, &[], &["telemetry"]),
            (|new| new.responses.max_stored = 1, &["responses"], &[]),
            (|new| new.remote_media.max_bytes = 1, &["remote_media"], &[]),
            (
                |new| new.models.push(ModelConfig::new("other", "elsewhere")),
                &["models.other (added)"],
                &[],
            ),
            (
                |new| {
                    new.models[0].max_tokens = 7;
                    new.server.port = 1;
                },
                &["models.tiny (reopened at its next use)"],
                &["server.port"],
            ),
        ];
        for (change, applied, needs_restart) in cases {
            let server = Harness::saying("hello");
            let report = server.app.reconfigure(changed(change)).expect("a report");
            assert_eq!(report.applied, applied);
            assert_eq!(report.needs_restart, needs_restart);
            let again = server.app.reconfigure(changed(change)).expect("a report");
            assert_eq!(again.applied, [""; 0], "a second reload changes nothing");
            assert_eq!(again.needs_restart, needs_restart);
        }
    }

    fn reloading(read: impl Fn() -> Result<Config, BoxError> + Send + Sync + 'static) -> Reloading {
        Reloading {
            read: Box::new(read),
            log_level: Box::new(|level| match level {
                "info" | "debug" => Ok(()),
                other => Err(format!("`{other}` is not a log level").into()),
            }),
        }
    }

    #[tokio::test]
    async fn failed_reload_changes_nothing() {
        let server = Harness::saying("hello");
        let unset = server.app.reload().await;
        assert!(matches!(unset, Err(ReloadError::NoSource)), "{unset:?}");
        let reads = AtomicUsize::new(0);
        server.app.set_reloading(reloading(move || {
            match reads.fetch_add(1, Ordering::Relaxed) {
                0 => Err("line 3: no".into()),
                1 => Ok(changed(|new| {
                    new.log.level = "loud".to_owned();
                    new.models.clear();
                })),
                _ => Ok(changed(|new| new.log.level = "debug".to_owned())),
            }
        }));
        let before = server.app.config();
        for refused in [
            "the configuration cannot be read: line 3: no",
            "log.level: `loud` is not a log level",
        ] {
            let error = server.app.reload().await.expect_err("invalid");
            assert_eq!(error.to_string(), refused);
            assert!(Arc::ptr_eq(&before, &server.app.config()));
            assert!(server.app.models.lease(MODEL).await.is_ok());
        }
        let report = server.app.reload().await.expect("a report");
        assert_eq!(report.applied, ["log.level"]);
        assert_eq!(server.app.config().log.level, "debug");
    }

    #[tokio::test]
    async fn models_are_added_removed_and_changed() {
        let server = Harness::saying("hello");
        let old = server.app.models.lease(MODEL).await.expect("the model");
        let changed = changed(|new| {
            new.models[0].max_tokens = 7;
            new.models.push(ModelConfig::new("other", "elsewhere"));
        });
        server.app.reconfigure(changed).expect("a report");
        assert_eq!(old.model.max_tokens(None, 1), 4095, "as it was opened");
        assert!(server.app.models.lease("other").await.is_ok());
        let models = server.app.models.clone();
        let waiting = tokio::spawn(async move { models.lease(MODEL).await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!waiting.is_finished(), "the old one is in use");
        drop(old);
        let new = waiting.await.expect("no panic").expect("the model");
        assert_eq!(new.model.max_tokens(None, 1), 7);
        server.app.reconfigure(Harness::config()).expect("a report");
        let gone = server.app.models.lease("other").await;
        assert_eq!(
            gone.err().and_then(|error| error.code),
            Some("model_not_found")
        );
    }
}
