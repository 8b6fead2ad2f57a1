//! The configs of all golden checkpoints: committed ones and, if present, shared ones.

use std::path::{Path, PathBuf};

/// Golden folders, by path.
pub fn folders() -> Vec<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shared = here.join("../../../shared/goldens");
    if !shared.is_dir() {
        eprintln!("shared goldens are absent: only the committed ones are read");
    }
    let mut folders = Vec::new();
    for root in [here.join("../testkit/goldens"), shared] {
        let Ok(entries) = std::fs::read_dir(root) else {
            continue;
        };
        let paths = entries.map(|entry| entry.unwrap().path());
        folders.extend(paths.filter(|path| path.join("config.json").is_file()));
    }
    folders.sort();
    folders
}

/// The text of a folder's config in one of its two styles.
pub fn config(folder: &Path, style: &str) -> String {
    let path = folder.join(style);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
