//! Parses request bodies. Fields without effect are named in a header of the response.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use loquat_engine::PARAMETERS;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::app::App;
use crate::caller::Caller;
use crate::error::{ApiError, ErrorKind};
use crate::field::{Field, FieldPath};
use crate::json_body;
use crate::openai::answer_format::AnswerFormatFields;
use crate::openapi;
use crate::sampling;
use crate::tool_types;
use crate::unknown_fields::{FieldChecker, FieldPolicy, Findings};

/// Lists the fields of a request that had no effect.
pub const IGNORED_HEADER: &str = "x-loquat-ignored";

/// Of [`IGNORED_HEADER`], in bytes.
const LONGEST_HEADER: usize = 2048;
/// Of a name in [`IGNORED_HEADER`], in characters.
const LONGEST_NAME: usize = 128;
/// Names that the log has mentioned.
const MOST_LOGGED: usize = 1024;

/// Fields with the reason for what happens to them, as lists that requests share.
pub type FieldTables<F> = &'static [&'static [(F, &'static str)]];

/// The entries of all lists.
pub fn entries<F>(tables: FieldTables<F>) -> impl Iterator<Item = &'static (F, &'static str)> {
    tables.iter().copied().flatten()
}

/// The type of a request body. Types derive `Deserialize` with `deny_unknown_fields`, at every
/// depth: unknown fields that are not refused are removed before the body is parsed.
pub trait WireRequest: DeserializeOwned {
    /// Fields that clients of the dialect send and that have no effect here, with the reason. The
    /// response lists them in [`IGNORED_HEADER`].
    const IGNORED: FieldTables<&'static str> = &[];
    /// Nested fields that have no effect, with the reason, as the header names them: by their path
    /// without indices, or by their name if they occur in several places.
    const IGNORED_NESTED: FieldTables<&'static str> = &[];
    /// Fields of the dialect that are not implemented, with the reason. False counts as omitted.
    const REFUSED: FieldTables<Field> = &[];
    /// Whether the body may have the engine's sampling parameters beside its fields.
    const SAMPLING: bool = false;
    /// Whether the body may have the fields that constrain an answer beside its own.
    const ANSWER_FORMAT: bool = false;
    /// The types of `tools` that are implemented; the first is that of a tool without a type.
    const TOOL_TYPES: &'static [&'static str] = &[];
}

/// A parsed request body.
#[derive(Debug)]
pub struct JsonBody<T> {
    pub value: T,
    /// Sampling parameters by name, for [`crate::sampling::apply`].
    pub sampling: Map<String, Value>,
    pub answer_format: AnswerFormatFields,
    pub ignored: Vec<&'static str>,
    /// Unknown fields and tools that were removed, as the header names them.
    pub removed: Vec<String>,
}

impl<T: WireRequest> JsonBody<T> {
    /// Reads a body, without the fields that the policy ignores.
    pub fn read(bytes: &[u8], policy: FieldPolicy) -> Result<Self, ApiError>
    where
        T: ToSchema,
    {
        let mut fields = object(bytes)?;
        let mut removed = tool_types::remove_others(&mut fields, T::TOOL_TYPES)?;
        let listed: Vec<_> = entries(T::REFUSED).map(|(field, _)| field.name()).collect();
        let checker = FieldChecker::new(openapi::schemas(), T::IGNORED_NESTED, policy);
        let Findings { ignored, unknown } = checker.check_body(&mut fields, &T::name(), &listed)?;
        removed.extend(unknown.into_names());
        let mut body = Self::from_fields(fields)?;
        body.ignored.extend(ignored);
        body.removed = removed;
        Ok(body)
    }

    fn from_fields(fields: Map<String, Value>) -> Result<Self, ApiError> {
        let mut own = Map::new();
        let mut sampling = Map::new();
        let mut answer_format = Map::new();
        let mut ignored = Vec::new();
        // Clients write null for a field that they omit.
        for (name, value) in fields.into_iter().filter(|(_, value)| !value.is_null()) {
            let ignores = entries(T::IGNORED).find(|(known, _)| *known == name);
            let refuses = entries(T::REFUSED).find(|(field, _)| field.name() == name);
            if let Some((name, _)) = ignores {
                ignored.push(*name);
            } else if let Some((field, reason)) = refuses {
                if value != Value::Bool(false) {
                    return Err(ApiError::unsupported(*field, reason));
                }
            } else if T::SAMPLING && PARAMETERS.iter().any(|known| known.name == name) {
                sampling::insert(&mut sampling, &name, name.clone(), value)?;
            } else if let Some(parameter) = sampling::alias(&name).filter(|_| T::SAMPLING) {
                sampling::insert(&mut sampling, &name, parameter.to_owned(), value)?;
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
            removed: Vec::new(),
        })
    }
}

