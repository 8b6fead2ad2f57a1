//! OpenAI's dialect. Each file is an endpoint: its wire types, its lowering, its answers.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use uuid::Uuid;

use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::models::{Lease, Loaded};

pub mod answer;
pub mod attribution;
pub mod chat;
pub mod completions;
pub mod embeddings;
pub mod logprobs;
pub mod message;
pub mod models;
pub mod options;
pub mod responses;
pub mod tool;
pub mod usage;

pub use responses::Responses;

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .merge(chat::routes())
        .merge(completions::routes())
        .merge(embeddings::routes())
        .merge(models::routes())
        .merge(responses::routes())
}

/// The model that a request names. Where only one is served, it need not.
pub async fn lease(app: &App, caller: &Caller, model: Option<&str>) -> Result<Lease, ApiError> {
    if let Some(model) = model {
        return app.lease(caller, model).await;
    }
    match app.names_for(caller).as_slice() {
        [only] => app.lease(caller, only).await,
        names => {
            let what = format!(
                "`model` is missing; it must be one of those that are served: {}",
                names.join(", ")
            );
            Err(ApiError::invalid("model", what).code("model_not_found"))
        }
    }
}

/// What an answer and each piece of its stream begin with.
#[derive(Debug, Clone)]
pub struct Head {
    pub id: String,
    /// In seconds since 1970.
    pub created: u64,
    pub model: String,
    /// By what the answer was made: as long as it stays the same, a seed repeats an answer.
    pub fingerprint: String,
}

impl Head {
    pub fn new(prefix: &str, model: &Loaded) -> Self {
        Self {
            id: fresh_id(prefix),
            created: now(),
            model: model.id.clone(),
            fingerprint: format!(
                "loquat-{}-{}",
                env!("CARGO_PKG_VERSION"),
                model.info.backend
            ),
        }
    }
}

/// An identifier that nothing else has.
pub fn fresh_id(prefix: &str) -> String {
    format!("{prefix}{}", Uuid::new_v4().simple())
}

/// In seconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// One wish under two names, which must not say different things.
pub fn agree<T: PartialEq>(
    (name, value): (&str, Option<T>),
    (other, same): (&str, Option<T>),
) -> Result<Option<T>, ApiError> {
    match (value, same) {
        (Some(value), Some(same)) if value != same => Err(ApiError::invalid(
            other,
            format!("`{other}` is another name for `{name}`, and says otherwise; give one of them"),
        )),
        (value, same) => Ok(value.or(same)),
    }
}
