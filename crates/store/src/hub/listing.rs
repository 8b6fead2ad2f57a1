//! Repository listings, from the hub's API or from the cache.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::client::{Client, RequestSubject, escaped};
use super::digest::ExpectedHash;
use super::download::PendingFile;
use super::layout::{RepoDir, is_inner_path, is_word};
use super::{HubError, HubRepo, Listing, RemoteFile};

/// The fields used of `/api/models/{id}/revision/{revision}?blobs=true`.
#[derive(Deserialize)]
struct Document {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: Option<u64>,
}

pub(crate) fn from_hub(client: &Client, repo: &HubRepo) -> Result<Listing, HubError> {
    let path = format!(
        "api/models/{}/revision/{}?blobs=true",
        repo.id,
        escaped(&repo.revision, false)
    );
    let subject = RequestSubject {
        repo: &repo.id,
        revision: &repo.revision,
        file: None,
    };
    let text = client.text(&path, subject)?;
    parse(&text).map_err(|error| HubError::BadAnswer {
        host: client.hub().to_owned(),
        what: format!("the listing of {}", repo.id),
        problem: error.to_string(),
    })
}

/// What is wrong with a hub's listing.
#[derive(Debug, thiserror::Error)]
enum ListingError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("{0:?} is not a commit")]
    Commit(String),
    #[error("{0:?} is not a path in a repository")]
    Path(String),
}

fn parse(text: &str) -> Result<Listing, ListingError> {
    let Document { sha, siblings } = serde_json::from_str(text)?;
    if !is_word(&sha) {
        return Err(ListingError::Commit(sha));
    }
    let strange = siblings.iter().find(|file| !is_inner_path(&file.rfilename));
    if let Some(file) = strange {
        return Err(ListingError::Path(file.rfilename.clone()));
    }
    let files = siblings.into_iter().map(|file| {
        let (sha256, size) = file
            .lfs
            .map_or((None, None), |lfs| (Some(lfs.sha256), lfs.size));
        RemoteFile {
            path: file.rfilename,
            size: size.or(file.size),
            sha256,
            blob_id: file.blob_id,
        }
    });
    Ok(Listing {
        commit: sha,
        files: files.collect(),
    })
}

/// The cached files of a revision; `None` if there are none.
pub(crate) fn from_cache(dir: &RepoDir, revision: &str) -> Option<Listing> {
    let commit = match fs::read_to_string(dir.reference(revision)) {
        Ok(commit) => commit.trim().to_owned(),
        Err(_) => revision.to_owned(),
    };
    let snapshot = dir.snapshot(&commit);
    if !is_word(&commit) || !snapshot.is_dir() {
        return None;
    }
    let mut files = Vec::new();
    walk(&snapshot, "", &mut files);
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Some(Listing { commit, files })
}

/// Adds every file below `dir`; skips dangling links.
fn walk(dir: &Path, prefix: &str, files: &mut Vec<RemoteFile>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let path = format!("{prefix}{name}");
        let Ok(metadata) = fs::metadata(entry.path()) else {
            continue;
        };
        if metadata.is_dir() {
            walk(&entry.path(), &format!("{path}/"), files);
            continue;
        }
        let expected = linked_blob(&entry.path());
        files.push(RemoteFile {
            path,
            size: Some(metadata.len()),
            sha256: match &expected {
                Some(ExpectedHash::Sha256(hash)) => Some(hash.clone()),
                _ => None,
            },
            blob_id: match &expected {
                Some(ExpectedHash::GitBlob(hash)) => Some(hash.clone()),
                _ => None,
            },
        });
    }
}

/// The expected hash of a snapshot's file, from the blob it links to.
pub(crate) fn linked_blob(pointer: &Path) -> Option<ExpectedHash> {
    let target = fs::read_link(pointer).ok()?;
    ExpectedHash::from_etag(target.file_name()?.to_str()?)
}

/// Completes a listed file with its size and hash. Asks for each file if a mirror lists names only.
pub(crate) fn resolve_file(
    client: &Client,
    repo: &HubRepo,
    commit: &str,
    file: &RemoteFile,
) -> Result<PendingFile, HubError> {
    let pending = |size, expected| PendingFile {
        path: file.path.clone(),
        size,
        expected,
    };
    if let (Some(size), Some(expected)) = (file.size, ExpectedHash::from_listing(file)) {
        return Ok(pending(size, expected));
    }
    let address = format!(
        "{}/resolve/{}/{}",
        repo.id,
        escaped(commit, false),
        escaped(&file.path, true)
    );
    let subject = RequestSubject {
        repo: &repo.id,
        revision: &repo.revision,
        file: Some(&file.path),
    };
    let response = client.head(&address, subject)?;
    let expected =
        ExpectedHash::from_listing(file).or_else(|| ExpectedHash::from_etag(response.identity()?));
    match (file.size.or_else(|| response.file_size()), expected) {
        (Some(size), Some(expected)) => Ok(pending(size, expected)),
        (size, _) => Err(HubError::BadAnswer {
            host: response.host,
            what: file.path.clone(),
            problem: match size {
                None => "it does not state the file size".to_owned(),
                Some(_) => "it does not state the content hash".to_owned(),
            },
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_has_sizes_and_hashes() {
        let sha256 = "a".repeat(64);
        let text = format!(
            r#"{{"id": "o/n", "sha": "{}", "gated": false, "siblings": [
                {{"rfilename": "config.json", "size": 7, "blobId": "b1"}},
                {{"rfilename": "a/model.gguf", "size": 130, "blobId": "b2",
                  "lfs": {{"sha256": "{sha256}", "size": 9000, "pointerSize": 130}}}},
                {{"rfilename": "bare"}}]}}"#,
            "c".repeat(40)
        );
        let listing = parse(&text).unwrap();
        assert_eq!(listing.commit, "c".repeat(40));
        let files: Vec<_> = listing
            .files
            .iter()
            .map(|file| (file.path.as_str(), file.size, file.sha256.as_deref()))
            .collect();
        assert_eq!(
            files,
            [
                ("config.json", Some(7), None),
                ("a/model.gguf", Some(9000), Some(sha256.as_str())),
                ("bare", None, None),
            ]
        );
    }

    #[test]
    fn harmful_listing_is_refused() {
        for (text, named) in [
            (r#"{"siblings": []}"#, "sha"),
            (r#"{"sha": "../c", "siblings": []}"#, "../c"),
            (
                r#"{"sha": "c", "siblings": [{"rfilename": "../up"}]}"#,
                "../up",
            ),
            (r#"{"sha": "c", "siblings": [{"rfilename": "/up"}]}"#, "/up"),
            ("<html>", "expected value"),
        ] {
            let problem = parse(text).unwrap_err().to_string();
            assert!(problem.contains(named), "{problem}");
        }
    }
}
