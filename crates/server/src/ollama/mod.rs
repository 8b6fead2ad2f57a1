//! Ollama's dialect. Each file is an endpoint or a piece that several share; models are served as
//! they are configured, so that pulling, creating and deleting them is refused (`unmanaged`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;

use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::models::{KeepAlive, Lease, ModelState};

pub mod chat;
pub mod embed;
pub mod generate;
mod keep_alive;
pub mod message;
pub mod models;
mod options;
mod response;
mod speaker;
#[cfg(test)]
mod tests;
mod think;
mod time;
pub mod unmanaged;

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .merge(chat::routes())
        .merge(generate::routes())
        .merge(embed::routes())
        .merge(models::routes())
        .merge(unmanaged::routes())
}

/// A model for a request, and how long it took to have it.
struct Held {
    lease: Lease,
    /// As the request spelt it; answers call it so.
    name: String,
    load: Duration,
}

/// Clients put `:latest` behind names that have no tag.
fn known_as<'a>(app: &App, caller: &Caller, name: &'a str) -> &'a str {
    match name.strip_suffix(":latest") {
        Some(short) if app.name_for(caller, name).is_err() => short,
        _ => name,
    }
}

/// Leases the model, and keeps it as long as the request says. One that says nothing takes back
/// what the one before it said, or a single wish would bind everybody until the model is unloaded.
async fn hold(
    app: &App,
    caller: &Caller,
    name: String,
    keep: Option<KeepAlive>,
) -> Result<Held, ApiError> {
    let began = Instant::now();
    let lease = app.lease(caller, known_as(app, caller, &name)).await?;
    app.models.keep_alive(&lease.id, keep)?;
    Ok(Held {
        lease,
        name,
        load: began.elapsed(),
    })
}

/// Unloads the model once nobody uses it.
fn unload(app: &App, caller: &Caller, name: &str) -> Result<(), ApiError> {
    let id = app.name_for(caller, known_as(app, caller, name))?;
    let all = app.models.status();
    let open = |state: &ModelState| matches!(state, ModelState::Ready | ModelState::Loading { .. });
    // What is not open would remember the wish and be closed as soon as it is opened again.
    if all
        .iter()
        .any(|model| model.name == id && open(&model.state))
    {
        app.models.keep_alive(&id, KeepAlive::For(Duration::ZERO))?;
    }
    Ok(())
}
