//! Checks that a crate depends only on crates below it.

use std::fmt;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::tree::Tree;
use super::{Violation, line_of};

const RULE: &str = "dependency-direction";

/// The workspace crates that each crate may depend on, bottom to top. Test kits are not listed:
/// they are development dependencies only. Backends are used by the library, the command line
/// (which may use everything else) and the golden judge.
const LAYERS: &[(&str, &[&str])] = &[
    ("spec", &[]),
    ("media", &[]),
    ("weights", &["spec"]),
    ("synthetic", &["spec", "weights"]),
    ("text", &["spec", "weights"]),
    ("convert", &["spec", "weights", "text"]),
    ("session", &["spec", "weights", "text"]),
    ("cpu-kernels", &["spec"]),
    ("cpu", &["spec", "weights", "session", "cpu-kernels"]),
    ("mlx", &["spec", "weights", "session"]),
    ("cuda", &["spec", "weights", "session"]),
    ("testkit", &["spec", "weights", "synthetic", "session"]),
    ("hubkit", &[]),
    ("store", &["weights"]),
    ("kvdisk", &[]),
    ("engine", &["spec", "weights", "text", "session", "kvdisk"]),
    ("grammar", &["text", "engine"]),
    (
        "chat",
        &["spec", "media", "text", "session", "engine", "grammar"],
    ),
    (
        "loquat",
        &[
            "media", "weights", "text", "session", "cpu", "mlx", "cuda", "store", "engine",
            "grammar", "chat",
        ],
    ),
    (
        "server",
        &[
            "media", "session", "text", "engine", "grammar", "chat", "loquat",
        ],
    ),
    (
        "bench",
        &[
            "spec",
            "weights",
            "synthetic",
            "text",
            "session",
            "engine",
            "grammar",
            "chat",
            "server",
            "loquat",
        ],
    ),
    (
        "goldens",
        &["spec", "weights", "session", "cpu", "mlx", "cuda"],
    ),
    ("xtask", &[]),
];
const KITS: &[&str] = &["testkit", "hubkit"];

/// Every dependency between our crates that the table does not allow.
pub fn dependency_direction(tree: &Tree) -> Vec<Violation> {
    tree.files("Cargo.toml")
        .filter(|(path, _)| is_member(path))
        .flat_map(|(path, text)| check_manifest(path, text))
        .collect()
}

/// The fuzz crate is outside the workspace and may use everything; the root has no package.
fn is_member(path: &str) -> bool {
    ["crates/", "backends/", "xtask/"]
        .iter()
        .any(|prefix| path.starts_with(prefix))
}

fn check_manifest(path: &str, text: &str) -> Vec<Violation> {
    let violation = |line, message| Violation {
        path: path.to_string(),
        line,
        rule: RULE,
        message,
    };
    let manifest = match DeTable::parse(text) {
        Ok(manifest) => manifest.into_inner(),
        Err(error) => {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            return vec![violation(line, error.message().to_string())];
        }
    };
    let Some(name) = package_name(&manifest) else {
        return vec![violation(1, "`package.name` is missing".to_string())];
    };
    let Some(permission) = permission(name) else {
        let message = format!("`{name}` has no row in the table of xtask/src/tidy/layers.rs");
        return vec![violation(1, message)];
    };
    let denied = |dependency: &Dependency| {
        layer(dependency.name).is_some_and(|layer| !permission.grants(layer))
    };
    dependencies(&manifest)
        .into_iter()
        .filter(denied)
        .map(
            |Dependency {
                 name: upper,
                 offset,
             }| {
                let message =
                    format!("`{name}` must not depend on `{upper}`; it may use {permission}");
                violation(line_of(text, offset), message)
            },
        )
        .collect()
}

/// A crate's name in the table; `None` for third-party crates.
fn layer(package: &str) -> Option<&str> {
    match package {
        "loquat" | "xtask" => Some(package),
        _ => package.strip_prefix("loquat-"),
    }
}

enum Permission {
    Only(&'static [&'static str]),
    AllButKits,
}

