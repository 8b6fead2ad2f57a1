//! A hub server with a cache to pull into.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use loquat_hubkit::{FakeFile, FakeRepo, HubServer, TOKEN, noise};
use loquat_store::hub::{DownloadTuning, Hub, HubError, HubOptions, HubRepo, RetryPolicy};
use loquat_store::{NoProgress, Progress};
use tempfile::TempDir;

pub const ID: &str = "someone/model";
pub const WEIGHTS: &str = "model.gguf";

/// Hub address and cache of a child process.
const URL_VARIABLE: &str = "LOQUAT_TEST_HUB";
const CACHE_VARIABLE: &str = "LOQUAT_TEST_HUB_CACHE";

pub struct HubFixture {
    folder: TempDir,
    pub server: HubServer,
    pub repo: FakeRepo,
}

impl HubFixture {
    /// A hub with one open repository: a large file of this size and two small ones.
    pub fn new(bytes: usize) -> Self {
        Self::serving(FakeRepo::new(ID, files(bytes)))
    }

    pub fn serving(repo: FakeRepo) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            server: HubServer::start(vec![repo.clone()]).unwrap(),
            repo,
        }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn cache(&self) -> PathBuf {
        self.folder().join("hub")
    }

    pub fn root(&self) -> PathBuf {
        self.cache().join("models--someone--model")
    }

    pub fn snapshot(&self) -> PathBuf {
        self.root().join("snapshots").join(&self.repo.commit)
    }

    pub fn options(&self) -> HubOptions {
        HubOptions {
            endpoint: Some(self.server.url()),
            token: Some(TOKEN.to_owned()),
            cache_dir: Some(self.cache()),
            offline: false,
        }
    }

    pub fn hub(&self) -> Hub {
        Hub::open_tuned(self.options(), &tuning()).unwrap()
    }

    pub fn pull(&self) -> Result<PathBuf, HubError> {
        pull(&self.hub(), &mut NoProgress)
    }

    /// Pulls without retries, so that every fault is an error.
    pub fn pull_without_retries(&self) -> Result<PathBuf, HubError> {
        let mut tuning = tuning();
        tuning.retry.retries = 0;
        let hub = Hub::open_tuned(self.options(), &tuning).unwrap();
        pull(&hub, &mut NoProgress)
    }

    /// A command that pulls in another process.
    pub fn child(&self) -> Command {
        child(
            "hub::fixture::pull_in_another_process",
            &self.server.url(),
            &self.cache(),
        )
    }

    pub fn bytes(&self) -> u64 {
        self.repo
            .files
            .iter()
            .map(|file| file.content.len() as u64)
            .sum()
    }

    pub fn file(&self, path: &str) -> &FakeFile {
        let mut files = self.repo.files.iter();
        files.find(|file| file.path == path).unwrap()
    }

    pub fn blob(&self, path: &str) -> PathBuf {
        self.root().join("blobs").join(self.file(path).etag())
    }

    /// Asserts that the snapshot has every file with the right content, and the cache nothing else.
    pub fn assert_complete(&self) {
        for file in &self.repo.files {
            let found = fs::read(self.snapshot().join(&file.path)).unwrap();
            assert!(found == file.content, "{} is wrong", file.path);
        }
        assert_eq!(self.entries("snapshots").len(), self.repo.files.len());
        let mut blobs: Vec<String> = self.repo.files.iter().map(FakeFile::etag).collect();
        blobs.sort();
        assert_eq!(self.entries("blobs").into_keys().collect::<Vec<_>>(), blobs);
        let reference = fs::read_to_string(self.root().join("refs/main")).unwrap();
        assert_eq!(reference, self.repo.commit);
    }

    /// Asserts that files with final names are complete, and a ref exists only for a complete
    /// snapshot.
    pub fn assert_nothing_half_written(&self) {
        for file in &self.repo.files {
            for path in [self.blob(&file.path), self.snapshot().join(&file.path)] {
                if let Ok(found) = fs::read(&path) {
                    assert!(found == file.content, "{} is wrong", path.display());
                }
            }
        }
        for (name, path) in self.entries("snapshots") {
            assert!(path.exists(), "{name} is a dangling link");
        }
        for name in self.entries("refs").into_keys() {
            assert_eq!(name, "main");
            self.assert_complete();
        }
    }

    /// Every file and link below a folder of the repository, by relative path.
    pub fn entries(&self, folder: &str) -> BTreeMap<String, PathBuf> {
        let mut found = BTreeMap::new();
        let top = self.root().join(folder);
        let mut folders = vec![top.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.file_type().unwrap().is_dir() {
                    folders.push(entry.path())
                } else {
                    let path = entry.path();
                    let name = path.strip_prefix(&top).unwrap().display().to_string();
                    found.insert(name, path);
                }
            }
        }
        found
    }
}

pub fn files(bytes: usize) -> Vec<FakeFile> {
    vec![
        FakeFile::small("config.json", r#"{"model_type": "llama"}"#),
        FakeFile::small("folder/a note.txt", "some text\n"),
        FakeFile::large(WEIGHTS, noise(bytes, 7)),
    ]
}

/// Small sizes and short waits, so that tests are fast and cover every path. The stall timeout only
/// detects hangs.
pub fn tuning() -> DownloadTuning {
    DownloadTuning {
        stall: Duration::from_secs(60),
        retry: RetryPolicy {
            retries: 4,
            backoff: Duration::from_millis(1),
        },
        longest_wait: Duration::from_secs(2),
        smallest_stream: 64 << 10,
        journal_step: 32 << 10,
        ..DownloadTuning::default()
    }
}

pub fn repo() -> HubRepo {
    HubRepo::main(ID)
}

/// Pulls everything that the repository lists.
pub fn pull(hub: &Hub, progress: &mut dyn Progress) -> Result<PathBuf, HubError> {
    let listing = hub.listing(&repo())?;
    let files: Vec<_> = listing.files.iter().collect();
    let snapshot = hub.download(&repo(), &listing, &files, progress)?;
    hub.set_ref(&repo(), &listing)?;
    Ok(snapshot)
}

/// A command that runs an ignored test of this program.
pub fn child(test: &str, url: &str, cache: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(URL_VARIABLE, url)
        .env(CACHE_VARIABLE, cache)
        .stdout(Stdio::null());
    command
}

/// In a child process: the hub to pull from, and its cache.
pub fn hub_from_env() -> Option<(Hub, PathBuf)> {
    let cache = PathBuf::from(std::env::var_os(CACHE_VARIABLE)?);
    let options = HubOptions {
        endpoint: Some(std::env::var(URL_VARIABLE).ok()?),
        cache_dir: Some(cache.clone()),
        ..HubOptions::default()
    };
    Some((Hub::open_tuned(options, &tuning()).unwrap(), cache))
}

/// The body of [`HubFixture::child`].
#[test]
#[ignore = "run by other tests"]
fn pull_in_another_process() {
    if let Some((hub, _)) = hub_from_env() {
        pull(&hub, &mut NoProgress).unwrap();
    }
}
