//! OpenAI's dialect. Each endpoint has its wire types, its lowering and its answers; the other
//! files are shared.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use uuid::Uuid;

use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::field::{Field, FieldPath};
use crate::models::Lease;

pub mod answer_format;
pub mod chat;
pub mod completions;
pub mod conversation_file;
pub mod embeddings;
pub mod logprobs;
pub mod messages;
pub mod models;
pub mod options;
pub mod responses;
pub mod tools;
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

/// Leases the model that a request names. If only one is served, the name may be omitted.
pub async fn lease(app: &App, caller: &Caller, model: Option<&str>) -> Result<Lease, ApiError> {
    if let Some(model) = model {
        return app.lease(caller, model).await;
    }
    app.lease(caller, &only_name(app, caller)?).await
}

/// The only model that the caller may use.
pub fn only_name(app: &App, caller: &Caller) -> Result<String, ApiError> {
    match app.names_for(caller).as_slice() {
        [only] => Ok(only.clone()),
        names => {
            let problem = format!("is missing; use one of: {}", names.join(", "));
            Err(ApiError::invalid(Field::Model, problem).code("model_not_found"))
        }
    }
}

/// The fields that an answer and every chunk of its stream begin with.
#[derive(Debug, Clone)]
pub struct CompletionHead {
    pub id: String,
    /// In seconds since 1970.
    pub created: u64,
    pub model: String,
    /// The version and backend. A seed repeats an answer while this stays the same.
    pub fingerprint: String,
}

impl CompletionHead {
    pub fn new(prefix: &str, model: &Lease) -> Self {
        Self {
            id: fresh_id(prefix),
            created: now(),
            model: model.name().to_owned(),
            fingerprint: format!(
                "loquat-{}-{}",
                env!("CARGO_PKG_VERSION"),
                model.info.backend
            ),
        }
    }
}

/// A unique identifier.
pub fn fresh_id(prefix: &str) -> String {
    format!("{prefix}{}", Uuid::new_v4().simple())
}

/// In seconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The value of a field that may have an alias. The two must not differ.
pub fn resolve_alias<T: PartialEq>(
    (field, value): (impl Into<FieldPath>, Option<T>),
    (alias, other): (impl Into<FieldPath>, Option<T>),
) -> Result<Option<T>, ApiError> {
    match (value, other) {
        (Some(value), Some(other)) if value != other => {
            let field = field.into();
            let problem = format!("is another name for `{field}` and differs; send only one");
            Err(ApiError::invalid(alias, problem))
        }
        (value, other) => Ok(value.or(other)),
    }
}
