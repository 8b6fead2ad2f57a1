//! What a repository holds, from the hub's API or from the cache.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::client::{Client, Subject, escaped};
use super::digest::Expected;
use super::download::Wanted;
use super::layout::{RepoDir, is_inner_path, is_word};
use super::{HubError, Listing, RemoteFile, Repo};

/// The fields we read of `/api/models/{id}/revision/{revision}?blobs=true`.
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

pub(crate) fn from_hub(client: &Client, repo: &Repo) -> Result<Listing, HubError> {
    let path = format!(
        "api/models/{}/revision/{}?blobs=true",
        repo.id,
        escaped(&repo.revision, false)
    );
    let subject = Subject {
        repo: &repo.id,
        revision: &repo.revision,
        file: None,
    };
    let text = client.text(&path, subject)?;
    parse(&text).map_err(|problem| HubError::BadAnswer {
        host: client.hub().to_owned(),
        what: format!("the listing of {}", repo.id),
        problem,
    })
}

fn parse(text: &str) -> Result<Listing, String> {
    let Document { sha, siblings } =
        serde_json::from_str(text).map_err(|error| error.to_string())?;
    if !is_word(&sha) {
        return Err(format!("{sha:?} is not a commit"));
    }
    let strange = siblings.iter().find(|file| !is_inner_path(&file.rfilename));
    if let Some(file) = strange {
        return Err(format!(
            "{:?} is not a path in a repository",
            file.rfilename
        ));
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

/// What the cache holds of the repository's revision; `None` where it holds nothing.
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

/// Adds every file below; a link that leads nowhere is no file.
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
        let expected = blob_of(&entry.path());
        files.push(RemoteFile {
            path,
            size: Some(metadata.len()),
            sha256: match &expected {
                Some(Expected::Sha256(hash)) => Some(hash.clone()),
                _ => None,
            },
            blob_id: match &expected {
                Some(Expected::GitBlob(hash)) => Some(hash.clone()),
                _ => None,
            },
        });
    }
}

/// What a snapshot's file should contain, by the name of the blob it links to.
pub(crate) fn blob_of(pointer: &Path) -> Option<Expected> {
    let target = fs::read_link(pointer).ok()?;
    Expected::named(target.file_name()?.to_str()?)
}

/// All that must be known to bring the file. Mirrors that list names only are asked for each.
pub(crate) fn complete(
    client: &Client,
    repo: &Repo,
    commit: &str,
    file: &RemoteFile,
) -> Result<Wanted, HubError> {
    let wanted = |size, expected| Wanted {
        path: file.path.clone(),
        size,
        expected,
    };
    if let (Some(size), Some(expected)) = (file.size, Expected::of(file)) {
        return Ok(wanted(size, expected));
    }
    let address = format!(
        "{}/resolve/{}/{}",
        repo.id,
        escaped(commit, false),
        escaped(&file.path, true)
    );
    let subject = Subject {
        repo: &repo.id,
        revision: &repo.revision,
        file: Some(&file.path),
    };
    let answer = client.head(&address, subject)?;
    let expected = Expected::of(file).or_else(|| Expected::named(answer.identity()?));
    match (file.size.or_else(|| answer.file_size()), expected) {
        (Some(size), Some(expected)) => Ok(wanted(size, expected)),
        (size, _) => Err(HubError::BadAnswer {
            host: answer.host,
            what: file.path.clone(),
            problem: match size {
                None => "it does not say how long the file is".to_owned(),
                Some(_) => "it does not say which content the file has".to_owned(),
            },
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_gives_each_file_its_size_and_hash() {
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
    fn a_listing_that_could_do_harm_is_refused() {
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
            let problem = parse(text).unwrap_err();
            assert!(problem.contains(named), "{problem}");
        }
    }
}
