//! Finds the key in a request's headers.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::Key;
use crate::error::{ApiError, ErrorKind};

/// Where clients put keys: OpenAI's in `Authorization`, Anthropic's in `x-api-key`, Azure's in
/// `api-key`. Some send several; one valid key is enough.
fn presented(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let bearer = headers.get_all(AUTHORIZATION).iter();
    let bearer = bearer.filter_map(|value| bearer_token(value.as_bytes()));
    let named = ["x-api-key", "api-key"].into_iter();
    let named = named.flat_map(|name| headers.get_all(name));
    bearer.chain(named.map(|value| value.as_bytes().trim_ascii()))
}

fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    let (scheme, token) = value.split_at_checked(SCHEME.len())?;
    let token = token.trim_ascii();
    scheme.eq_ignore_ascii_case(SCHEME).then_some(token)
}

/// The configured key, or how to send one.
pub fn find(headers: &HeaderMap, keys: &[Arc<Key>]) -> Result<Arc<Key>, ApiError> {
    let mut any = false;
    for sent in presented(headers).filter(|sent| !sent.is_empty()) {
        any = true;
        if let Some(key) = matching(sent, keys) {
            return Ok(Arc::clone(key));
        }
    }
    Err(if any {
        refused("the API key is not valid").code("invalid_api_key")
    } else {
        refused(
            "an API key is required: send it as `Authorization: Bearer …`, `x-api-key` or `api-key`",
        )
        .code("missing_api_key")
    })
}

fn refused(message: &str) -> ApiError {
    ApiError::new(ErrorKind::Unauthenticated, message)
}

/// Compares all keys in constant time.
fn matching<'a>(sent: &[u8], keys: &'a [Arc<Key>]) -> Option<&'a Arc<Key>> {
    const NONE: u64 = u64::MAX;
    let hash: [u8; 32] = Sha256::digest(sent).into();
    let mut found = NONE;
    for (index, key) in (0..).zip(keys) {
        let same = key.settings.hash.0.ct_eq(&hash);
        found.conditional_assign(&index, same);
    }
    keys.get(usize::try_from(found).ok()?)
}
