//! Logs on stderr, and traces to a collector.
//!
//! A request has one span. Logs show it before every line; where a collector is configured it is
//! also sent there by OTLP, as a child of the client's own span if the client names one. What
//! requests are about is in neither, unless the configuration asks for it in the log.

mod collector;
mod content;
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

pub(crate) use content::Content;
pub(crate) use request::{Generated, RequestTrace, answered, request_span};

/// How long what is not sent yet may take at the end.
const FLUSH: Duration = Duration::from_secs(5);

/// Keeps traces going out.
#[must_use = "traces that are not sent when it is dropped are lost"]
pub struct Guard {
    traces: Option<SdkTracerProvider>,
    level: LogHandle,
}

/// Changes what is logged.
#[derive(Clone)]
pub struct LogHandle(Arc<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>);

/// Why logs or traces cannot be as they were asked for.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error(
        "log.level is {level:?}, which does not read ({source}); it must be a level or a filter such as info,loquat_engine=debug"
    )]
    Level { level: String, source: ParseError },
    #[error(
        "telemetry.otlp_endpoint is {endpoint:?}; it must be an address such as http://127.0.0.1:4318"
    )]
    Endpoint { endpoint: String },
    #[error("traces cannot be exported: {0}")]
    Exporter(#[from] ExporterBuildError),
    #[error("something else logs in this process already")]
    Taken(#[from] SetGlobalDefaultError),
    #[error("the log's level cannot be changed: {0}")]
    Reload(#[from] reload::Error),
}

/// Starts both, for the whole process. Call it within the runtime that is to send traces.
pub fn init(log: &Log, telemetry: &Telemetry) -> Result<Guard, TelemetryError> {
    let fancy = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let (subscriber, guard) = subscriber(log, telemetry, std::io::stderr, fancy)?;
    tracing::subscriber::set_global_default(subscriber)?;
    Ok(guard)
}

impl Guard {
    pub fn log_level(&self) -> LogHandle {
        self.level.clone()
    }

    /// Sends what is not sent yet, for a few seconds at most.
    pub async fn shutdown(self) {
        let Some(traces) = self.traces else {
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
    Ok((subscriber, Guard { traces, level }))
}

fn lines<S, W>(format: LogFormat, writer: W, fancy: bool) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(fancy && format == LogFormat::Text)
        // It would complain on stderr, which is what cannot be written.
        .log_internal_errors(false);
    match format {
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
        LogFormat::Text => {
            // What only collectors understand is left out.
            let fields = debug_fn(|to, field, value| match field.name() {
                "message" => write!(to, "{value:?}"),
                name if name.starts_with("otel.") => Ok(()),
                name => write!(to, "{name}={value:?}"),
            });
            layer.fmt_fields(fields.delimited(" ")).boxed()
        }
    }
}

/// Requests only, whatever the log's level is. Lines of the log stay where they are.
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

/// Sends spans in the background; what does not fit its queue is dropped.
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
    // What the client decided about its trace holds for ours.
    let sampler = Sampler::TraceIdRatioBased(telemetry.sample_ratio);
    Ok(SdkTracerProvider::builder()
        .with_resource(resource.build())
        .with_sampler(Sampler::ParentBased(Box::new(sampler)))
        .with_batch_exporter(exporter)
        .build())
}
