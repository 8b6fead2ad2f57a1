//! The machine's limits: memory bandwidth and int8 arithmetic.

use std::num::NonZeroUsize;

use serde_json::json;

use super::error::BenchError;
use super::report::Report;

/// Measures the machine. No model is needed, so the report has no head.
pub fn machine(threads: Option<NonZeroUsize>) -> Result<Report, BenchError> {
    let limits = loquat::machine::machine_limits(threads)?;
    let text = format!(
        "{} thread{}\nmemory read  {:.1} GB/s\nint8         {:.0} billion multiply-adds/s ({})\n",
        limits.threads,
        if limits.threads == 1 { "" } else { "s" },
        limits.read_bytes_per_second / 1e9,
        limits.multiply_adds_per_second / 1e9,
        limits.instructions,
    );
    let json = json!({
        "scenario": "machine",
        "threads": limits.threads,
        "read_bytes_per_second": limits.read_bytes_per_second,
        "int8_multiply_adds_per_second": limits.multiply_adds_per_second,
        "instructions": limits.instructions,
    });
    Ok(Report::new(String::new(), text, json))
}
