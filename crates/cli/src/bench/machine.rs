//! What the machine can do at most, to judge everything else by.

use serde_json::json;

use super::as_json;
use crate::args::BenchArgs;
use crate::backends;
use crate::error::CliError;
use crate::terminal::print;

pub fn run(args: &BenchArgs) -> Result<(), CliError> {
    let limits = backends::machine_limits(args.session.threads)?;
    let text = if args.json {
        let report = json!({
            "threads": limits.threads,
            "read_bytes_per_second": limits.read_bytes_per_second,
            "int8_multiply_adds_per_second": limits.multiply_adds_per_second,
            "instructions": limits.instructions,
        });
        as_json(json!({ "scenario": "machine" }), report)?
    } else {
        format!(
            "{} thread{}\nmemory read  {:.1} GB/s\nint8         {:.0} billion multiply-adds/s ({})\n",
            limits.threads,
            if limits.threads == 1 { "" } else { "s" },
            limits.read_bytes_per_second / 1e9,
            limits.multiply_adds_per_second / 1e9,
            limits.instructions,
        )
    };
    print(&text)
}
