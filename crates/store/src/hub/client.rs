//! Requests to a hub and to where it redirects.
//!
//! Redirects are followed here and not by the HTTP library, for two reasons: the token must go to
//! the hub's own origin only, and the headers that describe a large file stand on the redirect,
//! not on what it leads to.

use std::sync::OnceLock;
use std::time::Duration;

use ureq::http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, LOCATION, RANGE,
    RETRY_AFTER, USER_AGENT,
};
use ureq::http::{HeaderMap, Request, Uri};
use ureq::{Agent, Body};

use super::HubError;
use super::options::{Settled, without_login};
use super::patience::{Failure, Stop};
use super::tuning::Tuning;

const USER: &str = concat!("loquat/", env!("CARGO_PKG_VERSION"));
const REDIRECTS: usize = 10;
/// More than the listing of the largest repositories; a hostile answer ends here.
/// Of a hub that has never answered.
const FIRST_RETRIES: u32 = 2;
const LONGEST_LISTING: u64 = 64 << 20;

pub(crate) struct Client {
    endpoint: String,
    /// How messages call the hub.
    hub: String,
    origin: Option<Origin>,
    authorization: Option<String>,
    tuning: Tuning,
    agent: OnceLock<Agent>,
}

/// What a request is about, for messages.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub repo: &'a str,
    pub revision: &'a str,
    pub file: Option<&'a str>,
}

/// The bytes of a file that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub start: u64,
    pub end: u64,
}

/// An answer that may be used: a success, or that a span cannot be had.
pub(crate) struct Answer {
    pub status: u16,
    pub host: String,
    pub body: Body,
    headers: HeaderMap,
    /// Of the first answer that named what it links to.
    linked: HeaderMap,
}

