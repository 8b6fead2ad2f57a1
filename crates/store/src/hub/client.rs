//! Requests to a hub and to its redirect targets.
//!
//! Redirects are followed here instead of in the HTTP library for two reasons: the token must go to
//! the hub's own origin only, and the headers that describe a large file are on the redirect, not
//! on its target.

use std::sync::OnceLock;
use std::time::Duration;

use ureq::http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, LOCATION, RANGE,
    RETRY_AFTER, USER_AGENT,
};
use ureq::http::{HeaderMap, Request, Uri};
use ureq::{Agent, Body};

use super::HubError;
use super::options::{ResolvedHubOptions, without_login};
use super::retry::{RequestFailure, StopSignal};
use super::tuning::DownloadTuning;

const USER: &str = concat!("loquat/", env!("CARGO_PKG_VERSION"));
const MAX_REDIRECTS: usize = 10;
/// Retries for a hub that has not responded yet.
const FIRST_RETRIES: u32 = 2;
/// More than the listing of the largest repositories; limits a hostile response.
const MAX_LISTING_BYTES: u64 = 64 << 20;

pub(crate) struct Client {
    endpoint: String,
    /// The hub's name in messages.
    hub: String,
    origin: Option<Origin>,
    authorization: Option<String>,
    tuning: DownloadTuning,
    agent: OnceLock<Agent>,
}

/// The subject of a request, for error messages.
#[derive(Clone, Copy)]
pub(crate) struct RequestSubject<'a> {
    pub repo: &'a str,
    pub revision: &'a str,
    pub file: Option<&'a str>,
}

/// A requested byte range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub start: u64,
    pub end: u64,
}

/// A usable response: success, or "range not satisfiable".
pub(crate) struct HubResponse {
    pub status: u16,
    pub host: String,
    pub body: Body,
    headers: HeaderMap,
    /// The `x-linked-*` headers of the first response that had them.
    linked: HeaderMap,
}

impl Client {
    pub(crate) fn new(resolved: &ResolvedHubOptions, tuning: &DownloadTuning) -> Self {
        let origin = resolved.endpoint.parse().ok();
        Self {
            endpoint: resolved.endpoint.clone(),
            hub: resolved.name.clone(),
            origin: origin.and_then(|uri| Origin::from_uri(&uri)),
            authorization: resolved
                .token
                .as_ref()
                .map(|token| format!("Bearer {token}")),
            tuning: tuning.clone(),
            agent: OnceLock::new(),
        }
    }

    pub(crate) fn hub(&self) -> &str {
        &self.hub
    }

    pub(crate) fn tuning(&self) -> &DownloadTuning {
        &self.tuning
    }

    /// Fetches an API response as text. This is the first request of a fetch, so an unreachable hub
    /// fails soon: no progress would be lost.
    pub(crate) fn text(&self, path: &str, subject: RequestSubject<'_>) -> Result<String, HubError> {
        let mut no_response = 0;
        self.tuning.retry.run(&StopSignal::default(), || {
            let response = self.send("GET", path, None, subject).map_err(|failure| {
                no_response += u32::from(matches!(failure.error, HubError::Unreachable { .. }));
                if no_response > FIRST_RETRIES {
                    RequestFailure::lasting(failure.error)
                } else {
                    failure
                }
            })?;
            let body = response.body.into_with_config().limit(MAX_LISTING_BYTES);
            body.read_to_string()
                .map_err(|error| RequestFailure::passing(unreachable(&response.host, &error)))
        })
    }

    /// Requests a file's headers.
    pub(crate) fn head(
        &self,
        path: &str,
        subject: RequestSubject<'_>,
    ) -> Result<HubResponse, HubError> {
        self.tuning.retry.run(&StopSignal::default(), || {
            self.send("HEAD", path, None, subject)
        })
    }

