//! Fetches a file over HTTP from a listed host.

use std::io::Read;
use std::time::{Duration, Instant};

use ureq::config::Config;
use ureq::http::header::{CONTENT_LENGTH, LOCATION};
use ureq::http::{Response, Uri};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Body};

use super::hosts::{Address, AllowedHost, is_public, literal};

const USER: &str = concat!("loquat/", env!("CARGO_PKG_VERSION"));
const MAX_REDIRECTS: usize = 3;

/// Why a file was not fetched, worded to follow the name of a field.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("is not a URL that can be fetched: `https://host/path`")]
    Invalid,
    #[error("is on a host that this server does not fetch from (`remote_media.hosts`)")]
    NotListed,
    #[error("redirects to a host that this server does not fetch from (`remote_media.hosts`)")]
    RedirectNotListed,
    #[error("redirects more than {MAX_REDIRECTS} times")]
    RedirectLoop,
    #[error("redirects to nowhere")]
    BadRedirect,
    #[error(
        "has more than the {0} bytes that are left for remote media (`remote_media.max_bytes`)"
    )]
    TooLarge(u64),
    #[error("took longer than allowed (`remote_media.timeout`)")]
    TooSlow,
    #[error("is on a host whose name leads to an address that is not public")]
    PrivateAddress,
    #[error("was answered with status {0}")]
    Status(u16),
    #[error("cannot be fetched: {0}")]
    Failed(String),
}

/// What fetching is limited to.
#[derive(Debug, Clone, Copy)]
pub struct FetchLimits<'a> {
    pub hosts: &'a [AllowedHost],
    pub max_bytes: u64,
    pub until: Instant,
}

/// Redirects are followed here, because each of them is checked like the URL.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
}

impl Client {
    pub fn new() -> Self {
        let config = Config::builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_response_header_size(32 << 10)
            // A proxy would resolve names itself.
            .proxy(None)
            // The addresses of a name are checked for every connection.
            .max_idle_connections(0)
            .user_agent(USER)
            .tls_config(tls())
            .build();
        Self {
            agent: Agent::with_parts(
                config,
                DefaultConnector::default(),
                PublicResolver::default(),
            ),
        }
    }

    /// The file behind a URL. Blocks.
    pub fn fetch(&self, url: &str, limits: FetchLimits<'_>) -> Result<Vec<u8>, FetchError> {
        let mut uri: Uri = url.parse().map_err(|_| FetchError::Invalid)?;
        for redirects in 0..=MAX_REDIRECTS {
            let address = Address::from_uri(&uri).ok_or(FetchError::Invalid)?;
            if !address.is_listed(limits.hosts) {
                return Err(match redirects {
                    0 => FetchError::NotListed,
                    _ => FetchError::RedirectNotListed,
                });
            }
            let response = self.get(&uri, limits.until)?;
            match response.status().as_u16() {
                200 => return read(response, limits.max_bytes),
                301 | 302 | 303 | 307 | 308 => uri = redirected(&uri, &response)?,
                status => return Err(FetchError::Status(status)),
            }
        }
        Err(FetchError::RedirectLoop)
    }

    fn get(&self, uri: &Uri, until: Instant) -> Result<Response<Body>, FetchError> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(FetchError::TooSlow);
        }
        let request = self.agent.get(uri).config();
        // Of the body, too.
        let request = request.timeout_global(Some(left.max(Duration::from_millis(1))));
        request.build().call().map_err(failure)
    }
}

fn read(response: Response<Body>, max_bytes: u64) -> Result<Vec<u8>, FetchError> {
    let length = response.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > max_bytes) {
        return Err(FetchError::TooLarge(max_bytes));
    }
    // The header may be missing or wrong.
    let mut bytes = Vec::new();
    let mut body = response.into_body().into_reader().take(max_bytes + 1);
    body.read_to_end(&mut bytes)
        .map_err(|error| failure(ureq::Error::from(error)))?;
    if bytes.len() as u64 > max_bytes {
        return Err(FetchError::TooLarge(max_bytes));
    }
    Ok(bytes)
}

fn failure(error: ureq::Error) -> FetchError {
    match error {
        ureq::Error::Timeout(_) => FetchError::TooSlow,
        ureq::Error::Other(error) if error.is::<NotPublic>() => FetchError::PrivateAddress,
        // Its text is the address, which may contain a signature.
        ureq::Error::BadUri(_) => FetchError::Invalid,
        ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => {
            FetchError::TooSlow
        }
        error => FetchError::Failed(error.to_string()),
    }
}

fn redirected(from: &Uri, response: &Response<Body>) -> Result<Uri, FetchError> {
    let location = response.headers().get(LOCATION);
    let location = location.and_then(|location| location.to_str().ok());
    let location = location.ok_or(FetchError::BadRedirect)?;
    let scheme = from.scheme_str().unwrap_or("https");
    let authority = from.authority().map_or("", |authority| authority.as_str());
    let target = if location.contains("://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        let folder = from
            .path()
            .rsplit_once('/')
            .map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    };
    target.parse().map_err(|_| FetchError::BadRedirect)
}

/// Resolves names to public addresses only, and the connection uses what was checked here. Address
/// literals are in the configuration's list.
#[derive(Debug, Default)]
struct PublicResolver(DefaultResolver);

#[derive(Debug, thiserror::Error)]
#[error("the address is not public")]
struct NotPublic;

impl Resolver for PublicResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.0.resolve(uri, config, timeout)?;
        let is_literal = uri.host().and_then(literal).is_some();
        if is_literal || found.iter().all(|address| is_public(address.ip())) {
            return Ok(found);
        }
        Err(ureq::Error::Other(Box::new(NotPublic)))
    }
}

fn tls() -> ureq::tls::TlsConfig {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!("some system certificates cannot be read: {error}");
    }
    let certificates = found.certs.iter();
    let certificates: Vec<_> = certificates
        .map(|certificate| ureq::tls::Certificate::from_der(certificate).to_owned())
        .collect();
    ureq::tls::TlsConfig::builder()
        .root_certs(ureq::tls::RootCerts::from(certificates))
        .unversioned_rustls_crypto_provider(
            tokio_rustls::rustls::crypto::ring::default_provider().into(),
        )
        .build()
}