impl Permission {
    fn grants(&self, layer: &str) -> bool {
        match self {
            Permission::Only(layers) => layers.contains(&layer),
            Permission::AllButKits => !KITS.contains(&layer),
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Permission::Only([]) => f.write_str("none of our crates"),
            Permission::Only(layers) => write!(f, "only {}", layers.join(", ")),
            Permission::AllButKits => f.write_str("testkit and hubkit as dev-dependencies only"),
        }
    }
}

fn permission(package: &str) -> Option<Permission> {
    match layer(package)? {
        "cli" => Some(Permission::AllButKits),
        layer => LAYERS
            .iter()
            .find(|(name, _)| *name == layer)
            .map(|(_, allowed)| Permission::Only(allowed)),
    }
}

struct Dependency<'a> {
    name: &'a str,
    offset: usize,
}

/// Dependencies on any platform, except development dependencies.
fn dependencies<'a>(manifest: &'a DeTable<'_>) -> Vec<Dependency<'a>> {
    let platforms = table(manifest, "target")
        .into_iter()
        .flat_map(|targets| targets.values())
        .filter_map(|platform| platform.get_ref().as_table());
    let mut dependencies: Vec<Dependency> = std::iter::once(manifest)
        .chain(platforms)
        .flat_map(|scope| ["dependencies", "build-dependencies"].map(|key| table(scope, key)))
        .flatten()
        .flat_map(|section| section.iter())
        .map(|(key, value)| Dependency {
            name: renamed_package(value).unwrap_or(key.get_ref()),
            offset: key.span().start,
        })
        .collect();
    dependencies.sort_by_key(|dependency| dependency.offset);
    dependencies
}

/// `package` in `alias = { package = "name", … }`.
fn renamed_package<'a>(value: &'a Spanned<DeValue<'_>>) -> Option<&'a str> {
    value
        .get_ref()
        .as_table()?
        .get("package")?
        .get_ref()
        .as_str()
}

fn package_name<'a>(manifest: &'a DeTable<'_>) -> Option<&'a str> {
    table(manifest, "package")?.get("name")?.get_ref().as_str()
}