    /// The status of a plain HEAD request.
    pub(crate) fn ping(&self, timeout: Duration) -> Result<u16, HubError> {
        let request = self.agent().head(&self.endpoint).config();
        let request = request.timeout_global(Some(timeout)).build();
        let response = request
            .call()
            .map_err(|error| unreachable(&self.hub, &error))?;
        Ok(response.status().as_u16())
    }

    /// Requests a file or a byte range of it.
    pub(crate) fn get(
        &self,
        path: &str,
        span: Option<Span>,
        subject: RequestSubject<'_>,
    ) -> Result<HubResponse, RequestFailure> {
        self.send("GET", path, span, subject)
    }

    fn send(
        &self,
        method: &str,
        path: &str,
        span: Option<Span>,
        subject: RequestSubject<'_>,
    ) -> Result<HubResponse, RequestFailure> {
        let mut address = format!("{}/{path}", self.endpoint);
        let mut linked = HeaderMap::new();
        let mut host = self.hub.clone();
        for _ in 0..MAX_REDIRECTS {
            let uri = parse(&address, &host).map_err(RequestFailure::lasting)?;
            host = host_and_port(&uri);
            let trusted = Origin::from_uri(&uri) == self.origin;
            let request = self
                .request(method, &uri, span, trusted)
                .map_err(|error| RequestFailure::lasting(unreachable(&host, &error)))?;
            let received = self
                .agent()
                .run(request)
                .map_err(|error| RequestFailure::passing(unreachable(&host, &error)))?;
            let (parts, body) = received.into_parts();
            if linked.is_empty() {
                linked = linked_headers(&parts.headers);
            }
            let response = HubResponse {
                status: parts.status.as_u16(),
                host: host.clone(),
                body,
                headers: parts.headers,
                linked: linked.clone(),
            };
            if !matches!(response.status, 301 | 302 | 303 | 307 | 308) {
                return self.check_status(response, trusted, subject);
            }
            let next = redirected(&uri, &response).map_err(RequestFailure::lasting)?;
            let leaves = next
                .parse()
                .ok()
                .and_then(|uri: Uri| Origin::from_uri(&uri))
                != self.origin;
            // The hub's own headers describe the file; the storage host may not know its hash.
            if method == "HEAD" && leaves {
                return Ok(response);
            }
            address = next;
        }
        Err(RequestFailure::lasting(HubError::BadAnswer {
            host: self.hub.clone(),
            what: path.to_owned(),
            problem: format!("it redirects more than {MAX_REDIRECTS} times"),
        }))
    }

    fn request(
        &self,
        method: &str,
        uri: &Uri,
        span: Option<Span>,
        trusted: bool,
    ) -> Result<Request<()>, ureq::Error> {
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .header(USER_AGENT, USER)
            // Ranges and sizes refer to the uncompressed file.
            .header(ACCEPT_ENCODING, "identity");
        if let Some(Span { start, end }) = span {
            request = request.header(RANGE, format!("bytes={start}-{}", end - 1));
        }
        if let (Some(authorization), true) = (&self.authorization, trusted) {
            request = request.header(AUTHORIZATION, authorization);
        }
        Ok(request.body(())?)
    }

    fn agent(&self) -> &Agent {
        self.agent.get_or_init(|| {
            let config = Agent::config_builder()
                .http_status_as_error(false)
                .max_redirects(0)
                .timeout_connect(Some(self.tuning.connect))
                .timeout_recv_response(Some(self.tuning.stall))
                .timeout_per_read(Some(self.tuning.stall))
                .timeout_per_write(Some(self.tuning.stall))
                .tls_config(tls());
            config.build().new_agent()
        })
    }

