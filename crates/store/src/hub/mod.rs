//! The model hub's words; its client takes this file's place.

use std::path::PathBuf;

#[derive(Debug, Clone, Default)]
pub struct HubOptions {
    pub endpoint: Option<String>,
    pub token: Option<String>,
    pub cache_dir: Option<PathBuf>,
    pub offline: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repo {
    pub id: String,
    pub revision: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFile {
    pub path: String,
    pub size: Option<u64>,
    pub sha256: Option<String>,
    pub blob_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub commit: String,
    pub files: Vec<RemoteFile>,
}
