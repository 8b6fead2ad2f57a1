//! `loquat serve`: models over HTTP.

mod names;
mod opener;
mod wanted;

use std::sync::Arc;

use loquat_server::config::Config;
use loquat_server::{Reloading, Server, telemetry};
use loquat_store::Store;

use crate::args::ServeArgs;
use crate::error::CliError;
use crate::load::open_store;
use crate::terminal::remark;
use opener::LocalModels;
pub use opener::reader_grace;
pub use wanted::{Wanted, missing_models};

pub fn run(args: &ServeArgs, verbose: bool) -> Result<(), CliError> {
    let store = open_store()?;
    let wanted = Wanted::new(args, verbose, &store);
    let config = wanted.read()?.config;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime
        .map_err(CliError::Runtime)?
        .block_on(serve(config, wanted, store))
}

async fn serve(config: Config, wanted: Wanted, store: Store) -> Result<(), CliError> {
    let telemetry = telemetry::init(&config.log, &config.telemetry)?;
    let opener = LocalModels::new(store);
    for model in &config.models {
        // Now, while somebody looks, rather than at a client's first request.
        opener.check(model)?;
    }
    let level = telemetry.log_level();
    let reloading = Reloading {
        read: Box::new(move || match wanted.read() {
            Ok(settled) => Ok(settled.config),
            Err(error) => Err(error.to_string()),
        }),
        log_level: Box::new(move |wanted| level.set_level(wanted).map_err(|e| e.to_string())),
    };
    let announced = Announced::of(&config);
    let server = Server::bind(config, Arc::new(opener)).await?;
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