    fn check_status(
        &self,
        response: HubResponse,
        trusted: bool,
        subject: RequestSubject<'_>,
    ) -> Result<HubResponse, RequestFailure> {
        match response.status {
            200 | 206 | 416 => Ok(response),
            // At a redirect target, a refusal means that the signed address has expired.
            401 | 403 if !trusted => Err(RequestFailure::passing(
                self.access_error(&response, subject),
            )),
            401 | 403 => Err(RequestFailure::lasting(
                self.access_error(&response, subject),
            )),
            404 | 410 => Err(RequestFailure::lasting(self.not_found(&response, subject))),
            429 => Err(self.rate_limited(&response)),
            408 | 500.. => Err(RequestFailure::passing(HubError::Server {
                host: response.host,
                status: response.status,
            })),
            status => Err(RequestFailure::lasting(HubError::BadAnswer {
                host: response.host,
                what: subject.file.unwrap_or(subject.repo).to_owned(),
                problem: format!("its status is {status}"),
            })),
        }
    }

    fn access_error(&self, response: &HubResponse, subject: RequestSubject<'_>) -> HubError {
        let repo = subject.repo.to_owned();
        let has_token = self.authorization.is_some();
        match response.header("x-error-code") {
            Some("GatedRepo") => HubError::Gated {
                page: format!("{}/{repo}", without_login(&self.endpoint)),
                repo,
                has_token,
            },
            // The hub hides private repositories behind this code.
            Some("RepoNotFound") => HubError::RepoNotFound {
                repo,
                hub: self.hub.clone(),
            },
            _ => HubError::Refused {
                repo,
                hub: self.hub.clone(),
                status: response.status,
                has_token,
            },
        }
    }

    fn not_found(&self, response: &HubResponse, subject: RequestSubject<'_>) -> HubError {
        let RequestSubject {
            repo,
            revision,
            file,
        } = subject;
        let (repo, revision) = (repo.to_owned(), revision.to_owned());
        let hub = self.hub.clone();
        match (response.header("x-error-code"), file) {
            (Some("RevisionNotFound"), _) => HubError::RevisionNotFound {
                repo,
                revision,
                hub,
            },
            (None | Some("EntryNotFound"), Some(file)) => HubError::FileNotFound {
                repo,
                revision,
                file: file.to_owned(),
                hub,
            },
            _ => HubError::RepoNotFound { repo, hub },
        }
    }

    fn rate_limited(&self, response: &HubResponse) -> RequestFailure {
        let wait = response.wait();
        let error = HubError::RateLimited {
            host: response.host.clone(),
            wait,
        };
        match wait {
            Some(wait) if wait > self.tuning.longest_wait => RequestFailure::lasting(error),
            Some(wait) => RequestFailure::after(wait, error),
            None => RequestFailure::passing(error),
        }
    }
}

impl HubResponse {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    fn linked(&self, name: &str) -> Option<&str> {
        self.linked.get(name)?.to_str().ok()
    }

    /// The content's ETag. Equal for two responses only if they serve the same content.
    pub(crate) fn identity(&self) -> Option<&str> {
        let etag = self
            .linked("x-linked-etag")
            .or_else(|| self.header(ETAG.as_str()))?;
        let etag = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
        let plain = etag.bytes().all(|byte| byte.is_ascii_graphic());
        (plain && !etag.is_empty()).then_some(etag)
    }

    /// Size of the whole file, if the response states it.
    pub(crate) fn file_size(&self) -> Option<u64> {
        if let Some(size) = self.linked("x-linked-size") {
            return size.parse().ok();
        }
        match self.header(CONTENT_RANGE.as_str()) {
            Some(range) => range.rsplit_once('/')?.1.parse().ok(),
            None => self.header(CONTENT_LENGTH.as_str())?.parse().ok(),
        }
    }

    /// Offset of a partial response's body in the file.
    pub(crate) fn span_start(&self) -> Option<u64> {
        let range = self.header(CONTENT_RANGE.as_str())?;
        let range = range.trim().strip_prefix("bytes")?.trim_start();
        range.split_once('-')?.0.parse().ok()
    }