fn table<'a, 'i>(parent: &'a DeTable<'i>, key: &str) -> Option<&'a DeTable<'i>> {
    parent.get(key)?.get_ref().as_table()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of the violations in the manifest of `package` with these `sections`, which
    /// start on line 3.
    fn lines(directory: &str, package: &str, sections: &str) -> Vec<usize> {
        let path = format!("{directory}/Cargo.toml");
        let manifest = format!("[package]\nname = '{package}'\n{sections}\n");
        dependency_direction(&Tree::from_files(&[(&path, &manifest)]))
            .iter()
            .map(|violation| violation.line)
            .collect()
    }

    #[test]
    fn only_granted_dependencies_pass() {
        for (directory, package, dependency, granted) in [
            ("crates/weights", "loquat-weights", "loquat-spec", true),
            ("crates/spec", "loquat-spec", "loquat-weights", false),
            ("crates/media", "loquat-media", "loquat-spec", false),
            (
                "crates/synthetic",
                "loquat-synthetic",
                "loquat-weights",
                true,
            ),
            ("crates/synthetic", "loquat-synthetic", "loquat-cpu", false),
            ("crates/text", "loquat-text", "loquat-session", false),
            ("crates/convert", "loquat-convert", "loquat-text", true),
            ("crates/convert", "loquat-convert", "loquat-store", false),
            ("crates/session", "loquat-session", "loquat-engine", false),
            ("backends/cpu", "loquat-cpu", "loquat-session", true),
            ("backends/cpu", "loquat-cpu", "loquat-cpu-kernels", true),
            (
                "backends/cpu-kernels",
                "loquat-cpu-kernels",
                "loquat-session",
                false,
            ),
            ("backends/mlx", "loquat-mlx", "loquat-cpu-kernels", false),
            ("backends/cuda", "loquat-cuda", "loquat-session", true),
            ("backends/cuda", "loquat-cuda", "loquat-cpu", false),
            ("backends/cpu", "loquat-cpu", "loquat-text", false),
            ("backends/cpu", "loquat-cpu", "loquat-engine", false),
            ("backends/cpu", "loquat-cpu", "loquat-mlx", false),
            ("crates/store", "loquat-store", "loquat-spec", false),
            ("crates/store", "loquat-store", "loquat-weights", true),
            ("crates/store", "loquat-store", "serde", true),
            ("crates/store", "loquat-store", "loquat-hubkit", false),
            ("crates/engine", "loquat-engine", "loquat-session", true),
            ("crates/engine", "loquat-engine", "loquat-cpu", false),
            ("crates/engine", "loquat-engine", "loquat-testkit", false),
            ("crates/grammar", "loquat-grammar", "loquat-engine", true),
            ("crates/grammar", "loquat-grammar", "loquat-chat", false),
            ("crates/chat", "loquat-chat", "loquat-engine", true),
            ("crates/chat", "loquat-chat", "loquat-store", false),
            ("crates/chat", "loquat-chat", "loquat", false),
            ("crates/testkit", "loquat-testkit", "loquat-session", true),
            ("crates/testkit", "loquat-testkit", "loquat-engine", false),
            ("crates/loquat", "loquat", "loquat-cpu", true),
            ("crates/loquat", "loquat", "loquat-server", false),
            ("crates/server", "loquat-server", "loquat", true),
            ("crates/server", "loquat-server", "loquat-cpu", false),
            ("crates/cli", "loquat-cli", "loquat", true),
            ("crates/cli", "loquat-cli", "loquat-cpu", true),
            ("crates/cli", "loquat-cli", "loquat-testkit", false),
            ("crates/cli", "loquat-cli", "loquat-hubkit", false),
            ("crates/bench", "loquat-bench", "loquat", true),
            ("crates/bench", "loquat-bench", "loquat-cpu", false),
            ("crates/bench", "loquat-bench", "loquat-cli", false),
            ("crates/goldens", "loquat-goldens", "loquat-cpu", true),
            ("crates/goldens", "loquat-goldens", "loquat-mlx", true),
            ("crates/goldens", "loquat-goldens", "loquat-engine", false),
            ("crates/goldens", "loquat-goldens", "loquat-testkit", false),
            ("xtask", "xtask", "loquat-spec", false),
            ("fuzz", "loquat-fuzz", "loquat-text", true),
        ] {
            let sections = format!("[dependencies]\n{dependency}.workspace = true");
            let expected: &[usize] = if granted { &[] } else { &[4] };
            let found = lines(directory, package, &sections);
            assert_eq!(found, expected, "{package} -> {dependency}");
        }
    }

    #[test]
    fn all_dependency_syntaxes_are_read() {
        let cases: &[(&str, &[usize])] = &[
            ("[dev-dependencies]\nloquat-text = '*'", &[]),
            ("[build-dependencies]\nloquat-text = '*'", &[4]),
            ("[dependencies.loquat-text]\nworkspace = true", &[3]),
            ("[dependencies]\nt = { package = 'loquat-text' }", &[4]),
            ("[target.'cfg(unix)'.dependencies]\nloquat-text = '*'", &[4]),
            (
                "[dependencies]\nloquat-text = '*'\nloquat-chat = '*'",
                &[4, 5],
            ),
        ];
        for (sections, expected) in cases {
            assert_eq!(&lines("crates/spec", "loquat-spec", sections), expected);
        }
    }

    #[test]
    fn crate_without_layer_is_a_violation() {
        assert_eq!(lines("crates/new", "loquat-new", ""), [1]);
        assert_eq!(lines("crates/new", "other", ""), [1]);
    }

    #[test]
    fn unreadable_manifest_is_a_violation() {
        for manifest in ["[package", "[package]\nversion = '1'"] {
            let tree = Tree::from_files(&[("crates/spec/Cargo.toml", manifest)]);
            assert_eq!(dependency_direction(&tree).len(), 1, "{manifest}");
        }
    }
}
