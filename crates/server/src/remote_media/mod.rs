//! Images and videos that requests name by their address.
//!
//! Off unless the configuration lists hosts. A remote address is replaced by what it holds before
//! anything else reads the request, so that the rest of the server knows `data:` URIs only, and a
//! stored response does not depend on the address.

mod client;
mod hosts;

use std::sync::OnceLock;
use std::time::Instant;

use tokio::sync::Semaphore;

use self::client::{Client, FetchLimits};
pub use self::hosts::AllowedHost;
use crate::app::App;
use crate::error::ApiError;
use crate::field::FieldPath;
use crate::models::Lease;
use crate::{lowering, media_data};

/// Requests whose media are fetched at once.
static FETCHING: Semaphore = Semaphore::const_new(8);

/// Reads the system's certificates, which takes a while.
static CLIENT: OnceLock<Client> = OnceLock::new();

/// The fields of a request that may hold addresses of media.
pub trait MediaUrls {
    fn media_urls(&mut self) -> Vec<(FieldPath, &mut String)>;
}

/// Replaces the remote addresses in a request by `data:` URIs, if the configuration lists hosts.
pub async fn fetch(app: &App, lease: &Lease, request: &mut impl MediaUrls) -> Result<(), ApiError> {
    let config = app.config();
    let settings = &config.remote_media;
    if settings.hosts.is_empty() {
        return Ok(());
    }
    let urls = request.media_urls().into_iter();
    let mut remote: Vec<_> = urls.filter(|(_, url)| media_data::is_http(url)).collect();
    let Some((first, _)) = remote.first() else {
        return Ok(());
    };
    if let Some(why) = lease.chat_context().media_refusal() {
        let problem = format!("is an image or a video, and {why}");
        return Err(ApiError::invalid(first.clone(), problem));
    }
    let hosts = settings.hosts.iter();
    let hosts: Vec<_> = hosts.filter_map(|host| AllowedHost::parse(host)).collect();
    let (mut left, timeout) = (settings.max_bytes, settings.timeout);
    let wanted = remote.iter();
    let wanted = wanted.map(|(field, url)| (field.clone(), (*url).clone()));
    let wanted: Vec<_> = wanted.collect();
    let permit = FETCHING.acquire().await;
    let permit = permit.map_err(|error| ApiError::internal(&error))?;
    let fetched = lowering::run_stoppable(move |stop| {
        // Held until the work ends, even if the client leaves.
        let _permit = permit;
        let until = Instant::now() + timeout;
        let client = CLIENT.get_or_init(Client::new);
        let mut fetched = Vec::with_capacity(wanted.len());
        for (field, url) in wanted {
            stop.check()?;
            let limits = FetchLimits {
                hosts: &hosts,
                max_bytes: left,
                until,
            };
            let bytes = client.fetch(&url, limits);
            let bytes = bytes.map_err(|error| ApiError::invalid(field, error.to_string()))?;
            left -= bytes.len() as u64;
            fetched.push(media_data::untyped_url(&bytes));
        }
        Ok(fetched)
    })
    .await?;
    for ((_, url), data) in remote.iter_mut().zip(fetched) {
        **url = data;
    }
    Ok(())
}
