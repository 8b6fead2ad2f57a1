//! The argument of `/adapter`, and its answer.

use loquat::AdapterFile;

use super::transcript::expand_path;
use crate::args::adapter_file;
use crate::error::CliError;

/// As for `--adapter`; `~` is the home directory.
pub fn parse(argument: &str) -> Result<AdapterFile, CliError> {
    let path = expand_path(argument);
    adapter_file(path.as_os_str()).map_err(|what| CliError::Field {
        flag: "/adapter",
        what,
    })
}

/// A line for each adapter.
pub fn list(adapters: &[AdapterFile]) -> String {
    if adapters.is_empty() {
        return "No adapters. Apply one with /adapter PATH_OR_REF[@SCALE].".to_owned();
    }
    let line = |adapter: &AdapterFile| match adapter.scale {
        0.0 => format!("{} (off)", adapter.path.display()),
        scale => format!("{} (scale {scale})", adapter.path.display()),
    };
    let lines: Vec<_> = adapters.iter().map(line).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_named_as_for_run() {
        let file = |path: &str, scale| AdapterFile {
            path: path.into(),
            scale,
        };
        assert_eq!(parse("a b").unwrap(), file("a b", 1.0));
        assert_eq!(parse("a@0.5").unwrap(), file("a", 0.5));
        let refused = parse("a@0").unwrap_err().to_string();
        assert!(refused.starts_with("/adapter: "), "{refused}");
        let listed = list(&[file("a", 0.5), file("b", 0.0)]);
        assert_eq!(listed, "a (scale 0.5)\nb (off)");
    }
}
