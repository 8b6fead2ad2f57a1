//! Logs on stderr, and traces to a collector.
//!
//! A request has one span. Log lines show it; if a collector is configured, the span is also sent
//! there by OTLP, as a child of the client's span if there is one. Neither contains prompts or
//! outputs, unless `log.content` is on.

mod collector;
mod content;
mod log_writer;
mod request;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tracing::Subscriber;
use tracing::subscriber::SetGlobalDefaultError;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::{EnvFilter, FilterFn, ParseError};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry, reload};

use crate::config::{Log, LogFormat, Telemetry};
use collector::Collector;
use log_writer::{LastLines, LogWriter};

pub(crate) use content::Content;
pub(crate) use request::{Generated, RequestTrace, answered, request_span};

/// How long sending the last spans may take.
const FLUSH: Duration = Duration::from_secs(5);

/// Keeps sending traces.
#[must_use = "dropping it loses traces that are not sent yet"]
pub struct Guard {
    traces: Option<SdkTracerProvider>,
    level: LogHandle,
    _last_lines: Option<LastLines>,
}

/// Changes the log level.
#[derive(Clone)]
pub struct LogHandle(Arc<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>);

/// Why logs or traces cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error(
        "log.level {level:?} is not valid ({source}); use a level or a filter such as info,loquat_engine=debug"
    )]
    Level { level: String, source: ParseError },
    #[error(
        "telemetry.otlp_endpoint {endpoint:?} is not valid; use a URL such as http://127.0.0.1:4318"
    )]
    Endpoint { endpoint: String },
    #[error("traces cannot be exported: {0}")]
    Exporter(#[from] ExporterBuildError),
    #[error("this process already has a logger")]
    Taken(#[from] SetGlobalDefaultError),
    #[error("the log's thread cannot be started: {0}")]
    Thread(std::io::Error),
    #[error("the log level cannot be changed: {0}")]
    Reload(#[from] reload::Error),
}

/// Starts logs and traces for the whole process. Call it in the runtime that sends traces. Panics are
/// logged too: the default report would block while nobody reads stderr.
pub fn init(log: &Log, telemetry: &Telemetry) -> Result<Guard, TelemetryError> {
    let fancy = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let writer = LogWriter::start(std::io::stderr()).map_err(TelemetryError::Thread)?;
    let (subscriber, guard) = subscriber(log, telemetry, writer.clone(), fancy)?;
    tracing::subscriber::set_global_default(subscriber)?;
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    Ok(Guard {
        _last_lines: Some(LastLines(writer)),
        ..guard
    })
}

impl Guard {
    pub fn log_level(&self) -> LogHandle {
        self.level.clone()
    }

    /// Sends the remaining traces, for a few seconds at most.
    pub async fn shutdown(mut self) {
        let Some(traces) = self.traces.take() else {
            return;
        };
        let flushed =
            tokio::task::spawn_blocking(move || traces.shutdown_with_timeout(FLUSH)).await;
        if !matches!(flushed, Ok(Ok(()))) {
            tracing::warn!("the last traces were not sent");
        }
    }
}

impl LogHandle {
    /// As `log.level` in the configuration.
    pub fn set_level(&self, level: &str) -> Result<(), TelemetryError> {
        Ok((self.0)(filter(level)?)?)
    }
}

fn filter(level: &str) -> Result<EnvFilter, TelemetryError> {
    EnvFilter::builder()
        .parse(level)
        .map_err(|source| TelemetryError::Level {
            level: level.to_owned(),
            source,
        })
}

fn subscriber<W>(
    log: &Log,
    telemetry: &Telemetry,
    writer: W,
    fancy: bool,
) -> Result<(impl Subscriber + Send + Sync + use<W>, Guard), TelemetryError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(filter(&log.level)?);
    let level = LogHandle(Arc::new(move |filter| handle.reload(filter)));
    let lines = lines(log.format, writer, fancy).with_filter(filter);
    let traces = telemetry
        .otlp_endpoint
        .as_deref()
        .map(|endpoint| provider(endpoint, telemetry))
        .transpose()?;
    let spans = traces.as_ref().map(spans);
    let subscriber = Registry::default().with(lines).with(spans);
    let guard = Guard {
        traces,
        level,
        _last_lines: None,
    };
    Ok((subscriber, guard))
}

fn lines<S, W>(format: LogFormat, writer: W, fancy: bool) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(fancy && format == LogFormat::Text)
        // Write errors would be reported on stderr, the very stream that failed.
        .log_internal_errors(false);
    match format {
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
        LogFormat::Text => {
            // Leaves out fields meant for collectors.
            let fields = debug_fn(|to, field, value| match field.name() {
                "message" => write!(to, "{value:?}"),
                name if name.starts_with("otel.") => Ok(()),
                name => write!(to, "{name}={value:?}"),
            });
            layer.fmt_fields(fields.delimited(" ")).boxed()
        }
    }
}

/// Exports request spans only, at any log level, and no log lines.
fn spans<S>(traces: &SdkTracerProvider) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let requests = FilterFn::new(|metadata| metadata.is_span() && metadata.name() == request::SPAN);
    tracing_opentelemetry::layer()
        .with_tracer(traces.tracer("loquat"))
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_target(false)
        .with_filter(requests)
}

/// Sends spans in the background; drops spans when its queue is full.
fn provider(endpoint: &str, telemetry: &Telemetry) -> Result<SdkTracerProvider, TelemetryError> {
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Collector::new())
        .with_endpoint(collector::traces_url(endpoint)?)
        .build()?;
    let resource = Resource::builder()
        .with_service_name(telemetry.service_name.clone())
        .with_attribute(opentelemetry::KeyValue::new(
            "service.version",
            env!("CARGO_PKG_VERSION"),
        ));
    // Follows the client's sampling decision.
    let sampler = Sampler::TraceIdRatioBased(telemetry.sample_ratio);
    Ok(SdkTracerProvider::builder()
        .with_resource(resource.build())
        .with_sampler(Sampler::ParentBased(Box::new(sampler)))
        .with_batch_exporter(exporter)
        .build())
}
