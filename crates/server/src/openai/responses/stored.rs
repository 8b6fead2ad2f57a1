//! Endpoints for stored responses.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use utoipa::IntoParams;

use super::item::Item;
use super::object::{DeletedResponse, ItemList, ResponseObject};
use super::store::StoredResponse;
use crate::app::App;
use crate::caller::Caller;
use crate::error::{ApiError, ErrorKind};
use crate::field::Field;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct ResponsePath {
    /// The response's `id`
    id: String,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct RetrieveQuery {
    /// Has no effect: a stored response has everything that was returned.
    #[serde(flatten)]
    #[param(rename = "include[]", value_type = Option<Vec<String>>)]
    include: Include,
    /// Must be false: finished responses are not streamed again.
    stream: Option<bool>,
}

/// Any number of `include[]` in a query; they have no effect. Query strings cannot hold lists
/// otherwise. As the flattened field it also refuses unknown names.
#[derive(Debug)]
struct Include;

impl<'de> Deserialize<'de> for Include {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct QueryVisitor;

        impl<'de> Visitor<'de> for QueryVisitor {
            type Value = Include;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("query parameters")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut rest: A) -> Result<Include, A::Error> {
                while let Some((name, IgnoredAny)) = rest.next_entry::<String, _>()? {
                    if name != "include[]" {
                        return Err(A::Error::custom(format!(
                            "unknown query parameter `{name}`"
                        )));
                    }
                }
                Ok(Include)
            }
        }

        deserializer.deserialize_map(QueryVisitor)
    }
}

/// Get a stored response
#[utoipa::path(
    get, path = "/v1/responses/{id}", tag = "openai",
    params(ResponsePath, RetrieveQuery),
    responses((status = 200, description = "The response", body = ResponseObject)),
)]
pub async fn retrieve(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(ResponsePath { id }): Path<ResponsePath>,
    query: Result<Query<RetrieveQuery>, QueryRejection>,
) -> Result<Json<ResponseObject>, ApiError> {
    let Query(RetrieveQuery {
        include: Include,
        stream,
    }) = query.map_err(unreadable)?;
    if stream == Some(true) {
        return Err(ApiError::unsupported(
            Field::Stream,
            "finished responses are not streamed again",
        ));
    }
    let stored = find(&app, &caller, &id)?;
    let response = stored.response().ok_or_else(|| not_found(&id))?;
    Ok(Json(response.clone()))
}

/// Delete a stored response
///
/// Responses that continue it keep the turns they need.
#[utoipa::path(
    delete, path = "/v1/responses/{id}", tag = "openai",
    params(ResponsePath),
    responses((status = 200, description = "The response is deleted", body = DeletedResponse)),
)]
pub async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(ResponsePath { id }): Path<ResponsePath>,
) -> Result<Json<DeletedResponse>, ApiError> {
    let owner = caller.client();
    let limits = &app.config().responses;
    if app.responses.remove(&owner, &id, limits) {
        Ok(Json(DeletedResponse {
            id,
            object: "response",
            deleted: true,
        }))
    } else {
        Err(not_found(&id))
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct InputItemsQuery {
    /// List items after this `id`.
    after: Option<String>,
    /// At most this many, from 1 to 100; default 20.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
    /// Default `desc`: the last item first.
    #[param(inline)]
    order: Option<Order>,
    /// Has no effect: a stored response has everything that was returned.
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

/// List the input of a stored response
///
/// The conversation that the model saw, including earlier turns.
#[utoipa::path(
    get, path = "/v1/responses/{id}/input_items", tag = "openai",
    params(ResponsePath, InputItemsQuery),
    responses((status = 200, description = "The items", body = ItemList)),
)]
pub async fn input_items(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(ResponsePath { id }): Path<ResponsePath>,
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
        let problem = format!("is {limit}; it must be from 1 to 100");
        return Err(ApiError::invalid(Field::Limit, problem));
    }
    let stored = find(&app, &caller, &id)?;
    let mut items: Vec<_> = stored.input().collect();
    if order != Some(Order::Asc) {
        items.reverse();
    }
    if let Some(after) = after {
        let found = items.iter().position(|item| item.id() == Some(&after));
        let found = found.ok_or_else(|| {
            let problem = format!("is `{after}`, which is not an item of this response");
            ApiError::invalid(Field::After, problem)
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

/// Cancel a response (refused)
///
/// Responses do not run in the background: closing the connection cancels them.
#[utoipa::path(
    post, path = "/v1/responses/{id}/cancel", tag = "openai",
    params(ResponsePath),
    responses((status = 400, description = "Responses do not run in the background")),
)]
pub async fn cancel(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(ResponsePath { id }): Path<ResponsePath>,
) -> Result<Json<ResponseObject>, ApiError> {
    find(&app, &caller, &id)?;
    Err(ApiError::bad_request(
        "Cannot cancel a synchronous response. Close the connection of its request instead.",
    ))
}

fn find(app: &App, caller: &Caller, id: &str) -> Result<StoredResponse, ApiError> {
    let owner = caller.client();
    let limits = &app.config().responses;
    let stored = app.responses.get(&owner, id, limits);
    stored.ok_or_else(|| not_found(id))
}

fn not_found(id: &str) -> ApiError {
    let message = format!("Response with id '{id}' not found.");
    ApiError::new(ErrorKind::NotFound, message)
}

fn unreadable(rejection: QueryRejection) -> ApiError {
    ApiError::bad_request(rejection.body_text())
}