fn object(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match json_body::parse(bytes)? {
        Value::Object(fields) => Ok(fields),
        _ => Err(ApiError::bad_request(
            "the request body must be a JSON object",
        )),
    }
}

/// Parses a body that may be omitted. Refuses unknown fields.
pub fn parse_optional<T: WireRequest + Default>(body: &[u8]) -> Result<T, ApiError> {
    match body {
        [] => Ok(T::default()),
        body => Ok(JsonBody::from_fields(object(body)?)?.value),
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

impl<T: WireRequest + ToSchema + Send + 'static> FromRequest<Arc<App>> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let caller = request.extensions().get::<Caller>().cloned();
        let bytes = Bytes::from_request(request, app).await;
        let bytes = bytes.map_err(|rejection| unreadable(rejection.status()))?;
        let policy = FieldPolicy::new(app.config().server.strict_fields);
        let read = move |bytes: &[u8]| Self::read(bytes, policy);
        let mut body = json_body::read_with(bytes, read).await?;
        if let Some(caller) = caller {
            caller.notes.ignore(std::mem::take(&mut body.removed));
        }
        Ok(body)
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

/// The fields of a request that had no effect, as an extension of the response.
#[derive(Debug, Clone)]
struct IgnoredFields(Vec<&'static str>);

/// Lists the fields that had no effect in a header of the response, which the outermost layer
/// writes.
pub fn with_ignored_header(response: impl IntoResponse, ignored: &[&'static str]) -> Response {
    let mut response = response.into_response();
    let ignored = IgnoredFields(ignored.to_vec());
    response.extensions_mut().insert(ignored);
    response
}

/// Which ignored fields the log has mentioned.
#[derive(Debug, Default)]
pub struct LoggedFields(Mutex<HashSet<String>>);

impl LoggedFields {
    /// Logs a field the first time that it is ignored.
    fn log(&self, path: &str, name: &str) {
        if self.is_new(name) {
            tracing::warn!(path, field = name, "a field of requests has no effect");
        }
    }

    fn is_new(&self, name: &str) -> bool {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        logged.len() < MOST_LOGGED && logged.insert(name.to_owned())
    }
}

#[test]
fn each_ignored_field_is_logged_once() {
    let logged = LoggedFields::default();
    assert!(logged.is_new("user"));
    assert!(!logged.is_new("user"));
    let new = (0..2 * MOST_LOGGED).filter(|n| logged.is_new(&n.to_string()));
    assert_eq!(new.count(), MOST_LOGGED - 1, "clients cannot fill the log");
}

/// Writes [`IGNORED_HEADER`]: the fields that the response lists, then those that were `removed`
/// from the request's body. Logs each name once.
pub fn write_ignored_header(
    response: &mut Response,
    removed: Vec<String>,
    path: &str,
    logged: &LoggedFields,
) {
    let listed = response.extensions_mut().remove::<IgnoredFields>();
    let listed = listed.into_iter().flat_map(|IgnoredFields(names)| names);
    let names = listed.map(str::to_owned).chain(removed);
    let mut seen = HashSet::new();
    let names: Vec<_> = names
        .map(|name| printable(&name))
        .filter(|name| seen.insert(name.clone()))
        .collect();
    for name in &names {
        logged.log(path, name);
    }
    write_list(response.headers_mut(), &names);
}

/// Header values are ASCII.
fn printable(name: &str) -> String {
    name.escape_default().take(LONGEST_NAME).collect()
}

fn write_list(headers: &mut HeaderMap, names: &[String]) {
    let mut value = String::new();
    for name in names {
        if !value.is_empty() {
            value.push_str(", ");
        }
        if value.len() + name.len() > LONGEST_HEADER {
            value.push_str("...");
            break;
        }
        value.push_str(name);
    }
    if !value.is_empty()
        && let Ok(value) = HeaderValue::from_str(&value)
    {
        headers.insert(IGNORED_HEADER, value);
    }
}
