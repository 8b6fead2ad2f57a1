//! Parses request bodies: refuses unknown fields by name, and reports ignored ones in a header.

use axum::extract::{FromRequest, Request};
use axum::http::HeaderValue;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use loquat_engine::PARAMETERS;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{ApiError, ErrorKind};
use crate::field::{Field, FieldPath};
use crate::json_body;
use crate::openai::answer_format::AnswerFormatFields;

/// Lists the fields of a request that had no effect.
pub const IGNORED_HEADER: &str = "x-loquat-ignored";

/// The type of a request body. Types derive `Deserialize` with `deny_unknown_fields`, at every
/// depth.
pub trait WireRequest: DeserializeOwned {
    /// Fields that clients of the dialect send and that have no effect here, with the reason. The
    /// response lists them in [`IGNORED_HEADER`].
    const IGNORED: &'static [(&'static str, &'static str)] = &[];
    /// Nested fields that have no effect, with the reason, as the header names them. Lowering
    /// finds them.
    const IGNORED_NESTED: &'static [(&'static str, &'static str)] = &[];
    /// Fields of the dialect that are not implemented, with the reason.
    const REFUSED: &'static [(Field, &'static str)] = &[];
    /// Whether the body may have the engine's sampling parameters beside its fields.
    const SAMPLING: bool = false;
    /// Whether the body may have the fields that constrain an answer beside its own.
    const ANSWER_FORMAT: bool = false;
}

/// A parsed request body.
#[derive(Debug)]
pub struct JsonBody<T> {
    pub value: T,
    /// Sampling parameters by name, for [`crate::sampling::apply`].
    pub sampling: Map<String, Value>,
    pub answer_format: AnswerFormatFields,
    pub ignored: Vec<&'static str>,
}

impl<T: WireRequest> JsonBody<T> {
    pub fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        let Value::Object(fields) = json_body::parse(bytes)? else {
            return Err(ApiError::bad_request(
                "the request body must be a JSON object",
            ));
        };
        Self::from_fields(fields)
    }

    fn from_fields(fields: Map<String, Value>) -> Result<Self, ApiError> {
        let mut own = Map::new();
        let mut sampling = Map::new();
        let mut answer_format = Map::new();
        let mut ignored = Vec::new();
        // Clients write null for a field that they omit.
        for (name, value) in fields.into_iter().filter(|(_, value)| !value.is_null()) {
            let ignores = T::IGNORED.iter().find(|(known, _)| *known == name);
            let refuses = T::REFUSED.iter().find(|(field, _)| field.name() == name);
            if let Some((name, _)) = ignores {
                ignored.push(*name);
            } else if let Some((field, reason)) = refuses {
                return Err(ApiError::unsupported(*field, reason));
            } else if T::SAMPLING && PARAMETERS.iter().any(|known| known.name == name) {
                sampling.insert(name, value);
            } else if T::ANSWER_FORMAT && AnswerFormatFields::NAMES.contains(&name.as_str()) {
                answer_format.insert(name, value);
            } else {
                own.insert(name, value);
            }
        }
        Ok(Self {
            value: parse(Value::Object(own))?,
            sampling,
            answer_format: parse(Value::Object(answer_format))?,
            ignored,
        })
    }
}

/// Parses a body that may be omitted.
pub fn parse_optional<T: WireRequest + Default>(body: &[u8]) -> Result<T, ApiError> {
    match body {
        [] => Ok(T::default()),
        body => Ok(JsonBody::read(body)?.value),
    }
}

/// Parses a value; errors name the field by its path.
pub fn parse<T: DeserializeOwned>(value: Value) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = match error.path().to_string() {
            root if root == "." => String::new(),
            path => path,
        };
        let problem = error.into_inner().to_string();
        if let Some(field) = named_field(&problem, "missing field `") {
            let dot = if path.is_empty() { "" } else { "." };
            let field = FieldPath::verbatim(format!("{path}{dot}{field}"));
            return ApiError::invalid(field, "is missing");
        }
        let error = match path.as_str() {
            "" => ApiError::bad_request(problem.clone()),
            _ => ApiError::bad_request(format!("`{path}`: {problem}"))
                .param(FieldPath::verbatim(path)),
        };
        match named_field(&problem, "unknown field `") {
            Some(_) => error.code("unknown_parameter"),
            None => error,
        }
    })
}

/// The field that serde's error names after this prefix.
fn named_field<'a>(problem: &'a str, prefix: &str) -> Option<&'a str> {
    problem.strip_prefix(prefix)?.split('`').next()
}

impl<S: Send + Sync, T: WireRequest + Send + 'static> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = Bytes::from_request(request, state).await;
        let bytes = bytes.map_err(|rejection| unreadable(rejection.status()))?;
        json_body::read_with(bytes, Self::read).await
    }
}

fn unreadable(status: axum::http::StatusCode) -> ApiError {
    match status {
        axum::http::StatusCode::PAYLOAD_TOO_LARGE => ApiError::new(
            ErrorKind::TooLarge,
            "the request body is larger than this server accepts",
        ),
        _ => ApiError::bad_request("the request body ended early"),
    }
}

/// Lists the fields that had no effect in a header of the response.
pub fn with_ignored_header(response: impl IntoResponse, ignored: &[&'static str]) -> Response {
    let mut response = response.into_response();
    // Field names are ASCII.
    if !ignored.is_empty()
        && let Ok(value) = HeaderValue::from_str(&ignored.join(", "))
    {
        response.headers_mut().insert(IGNORED_HEADER, value);
    }
    response
}
