//! `loquat serve`: models over HTTP.

mod config_reader;
mod model_names;
mod opener;

use std::sync::Arc;

use loquat_server::config::Config;
use loquat_server::{Reloading, Server, telemetry};

use crate::args::ServeArgs;
use crate::error::CliError;
use crate::load::open_store_on;
use crate::terminal::remark;
pub use config_reader::ConfigReader;
pub use opener::{LocalModels, reader_grace};

pub fn run(args: &ServeArgs, verbose: bool) -> Result<(), CliError> {
    let store = open_store_on(args.network)?;
    let reader = ConfigReader::new(args, verbose, &store);
    let config = reader.read()?.config;
    run_detached(serve(config, reader, LocalModels::new(store)))?
}

/// Runs a future without waiting for the tasks that it started: a model that is being loaded cannot
/// be cancelled and would delay the exit.
fn run_detached<T>(future: impl Future<Output = T>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(CliError::Runtime)?;
    let output = runtime.block_on(future);
    runtime.shutdown_background();
    Ok(output)
}

async fn serve(config: Config, reader: ConfigReader, models: LocalModels) -> Result<(), CliError> {
    let telemetry = telemetry::init(&config.log, &config.telemetry)?;
    let models = Arc::new(models);
    for model in &config.models {
        // At the start, not at a client's first request.
        let checked = models.check(model);
        checked.map_err(|error| error.for_model(&model.name))?;
    }
    let level = telemetry.log_level();
    let known = Arc::clone(&models);
    let reloading = Reloading {
        read: Box::new(move || match reader.read_servable(&known) {
            Ok(settled) => Ok(settled.config),
            Err(error) => Err(error.into()),
        }),
        log_level: Box::new(move |wanted| Ok(level.set_level(wanted)?)),
    };
    let announcement = Announcement::new(&config);
    let server = Server::bind(config, models).await?;
    announcement.print(server.address());
    let served = server.reload_with(reloading).run().await;
    telemetry.shutdown().await;
    served.map_err(CliError::Runtime)
}

/// The line that says where the server listens.
struct Announcement {
    models: String,
    scheme: &'static str,
}

impl Announcement {
    fn new(config: &Config) -> Self {
        let models: Vec<_> = config.models.iter().map(|m| m.name.as_str()).collect();
        Self {
            models: models.join(", "),
            scheme: match config.tls {
                Some(_) => "https",
                None => "http",
            },
        }
    }

    fn print(self, address: std::net::SocketAddr) {
        let Self { models, scheme } = self;
        remark(&format!("loquat serves {models} at {scheme}://{address}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn exit_does_not_wait_for_blocking_tasks() {
        let (let_go, held) = mpsc::channel::<()>();
        let (ended, waiting) = mpsc::channel();
        std::thread::spawn(move || {
            let ran = run_detached(async {
                tokio::task::spawn_blocking(move || held.recv());
            });
            ended.send(ran.is_ok())
        });
        assert_eq!(waiting.recv_timeout(Duration::from_secs(60)), Ok(true));
        drop(let_go);
    }
}
