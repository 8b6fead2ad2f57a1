//! The golden judge, a separate crate because it names backends. It runs in the dev profile, in
//! which the tests have already built its dependencies.

use std::path::Path;

use crate::command::cargo;
use crate::error::Error;

/// Features of the judge that build an optional backend, named after the backend.
const FEATURES: &[&str] = &["mlx"];

/// Judges as `args` say. Paths in them are relative to the caller's directory.
pub fn run(args: &[String]) -> Result<(), Error> {
    let mut words: Vec<&str> = vec!["run", "--quiet", "--package", "loquat-goldens"];
    if let Some(feature) = feature(args) {
        words.extend(["--features", feature]);
    }
    words.push("--");
    words.extend(args.iter().map(String::as_str));
    cargo(Path::new("."), &words).finish()
}

/// The feature that builds the backend named in `args`.
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
    fn optional_backend_enables_its_feature() {
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
