//! Ollama's dialect. Each file is an endpoint or a part that several share. The configuration
//! names the models, so pulling, creating and deleting them is refused (`unmanaged`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;

use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::field::Field;
use crate::models::{KeepAlive, Lease, ModelState};

mod answer;
pub mod chat;
pub mod embed;
pub mod generate;
mod keep_alive;
pub mod message;
pub mod models;
mod options;
mod response;
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

/// A request's model.
struct LeasedModel {
    lease: Lease,
    /// As the request spells it.
    name: String,
    /// How long the lease took.
    load: Duration,
    /// A field of the request that had no effect.
    ignored: Option<&'static str>,
}

/// Strips the tag `:latest`, which clients add to names without a tag.
fn strip_latest<'a>(app: &App, caller: &Caller, name: &'a str) -> &'a str {
    match name.strip_suffix(":latest") {
        Some(short) if app.name_for(caller, name).is_err() => short,
        _ => name,
    }
}

/// Leases the model and sets its `keep_alive`. A request without one resets the model's, so that a
/// single request does not decide for all until the model is unloaded. Callers that may not affect
/// others have no say; see [`LeasedModel::ignored`].
async fn lease(
    app: &App,
    caller: &Caller,
    name: String,
    keep: Option<KeepAlive>,
) -> Result<LeasedModel, ApiError> {
    let began = Instant::now();
    let lease = app.lease(caller, strip_latest(app, caller, &name)).await?;
    let may_set = caller.may_manage();
    if may_set {
        app.models.keep_alive(&lease.id, keep)?;
    }
    Ok(LeasedModel {
        lease,
        name,
        load: began.elapsed(),
        ignored: keep.filter(|_| !may_set).map(|_| Field::KeepAlive.name()),
    })
}

/// Unloads the model when it is idle.
fn unload(app: &App, caller: &Caller, name: &str) -> Result<(), ApiError> {
    let id = app.name_for(caller, strip_latest(app, caller, name))?;
    let allowed = caller.check_may_manage("unloading a model by `keep_alive`");
    allowed.map_err(|error| error.param(Field::KeepAlive))?;
    let all = app.models.status();
    let open = |state: &ModelState| matches!(state, ModelState::Ready | ModelState::Loading { .. });
    // A model that is not open would be unloaded as soon as it is opened again.
    if all
        .iter()
        .any(|model| model.name == id && open(&model.state))
    {
        app.models.keep_alive(&id, KeepAlive::For(Duration::ZERO))?;
    }
    Ok(())
}
