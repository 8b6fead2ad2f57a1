//! What can be done with responses that are kept.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use utoipa::IntoParams;

use super::item::Item;
use super::object::{Deleted, ItemList, ResponseObject};
use super::store::Kept;
use crate::app::App;
use crate::caller::Caller;
use crate::error::{ApiError, ErrorKind};

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct RetrieveQuery {
    /// Has no effect: what was told is kept.
    #[serde(flatten)]
    #[param(rename = "include[]", value_type = Option<Vec<String>>)]
    include: Include,
    /// Must be false: what has ended is not streamed again.
    stream: Option<bool>,
}

/// What a query may say about `include[]`, any number of times, to no effect. A list is not to be
/// had otherwise; and being flattened, it is what refuses names that are nobody's.
#[derive(Debug)]
struct Include;

impl<'de> Deserialize<'de> for Include {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;

        impl<'de> Visitor<'de> for Names {
            type Value = Include;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("parameters of a query")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut rest: A) -> Result<Include, A::Error> {
                while let Some((name, IgnoredAny)) = rest.next_entry::<String, _>()? {
                    if name != "include[]" {
                        return Err(A::Error::custom(format!("`{name}` is not known here")));
                    }
                }
                Ok(Include)
            }
        }

        deserializer.deserialize_map(Names)
    }
}

/// Gives a response that was kept
#[utoipa::path(
    get, path = "/v1/responses/{id}", tag = "openai",
    params(("id" = String, Path, description = "The response's `id`"), RetrieveQuery),
    responses((status = 200, description = "The response", body = ResponseObject)),
)]
pub async fn retrieve(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    query: Result<Query<RetrieveQuery>, QueryRejection>,
) -> Result<Json<ResponseObject>, ApiError> {
    let Query(RetrieveQuery {
        include: Include,
        stream,
    }) = query.map_err(unreadable)?;
    if stream == Some(true) {
        return Err(ApiError::unsupported(
            "stream",
            "what has ended is not streamed again",
        ));
    }
    let kept = find(&app, &caller, &id)?;
    let response = kept.response().ok_or_else(|| unknown(&id))?;
    Ok(Json(response.clone()))
}

/// Forgets a response
///
/// Responses that went on from it keep what they need.
#[utoipa::path(
    delete, path = "/v1/responses/{id}", tag = "openai",
    params(("id" = String, Path, description = "The response's `id`")),
    responses((status = 200, description = "It is forgotten", body = Deleted)),
)]
pub async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Deleted>, ApiError> {
    let owner = caller.client();
    let limits = &app.config().responses;
    if app.responses.forget(&owner, &id, limits) {
        Ok(Json(Deleted {
            id,
            object: "response",
            deleted: true,
        }))
    } else {
        Err(unknown(&id))
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct InputItemsQuery {
    /// Only those after this one, by its `id`.
    after: Option<String>,
    /// How many at most, from 1 to 100; 20 when left out.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
    /// `desc`, the last first, when left out.
    #[param(inline)]
    order: Option<Order>,
    /// Has no effect: what was told is kept.
    #[serde(flatten)]
    #[param(rename = "include[]", value_type = Option<Vec<String>>)]
    include: Include,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ResponseItemOrder)]
pub enum Order {
    Asc,
    Desc,
}

/// Lists what a response was made from
///
/// The conversation that the model was given, with the turns before.
#[utoipa::path(
    get, path = "/v1/responses/{id}/input_items", tag = "openai",
    params(("id" = String, Path, description = "The response's `id`"), InputItemsQuery),
    responses((status = 200, description = "The items", body = ItemList)),
)]
pub async fn input_items(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    query: Result<Query<InputItemsQuery>, QueryRejection>,
) -> Result<Json<ItemList>, ApiError> {
    let Query(InputItemsQuery {
        after,
        limit,
        order,
        include: Include,
    }) = query.map_err(unreadable)?;
    let limit = limit.unwrap_or(20);
    if !(1..=100).contains(&limit) {
        let what = format!("`limit` is {limit}; it must be from 1 to 100");
        return Err(ApiError::invalid("limit", what));
    }
    let kept = find(&app, &caller, &id)?;
    let mut items: Vec<_> = kept.input().collect();
    if order != Some(Order::Asc) {
        items.reverse();
    }
    if let Some(after) = after {
        let found = items.iter().position(|item| item.id() == Some(&after));
        let found = found.ok_or_else(|| {
            let what = format!("`after` is `{after}`, which is none of the response's items");
            ApiError::invalid("after", what)
        })?;
        items.drain(..=found);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id = |item: Option<&&Item>| item.and_then(|item| item.id()).map(str::to_owned);
    Ok(Json(ItemList {
        object: "list",
        first_id: id(items.first()),
        last_id: id(items.last()),
        data: items.into_iter().cloned().collect(),
        has_more,
    }))
}

/// Refused: nothing runs in the background
///
/// A response is made while its request lasts; closing the connection cancels it.
#[utoipa::path(
    post, path = "/v1/responses/{id}/cancel", tag = "openai",
    params(("id" = String, Path, description = "The response's `id`")),
    responses((status = 400, description = "It is not running in the background")),
)]
pub async fn cancel(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<ResponseObject>, ApiError> {
    find(&app, &caller, &id)?;
    Err(ApiError::new(
        ErrorKind::InvalidRequest,
        "Cannot cancel a synchronous response. A response is made while its request lasts; closing \
         the connection cancels it.",
    ))
}

fn find(app: &App, caller: &Caller, id: &str) -> Result<Kept, ApiError> {
    let owner = caller.client();
    let limits = &app.config().responses;
    let kept = app.responses.get(&owner, id, limits);
    kept.ok_or_else(|| unknown(id))
}

fn unknown(id: &str) -> ApiError {
    let what = format!("Response with id '{id}' not found.");
    ApiError::new(ErrorKind::NotFound, what)
}

fn unreadable(rejection: QueryRejection) -> ApiError {
    ApiError::new(ErrorKind::InvalidRequest, rejection.body_text())
}