impl Client {
    pub(crate) fn new(settled: &Settled, tuning: &Tuning) -> Self {
        let origin = settled.endpoint.parse().ok();
        Self {
            endpoint: settled.endpoint.clone(),
            hub: settled.name.clone(),
            origin: origin.and_then(|uri| Origin::of(&uri)),
            authorization: settled
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

    pub(crate) fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// The text of an API's answer. It is the first thing asked, so a hub that does not answer at
    /// all is given up soon: nothing is under way that would be lost.
    pub(crate) fn text(&self, path: &str, subject: Subject<'_>) -> Result<String, HubError> {
        let mut unanswered = 0;
        self.tuning.patience.persist(&Stop::default(), || {
            let answer = self.ask("GET", path, None, subject).map_err(|failure| {
                unanswered += u32::from(matches!(failure.error, HubError::Unreachable { .. }));
                if unanswered > FIRST_RETRIES {
                    Failure::lasting(failure.error)
                } else {
                    failure
                }
            })?;
            let body = answer.body.into_with_config().limit(LONGEST_LISTING);
            body.read_to_string()
                .map_err(|error| Failure::passing(unreachable(&answer.host, &error)))
        })
    }

    /// What the hub says about a file without giving it.
    pub(crate) fn head(&self, path: &str, subject: Subject<'_>) -> Result<Answer, HubError> {
        self.tuning
            .patience
            .persist(&Stop::default(), || self.ask("HEAD", path, None, subject))
    }

    /// The status that a bare question gets within so long.
    pub(crate) fn status(&self, patience: Duration) -> Result<u16, HubError> {
        let request = self.agent().head(&self.endpoint).config();
        let request = request.timeout_global(Some(patience)).build();
        let answer = request
            .call()
            .map_err(|error| unreachable(&self.hub, &error))?;
        Ok(answer.status().as_u16())
    }

    /// A file, or a span of it.
    pub(crate) fn get(
        &self,
        path: &str,
        span: Option<Span>,
        subject: Subject<'_>,
    ) -> Result<Answer, Failure> {
        self.ask("GET", path, span, subject)
    }

    fn ask(
        &self,
        method: &str,
        path: &str,
        span: Option<Span>,
        subject: Subject<'_>,
    ) -> Result<Answer, Failure> {
        let mut address = format!("{}/{path}", self.endpoint);
        let mut linked = HeaderMap::new();
        let mut host = self.hub.clone();
        for _ in 0..REDIRECTS {
            let uri = parse(&address, &host).map_err(Failure::lasting)?;
            host = host_of(&uri);
            let trusted = Origin::of(&uri) == self.origin;
            let request = self
                .request(method, &uri, span, trusted)
                .map_err(|error| Failure::lasting(unreachable(&host, &error)))?;
            let response = self
                .agent()
                .run(request)
                .map_err(|error| Failure::passing(unreachable(&host, &error)))?;
            let (parts, body) = response.into_parts();
            if linked.is_empty() {
                linked = linked_headers(&parts.headers);
            }
            let answer = Answer {
                status: parts.status.as_u16(),
                host: host.clone(),
                body,
                headers: parts.headers,
                linked: linked.clone(),
            };
            if !matches!(answer.status, 301 | 302 | 303 | 307 | 308) {
                return self.judge(answer, trusted, subject);
            }
            let next = redirected(&uri, &answer).map_err(Failure::lasting)?;
            let leaves = next.parse().ok().and_then(|uri: Uri| Origin::of(&uri)) != self.origin;
            // Whoever the hub sends us to need not know about hashes; the hub has said them.
            if method == "HEAD" && leaves {
                return Ok(answer);
            }
            address = next;
        }
        Err(Failure::lasting(HubError::BadAnswer {
            host: self.hub.clone(),
            what: path.to_owned(),
            problem: format!("it redirects more than {REDIRECTS} times"),
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
            // A compressed answer has other bytes, and other ranges, than the file.
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

    fn judge(
        &self,
        answer: Answer,
        trusted: bool,
        subject: Subject<'_>,
    ) -> Result<Answer, Failure> {
        match answer.status {
            200 | 206 | 416 => Ok(answer),
            // Where the hub sends us, a refusal is an address that has expired.
            401 | 403 if !trusted => Err(Failure::passing(self.refused(&answer, subject))),
            401 | 403 => Err(Failure::lasting(self.refused(&answer, subject))),
            404 | 410 => Err(Failure::lasting(self.not_found(&answer, subject))),
            429 => Err(self.too_fast(&answer)),
            408 | 500.. => Err(Failure::passing(HubError::Server {
                host: answer.host,
                status: answer.status,
            })),
            status => Err(Failure::lasting(HubError::BadAnswer {
                host: answer.host,
                what: subject.file.unwrap_or(subject.repo).to_owned(),
                problem: format!("its status is {status}"),
            })),
        }
    }

    fn refused(&self, answer: &Answer, subject: Subject<'_>) -> HubError {
        let repo = subject.repo.to_owned();
        let has_token = self.authorization.is_some();
        match answer.header("x-error-code") {
            Some("GatedRepo") => HubError::Gated {
                page: format!("{}/{repo}", without_login(&self.endpoint)),
                repo,
                has_token,
            },
            // The hub does not tell strangers which private repositories exist.
            Some("RepoNotFound") => HubError::RepoNotFound {
                repo,
                hub: self.hub.clone(),
            },
            _ => HubError::Refused {
                repo,
                hub: self.hub.clone(),
                status: answer.status,
                has_token,
            },
        }
    }

    fn not_found(&self, answer: &Answer, subject: Subject<'_>) -> HubError {
        let Subject {
            repo,
            revision,
            file,
        } = subject;
        let (repo, revision) = (repo.to_owned(), revision.to_owned());
        let hub = self.hub.clone();
        match (answer.header("x-error-code"), file) {
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

    fn too_fast(&self, answer: &Answer) -> Failure {
        let wait = answer.wait();
        let error = HubError::RateLimited {
            host: answer.host.clone(),
            wait,
        };
        match wait {
            Some(wait) if wait > self.tuning.longest_wait => Failure::lasting(error),
            Some(wait) => Failure::after(wait, error),
            None => Failure::passing(error),
        }
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    fn linked(&self, name: &str) -> Option<&str> {
        self.linked.get(name)?.to_str().ok()
    }

    /// What names this content: equal for two answers only if their bytes are of one file.
    pub(crate) fn identity(&self) -> Option<&str> {
        let etag = self
            .linked("x-linked-etag")
            .or_else(|| self.header(ETAG.as_str()))?;
        let etag = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
        let plain = etag.bytes().all(|byte| byte.is_ascii_graphic());
        (plain && !etag.is_empty()).then_some(etag)
    }

    /// Bytes of the whole file, as far as the answer says.
    pub(crate) fn file_size(&self) -> Option<u64> {
        if let Some(size) = self.linked("x-linked-size") {
            return size.parse().ok();
        }
        match self.header(CONTENT_RANGE.as_str()) {
            Some(range) => range.rsplit_once('/')?.1.parse().ok(),
            None => self.header(CONTENT_LENGTH.as_str())?.parse().ok(),
        }
    }

    /// Where in the file the body of a partial answer begins.
    pub(crate) fn span_start(&self) -> Option<u64> {
        let range = self.header(CONTENT_RANGE.as_str())?;
        let range = range.trim().strip_prefix("bytes")?.trim_start();
        range.split_once('-')?.0.parse().ok()
    }

    /// How long the server wants to be left alone. The hub says it in `RateLimit`, others in
    /// `Retry-After`, whose form with a date is not worth a calendar.
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

/// Who a token may be shown to.
#[derive(Debug, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl Origin {
    fn of(uri: &Uri) -> Option<Self> {
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
        tracing::warn!("some of this machine's certificates cannot be read: {error}");
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

/// Host and port; an address may also hold a password.
fn host_of(uri: &Uri) -> String {
    let host = uri.host().unwrap_or_default();
    match uri.port_u16() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

/// `from` is who gave the address, which may be signed and is not shown.
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

/// The address a redirect leads to.
fn redirected(from: &Uri, answer: &Answer) -> Result<String, HubError> {
    let wrong = |problem: &str| HubError::BadAnswer {
        host: answer.host.clone(),
        what: from.path().to_owned(),
        problem: problem.to_owned(),
    };
    let location = answer
        .header(LOCATION.as_str())
        .ok_or_else(|| wrong("it redirects to nowhere"))?;
    let scheme = from.scheme_str().unwrap_or("https");
    if location.starts_with("http://") && scheme == "https" {
        return Err(wrong(
            "it redirects from https to http, where anybody could change it",
        ));
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
    Err(wrong(
        "it redirects to an address that is neither whole nor a path",
    ))
}

pub(crate) fn unreachable(host: &str, error: &(dyn std::error::Error + 'static)) -> HubError {
    let cause = match error.downcast_ref() {
        // Its text is the address, which may hold a password or be signed.
        Some(ureq::Error::BadUri(_)) => "its address cannot be used".to_owned(),
        _ => error.to_string(),
    };
    HubError::Unreachable {
        host: host.to_owned(),
        cause,
    }
}

/// A path's bytes as an address may hold them.
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
