//! One connection: HTTP/1 or HTTP/2, with or without TLS, within its limits.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::header::{CONNECTION, CONTENT_TYPE, EXPECT};
use axum::http::{HeaderMap, HeaderValue, Request, Response, Version};
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use super::incoming::TrackedBody;
use super::outgoing::{Outgoing, hold};
use super::socket::Socket;
use super::watch::{Overdue, Watch, pace};
use crate::app::App;
use crate::config::Limits;
use crate::metrics::SocketClock;

/// hyper refuses to work with less room for headers.
const LEAST_HEADER_BYTES: usize = 8192;
/// How often peers of HTTP/2 are asked whether they are there, and how long they may take to say.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Requests at once on one connection of HTTP/2.
const STREAMS: u32 = 256;
/// How long a connection may take to end once it was told to.
pub const ENDING: Duration = Duration::from_secs(2);

/// What connections need from the server.
#[derive(Clone)]
pub struct ServerContext {
    pub app: Arc<App>,
    pub router: Router,
    /// Turns true when connections are to end.
    pub closing: watch::Receiver<bool>,
}

/// Serves a client until it leaves, is told to, or takes too long.
pub async fn serve(stream: TcpStream, tls: Option<TlsAcceptor>, context: ServerContext) {
    // Otherwise a token may wait for the acknowledgement of the one before.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("the connection closed: {error}");
        return;
    }
    let limits = context.app.config().limits.clone();
    let watch = Watch::new(Instant::now());
    let clock = context.app.metrics.socket_clock();
    let socket = Socket::new(stream, Arc::clone(&watch), Arc::clone(&clock));
    let service_state = Arc::new(ConnectionService {
        app: context.app,
        router: context.router,
        watch,
        clock,
    });
    let Some(tls) = tls else {
        return drive(
            TokioIo::new(socket),
            service_state,
            &limits,
            context.closing,
        )
        .await;
    };
    match timeout(limits.header_timeout, tls.accept(socket.below_tls())).await {
        Ok(Ok(stream)) => {
            drive(
                TokioIo::new(stream),
                service_state,
                &limits,
                context.closing,
            )
            .await
        }
        Ok(Err(error)) => tracing::debug!("TLS handshake failed: {error}"),
        Err(_) => tracing::debug!("TLS handshake timed out"),
    }
}

async fn drive<I>(
    io: I,
    service_state: Arc<ConnectionService>,
    limits: &Limits,
    mut closing: watch::Receiver<bool>,
) where
    I: Read + Write + Unpin + Send + 'static,
{
    let watch = Arc::clone(&service_state.watch);
    let builder = builder(limits);
    let service = service_fn(move |request| {
        let service_state = Arc::clone(&service_state);
        async move { Ok::<_, Infallible>(service_state.answer(request).await) }
    });
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    let mut look = interval(pace(limits));
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ending: Option<Instant> = None;
    loop {
        tokio::select! {
            biased;
            ended = &mut connection => {
                if let Err(error) = ended {
                    tracing::debug!("connection error: {error}");
                }
                return;
            }
            _ = closing.wait_for(|closing| *closing), if ending.is_none() => {
                ending = Some(Instant::now());
                connection.as_mut().graceful_shutdown();
            }
            _ = look.tick() => {
                let now = Instant::now();
                match watch.check(limits, now) {
                    None => {}
                    Some(Overdue::Idle) if ending.is_none() => {
                        ending = Some(now);
                        connection.as_mut().graceful_shutdown();
                    }
                    Some(Overdue::Idle) if ending.is_some_and(|at| now - at < ENDING) => {}
                    // Dropping the connection drops its requests, which cancels them.
                    Some(overdue) => {
                        tracing::debug!(?overdue, "closing the connection");
                        return;
                    }
                }
            }
        }
    }
}

fn builder(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let header_bytes = limits.header_bytes.max(LEAST_HEADER_BYTES);
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // `Watch` has its own, which distinguishes slow from idle.
        .header_read_timeout(None)
        .max_buf_size(header_bytes);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(header_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(STREAMS)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// Answers the requests of a connection.
struct ConnectionService {
    app: Arc<App>,
    router: Router,
    watch: Arc<Watch>,
    clock: Arc<SocketClock>,
}

impl ConnectionService {
    async fn answer(&self, request: Request<Incoming>) -> Response<Outgoing> {
        let counted = (
            self.watch.begin(request.version()),
            self.app.traffic.enter(),
        );
        let is_http1 = request.version() < Version::HTTP_2;
        let (mut parts, body) = request.into_parts();
        let expects = parts.headers.contains_key(EXPECT);
        let (body, rest) = TrackedBody::new(body, Arc::clone(&self.watch));
        parts.extensions.insert(Arc::clone(&self.clock));
        let request = Request::from_parts(parts, Body::new(body));
        let mut response = match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        if is_http1 {
            let unread = !rest.skip(expects).await;
            if unread {
                self.watch.leaves_unread();
            }
            if unread || self.app.is_stopping() {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
        }
        self.watch.answered();
        let (parts, body) = hold(response, counted).into_parts();
        let pings = is_event_stream(&parts.headers).then(|| Arc::clone(&self.watch));
        let (outgoing, slot) = Outgoing::new(body, pings);
        self.watch.follow(&slot);
        Response::from_parts(parts, outgoing)
    }
}
