//! Pages of `docs/` that are generated from code.

use std::path::Path;

/// If this variable is set, [`assert_current`] writes the page.
const REWRITE: &str = "LOQUAT_WRITE_DOCS";

/// Fails unless the page, such as `docs/api.md`, equals `expected`. `tests` are the arguments of
/// `cargo test` that run this check.
pub fn assert_current(page: &str, expected: &str, tests: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join(page);
    if std::env::var_os(REWRITE).is_some() {
        std::fs::write(&path, expected).expect("the page is written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "{page} is out of date: {REWRITE}=1 cargo test {tests}"
    );
}
