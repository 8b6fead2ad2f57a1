//! `loquat serve`: models over HTTP.

mod names;
mod opener;
mod trim;
mod wanted;

use std::sync::Arc;

use loquat_server::config::Config;
use loquat_server::{Reloading, Server, telemetry};

use crate::args::ServeArgs;
use crate::error::CliError;
use crate::load::open_store_on;
use crate::terminal::remark;
pub use opener::{LocalModels, reader_grace};
pub use wanted::Wanted;

pub fn run(args: &ServeArgs, verbose: bool) -> Result<(), CliError> {
    let store = open_store_on(args.network)?;
    let wanted = Wanted::new(args, verbose, &store);
    let config = wanted.read()?.config;
    run_alone(serve(config, wanted, LocalModels::new(store)))?
}

/// Runs it to its end and waits for nothing that it began: a model that is being loaded cannot be
/// stopped, and would keep the process until it is there.
fn run_alone<T>(whole: impl Future<Output = T>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(CliError::Runtime)?;
    let ended = runtime.block_on(whole);
    runtime.shutdown_background();
    Ok(ended)
}

async fn serve(config: Config, wanted: Wanted, models: LocalModels) -> Result<(), CliError> {
    let telemetry = telemetry::init(&config.log, &config.telemetry)?;
    let models = Arc::new(models);
    for model in &config.models {
        // Now, while somebody looks, rather than at a client's first request.
        let checked = models.check(model);
        checked.map_err(|error| error.for_model(&model.name))?;
    }
    let level = telemetry.log_level();
    let known = Arc::clone(&models);
    let reloading = Reloading {
        read: Box::new(move || match wanted.read_servable(&known) {
            Ok(settled) => Ok(settled.config),
            Err(error) => Err(error.to_string()),
        }),
        log_level: Box::new(move |wanted| level.set_level(wanted).map_err(|e| e.to_string())),
    };
    let announced = Announced::of(&config);
    let server = Server::bind(config, models).await?;
    announced.at(server.address());
    let served = server.reload_with(reloading).run().await;
    telemetry.shutdown().await;
    served.map_err(CliError::Runtime)
}

/// The one line that says where the server is.
struct Announced {
    models: String,
    scheme: &'static str,
}

impl Announced {
    fn of(config: &Config) -> Self {
        let models: Vec<_> = config.models.iter().map(|m| m.name.as_str()).collect();
        Self {
            models: models.join(", "),
            scheme: match config.tls {
                Some(_) => "https",
                None => "http",
            },
        }
    }

    fn at(self, address: std::net::SocketAddr) {
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
    fn what_is_still_loading_is_not_waited_for() {
        let (let_go, held) = mpsc::channel::<()>();
        let (ended, waiting) = mpsc::channel();
        std::thread::spawn(move || {
            let ran = run_alone(async {
                tokio::task::spawn_blocking(move || held.recv());
            });
            ended.send(ran.is_ok())
        });
        assert_eq!(waiting.recv_timeout(Duration::from_secs(10)), Ok(true));
        drop(let_go);
    }
}
