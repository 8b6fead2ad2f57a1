//! Runs the golden judge, a separate crate because it depends on backends. It uses the dev profile,
//! whose dependencies the tests have already built.

use std::path::Path;

use crate::command::cargo;
use crate::error::Error;

/// Features of the judge that build an optional backend, named after the backend.
const FEATURES: &[&str] = &["mlx", "cuda"];

/// Runs the judge with `args`. Paths in them are relative to the caller's directory.
pub fn run(args: &[String]) -> Result<(), Error> {
    let mut command: Vec<&str> = vec!["run", "--quiet", "--package", "loquat-goldens"];
    if let Some(feature) = feature(args) {
        command.extend(["--features", feature]);
    }
    command.push("--");
    command.extend(args.iter().map(String::as_str));
    cargo(Path::new("."), &command).run_quiet()
}

/// The feature that builds the backend named in `args`.
fn feature(args: &[String]) -> Option<&'static str> {
    const FLAG: &str = "--backend";
    let separate = args.iter().skip_while(|arg| *arg != FLAG).nth(1);
    let joined = args
        .iter()
        .find_map(|arg| arg.strip_prefix(FLAG)?.strip_prefix('='));
    let named = separate.map(String::as_str).or(joined)?;
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
            ("--backend cuda", Some("cuda")),
            ("--backend cpu", None),
            ("mlx --backend", None),
            ("--only mlx", None),
        ] {
            let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(feature(&args), expected, "{line}");
        }
    }
}
