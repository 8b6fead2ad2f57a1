//! Reading a request's body: what is unknown is refused by name, what is ignored is said so.

use axum::extract::{FromRequest, Request};
use axum::http::HeaderValue;
use axum::response::Response;
use bytes::Bytes;
use loquat_engine::PARAMETERS;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{ApiError, ErrorKind};

/// Names the fields of a request that were taken and had no effect.
pub const IGNORED_HEADER: &str = "x-loquat-ignored";

/// A request's body. Types derive `Deserialize` with `deny_unknown_fields`, at every depth.
pub trait Wire: DeserializeOwned {
    /// Fields that clients of the dialect are known to send and that change nothing here, with
    /// the reason. The response names them in [`IGNORED_HEADER`].
    const IGNORED: &'static [(&'static str, &'static str)] = &[];
    /// Parts of fields that change nothing, with the reason, as the header calls them. They are
    /// found by who lowers the request.
    const WITHIN: &'static [(&'static str, &'static str)] = &[];
    /// Fields of the dialect that are not implemented, with the reason.
    const REFUSED: &'static [(&'static str, &'static str)] = &[];
    /// Whether the body may have the engine's sampling parameters beside its fields.
    const SAMPLING: bool = false;
}

/// A body that was read.
#[derive(Debug)]
pub struct Body<T> {
    pub value: T,
    /// Sampling parameters by name, for [`crate::sampling::apply`].
    pub sampling: Map<String, Value>,
    pub ignored: Vec<&'static str>,
}

impl<T: Wire> Body<T> {
    pub fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        let body: Value = serde_json::from_slice(bytes).map_err(|error| {
            let what = format!("the request's body is not valid JSON: {error}");
            ApiError::new(ErrorKind::InvalidRequest, what).code("invalid_json")
        })?;
        let Value::Object(fields) = body else {
            let what = "the request's body must be a JSON object";
            return Err(ApiError::new(ErrorKind::InvalidRequest, what));
        };
        Self::sort(fields)
    }

    fn sort(fields: Map<String, Value>) -> Result<Self, ApiError> {
        let mut own = Map::new();
        let mut sampling = Map::new();
        let mut ignored = Vec::new();
        // Null is how clients write what they leave out.
        for (name, value) in fields.into_iter().filter(|(_, value)| !value.is_null()) {
            let is = |(known, _): &&(&'static str, &'static str)| *known == name;
            if let Some((name, _)) = T::IGNORED.iter().find(is) {
                ignored.push(*name);
            } else if let Some((_, why)) = T::REFUSED.iter().find(is) {
                return Err(ApiError::unsupported(name, why));
            } else if T::SAMPLING && PARAMETERS.iter().any(|known| known.name == name) {
                sampling.insert(name, value);
            } else {
                own.insert(name, value);
            }
        }
        Ok(Self {
            value: parse(Value::Object(own))?,
            sampling,
            ignored,
        })
    }
}

fn parse<T: DeserializeOwned>(value: Value) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = match error.path().to_string() {
            root if root == "." => String::new(),
            path => path,
        };
        let what = error.into_inner().to_string();
        if let Some(field) = named(&what, "missing field `") {
            let dot = if path.is_empty() { "" } else { "." };
            let param = format!("{path}{dot}{field}");
            return ApiError::invalid(param.clone(), format!("`{param}` is missing"));
        }
        let error = match path.as_str() {
            "" => ApiError::new(ErrorKind::InvalidRequest, what.clone()),
            _ => ApiError::invalid(path.clone(), format!("`{path}`: {what}")),
        };
        match named(&what, "unknown field `") {
            Some(_) => error.code("unknown_parameter"),
            None => error,
        }
    })
}

/// The field that a sentence of serde's begins with.
fn named<'a>(what: &'a str, beginning: &str) -> Option<&'a str> {
    what.strip_prefix(beginning)?.split('`').next()
}

impl<S: Send + Sync, T: Wire> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = Bytes::from_request(request, state).await;
        Self::read(&bytes.map_err(|rejection| unreadable(rejection.status()))?)
    }
}

fn unreadable(status: axum::http::StatusCode) -> ApiError {
    match status {
        axum::http::StatusCode::PAYLOAD_TOO_LARGE => ApiError::new(
            ErrorKind::TooLarge,
            "the request's body is larger than this server takes",
        ),
        _ => ApiError::new(
            ErrorKind::InvalidRequest,
            "the request's body ended before it was whole",
        ),
    }
}

/// Says in a header which fields had no effect.
pub fn name_ignored(response: &mut Response, ignored: &[&'static str]) {
    if ignored.is_empty() {
        return;
    }
    // Field names are ours and plain.
    if let Ok(value) = HeaderValue::from_str(&ignored.join(", ")) {
        response.headers_mut().insert(IGNORED_HEADER, value);
    }
}