    /// The requested delay before a retry, from `Retry-After` (seconds only) or the hub's
    /// `RateLimit`.
    fn wait(&self) -> Option<Duration> {
        let after = self.header(RETRY_AFTER.as_str());
        let limit = self.header("ratelimit");
        let reset = || {
            limit?
                .split(';')
                .find_map(|part| part.trim().strip_prefix("t="))
        };
        let seconds = after.or_else(reset)?.trim().parse().ok()?;
        Some(Duration::from_secs(seconds))
    }
}

/// The origin that may receive the token.
#[derive(Debug, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl Origin {
    fn from_uri(uri: &Uri) -> Option<Self> {
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let default = if scheme == "https" { 443 } else { 80 };
        Some(Self {
            host: uri.host()?.to_ascii_lowercase(),
            port: uri.port_u16().unwrap_or(default),
            scheme,
        })
    }
}

fn tls() -> ureq::tls::TlsConfig {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!("some system certificates cannot be read: {error}");
    }
    let certificates: Vec<_> = found
        .certs
        .iter()
        .map(|certificate| ureq::tls::Certificate::from_der(certificate).to_owned())
        .collect();
    ureq::tls::TlsConfig::builder()
        .root_certs(ureq::tls::RootCerts::from(certificates))
        .unversioned_rustls_crypto_provider(rustls::crypto::ring::default_provider().into())
        .build()
}

/// Host and port, without a user name and password.
fn host_and_port(uri: &Uri) -> String {
    let host = uri.host().unwrap_or_default();
    match uri.port_u16() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

/// Parses an address received from `from`. Errors do not show the address, which may be signed.
fn parse(address: &str, from: &str) -> Result<Uri, HubError> {
    address.parse().map_err(|error| HubError::BadAnswer {
        host: from.to_owned(),
        what: "a redirect".to_owned(),
        problem: format!("{error}"),
    })
}

fn linked_headers(headers: &HeaderMap) -> HeaderMap {
    ["x-linked-etag", "x-linked-size"]
        .into_iter()
        .filter_map(|name| {
            let value = headers.get(name)?.clone();
            Some((ureq::http::HeaderName::from_static(name), value))
        })
        .collect()
}

/// The target of a redirect.
fn redirected(from: &Uri, response: &HubResponse) -> Result<String, HubError> {
    let bad_redirect = |problem: &str| HubError::BadAnswer {
        host: response.host.clone(),
        what: from.path().to_owned(),
        problem: problem.to_owned(),
    };
    let location = response
        .header(LOCATION.as_str())
        .ok_or_else(|| bad_redirect("a redirect has no location"))?;
    let scheme = from.scheme_str().unwrap_or("https");
    if location.starts_with("http://") && scheme == "https" {
        return Err(bad_redirect("it redirects from https to http"));
    }
    if location.starts_with("http://") || location.starts_with("https://") {
        return Ok(location.to_owned());
    }
    if location.starts_with("//") {
        return Ok(format!("{scheme}:{location}"));
    }
    if location.starts_with('/') {
        let authority = from.authority().map_or("", |authority| authority.as_str());
        return Ok(format!("{scheme}://{authority}{location}"));
    }
    Err(bad_redirect(
        "it redirects to an address that is neither absolute nor a path",
    ))
}

pub(crate) fn unreachable(host: &str, error: &(dyn std::error::Error + 'static)) -> HubError {
    let cause = match error.downcast_ref() {
        // Its text is the address, which may contain a password or a signature.
        Some(ureq::Error::BadUri(_)) => "its address cannot be used".to_owned(),
        _ => error.to_string(),
    };
    HubError::Unreachable {
        host: host.to_owned(),
        cause,
    }
}

/// Percent-encodes a path.
pub(crate) fn escaped(path: &str, keep_slashes: bool) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(byte.into());
            }
            b'/' if keep_slashes => text.push('/'),
            _ => text += &format!("%{byte:02X}"),
        }
    }
    text
}
