//! Flags of commands about local models and the catalog.

use std::time::Duration;

use clap::Args;

use super::model::{KindArgs, NetworkArgs};
use super::values::reference;

#[derive(Debug, Args)]
pub struct ModelsArgs {
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PullArgs {
    /// A catalog name, or a hub repository (owner/name[@revision][:quant]).
    #[arg(value_name = "MODEL")]
    #[arg(value_parser = reference())]
    pub model: String,
    #[command(flatten)]
    pub kinds: KindArgs,
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RmArgs {
    /// The models to remove, as listed by `loquat models`.
    #[arg(value_name = "MODEL", required = true)]
    #[arg(value_parser = reference())]
    pub models: Vec<String>,
    #[command(flatten)]
    pub kinds: KindArgs,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// A model of the catalog or a local model.
    #[arg(value_name = "MODEL")]
    #[arg(value_parser = reference())]
    pub model: String,
    #[command(flatten)]
    pub kinds: KindArgs,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The model to verify [default: all].
    #[arg(value_name = "MODEL")]
    #[arg(value_parser = reference())]
    pub model: Option<String>,
    #[command(flatten)]
    pub kinds: KindArgs,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PruneArgs {
    /// List what would be removed, without removing it.
    #[arg(long)]
    pub dry_run: bool,
    /// Also remove models Loquat downloaded that were not used for this long, such as 30d, 2w or
    /// 12h.
    #[arg(long, value_name = "AGE", value_parser = age)]
    pub older_than: Option<Duration>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SearchArgs {
    /// Words to match: name, size, family, licence, kind [default: list the whole catalog].
    #[arg(value_name = "WORD")]
    pub words: Vec<String>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// A whole number and a unit: hours, days, weeks.
fn age(text: &str) -> Result<Duration, String> {
    const HOUR: u64 = 60 * 60;
    let units = [('h', HOUR), ('d', 24 * HOUR), ('w', 7 * 24 * HOUR)];
    let parsed = units.iter().find_map(|(unit, seconds)| {
        let count: u64 = text.strip_suffix(*unit)?.parse().ok()?;
        Some(Duration::from_secs(count.checked_mul(*seconds)?))
    });
    parsed.ok_or_else(|| "must be a number of hours, days or weeks: 12h, 30d, 2w".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_needs_a_unit() {
        for (text, hours) in [
            ("12h", Some(12)),
            ("30d", Some(720)),
            ("2w", Some(336)),
            ("0d", Some(0)),
            ("30", None),
            ("d", None),
            ("-1d", None),
            ("99999999999999999w", None),
        ] {
            let found = age(text).ok().map(|age| age.as_secs() / 3600);
            assert_eq!(found, hours, "{text}");
        }
    }
}
