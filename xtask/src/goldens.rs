//! The golden judge, a crate of its own because it names backends; run in the dev profile, for
//! which the tests have built all it needs.

use std::path::Path;

use crate::command::{Run, cargo};
use crate::error::Error;

/// Backends that are built only when asked for: their features of the judge.
const FEATURES: &[&str] = &["mlx"];

/// Judges as `args` say. Paths among them are seen from where the caller stands.
pub fn run(args: &[String]) -> Result<(), Error> {
    judge(Path::new("."), args).finish()
}

pub fn judge(directory: &Path, args: &[String]) -> Run {
    let mut words: Vec<&str> = vec!["run", "--quiet", "--package", "loquat-goldens"];
    if let Some(feature) = feature(args) {
        words.extend(["--features", feature]);
    }
    words.push("--");
    words.extend(args.iter().map(String::as_str));
    cargo(directory, &words)
}

/// What the backend that `args` name is built by.
fn feature(args: &[String]) -> Option<&'static str> {
    const FLAG: &str = "--backend";
    let after = args.iter().skip_while(|arg| *arg != FLAG).nth(1);
    let within = args
        .iter()
        .find_map(|arg| arg.strip_prefix(FLAG)?.strip_prefix('='));
    let named = after.map(String::as_str).or(within)?;
    FEATURES.iter().copied().find(|feature| *feature == named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_must_be_asked_for_is_built() {
        for (line, expected) in [
            ("--committed --backend mlx", Some("mlx")),
            ("--backend=mlx --json", Some("mlx")),
            ("--backend cpu", None),
            ("mlx --backend", None),
            ("--only mlx", None),
        ] {
            let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(feature(&args), expected, "{line}");
        }
    }
}
