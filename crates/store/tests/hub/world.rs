//! A hub, a cache, and whoever pulls from the one into the other.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use loquat_hubkit::{File, HubServer, Repo as Served, TOKEN, noise};
use loquat_store::hub::{Hub, HubError, HubOptions, Patience, Repo, Tuning};
use loquat_store::{FileProgress, NoProgress, Progress};
use tempfile::TempDir;

pub const ID: &str = "someone/model";
pub const WEIGHTS: &str = "model.gguf";

/// Tell a child process where to pull from, and to where.
const URL_VARIABLE: &str = "LOQUAT_TEST_HUB";
const CACHE_VARIABLE: &str = "LOQUAT_TEST_HUB_CACHE";

pub struct World {
    folder: TempDir,
    pub server: HubServer,
    pub repo: Served,
}

impl World {
    /// A hub with one open repository, of a large file of so many bytes and two small ones.
    pub fn new(bytes: usize) -> Self {
        Self::of(Served::new(ID, files(bytes)))
    }

    pub fn of(repo: Served) -> Self {
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

    /// Pulls without trying again, so that what goes wrong once is an error.
    pub fn pull_impatiently(&self) -> Result<PathBuf, HubError> {
        let mut tuning = tuning();
        tuning.patience.retries = 0;
        let hub = Hub::open_tuned(self.options(), &tuning).unwrap();
        pull(&hub, &mut NoProgress)
    }

    /// Pulls in another process, when the command is started.
    pub fn child(&self) -> Command {
        child(
            "world::pull_in_another_process",
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

    pub fn file(&self, path: &str) -> &File {
        let mut files = self.repo.files.iter();
        files.find(|file| file.path == path).unwrap()
    }

    pub fn blob(&self, path: &str) -> PathBuf {
        self.root().join("blobs").join(self.file(path).etag())
    }

    /// Every file is in the snapshot, right to the byte, and nothing else is in the cache.
    pub fn assert_whole(&self) {
        for file in &self.repo.files {
            let found = fs::read(self.snapshot().join(&file.path)).unwrap();
            assert!(found == file.content, "{} is wrong", file.path);
        }
        assert_eq!(self.entries("snapshots").len(), self.repo.files.len());
        let mut blobs: Vec<String> = self.repo.files.iter().map(File::etag).collect();
        blobs.sort();
        assert_eq!(self.entries("blobs").into_keys().collect::<Vec<_>>(), blobs);
        let reference = fs::read_to_string(self.root().join("refs/main")).unwrap();
        assert_eq!(reference, self.repo.commit);
    }

    /// What stands under a final name is whole, and a ref stands only over what is complete.
    pub fn assert_nothing_half_written(&self) {
        for file in &self.repo.files {
            for path in [self.blob(&file.path), self.snapshot().join(&file.path)] {
                if let Ok(found) = fs::read(&path) {
                    assert!(found == file.content, "{} is wrong", path.display());
                }
            }
        }
        for (name, path) in self.entries("snapshots") {
            assert!(path.exists(), "{name} leads nowhere");
        }
        for name in self.entries("refs").into_keys() {
            assert_eq!(name, "main");
            self.assert_whole();
        }
    }

    /// Every file and link below a folder of the repository, by its name there.
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

pub fn files(bytes: usize) -> Vec<File> {
    vec![
        File::small("config.json", r#"{"model_type": "llama"}"#),
        File::small("folder/a note.txt", "of no importance\n"),
        File::large(WEIGHTS, noise(bytes, 7)),
    ]
}

/// Small numbers in place of a person's, so that tests are quick and meet every path.
pub fn tuning() -> Tuning {
    Tuning {
        stall: Duration::from_secs(5),
        patience: Patience {
            retries: 4,
            backoff: Duration::from_millis(1),
        },
        longest_wait: Duration::from_secs(2),
        smallest_stream: 64 << 10,
        journal_step: 32 << 10,
        ..Tuning::default()
    }
}

pub fn repo() -> Repo {
    Repo::main(ID)
}

/// Everything that the repository lists.
pub fn pull(hub: &Hub, progress: &mut dyn Progress) -> Result<PathBuf, HubError> {
    let listing = hub.listing(&repo())?;
    let files: Vec<_> = listing.files.iter().collect();
    hub.fetch(&repo(), &listing, &files, progress)
}

/// Runs a test of this program that is ignored otherwise.
pub fn child(test: &str, url: &str, cache: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(URL_VARIABLE, url)
        .env(CACHE_VARIABLE, cache)
        .stdout(Stdio::null());
    command
}

/// In a child: the hub it was told to pull from.
pub fn told_hub() -> Option<(Hub, PathBuf)> {
    let cache = PathBuf::from(std::env::var_os(CACHE_VARIABLE)?);
    let options = HubOptions {
        endpoint: Some(std::env::var(URL_VARIABLE).ok()?),
        cache_dir: Some(cache.clone()),
        ..HubOptions::default()
    };
    Some((Hub::open_tuned(options, &tuning()).unwrap(), cache))
}

/// Not a test of its own: the body of [`World::child`].
#[test]
#[ignore = "run by other tests"]
fn pull_in_another_process() {
    if let Some((hub, _)) = told_hub() {
        pull(&hub, &mut NoProgress).unwrap();
    }
}

/// Keeps what it is told.
#[derive(Default)]
pub struct Told {
    pub total: Option<u64>,
    pub advanced: u64,
    /// Of each file: its name, its bytes, where it stands, whether it has ended.
    pub files: BTreeMap<usize, (String, u64, u64, bool)>,
    pub notes: Vec<String>,
    pub finishes: usize,
}

impl Progress for Told {
    fn start(&mut self, _what: &str, total_bytes: Option<u64>) {
        self.total = total_bytes;
    }
    fn advance(&mut self, bytes: u64) {
        self.advanced += bytes;
    }
    fn file(&mut self, file: usize, how: FileProgress<'_>) {
        match how {
            FileProgress::Started { name, bytes } => {
                self.files.insert(file, (name.to_owned(), bytes, 0, false));
            }
            FileProgress::At(bytes) => self.files.get_mut(&file).unwrap().2 = bytes,
            FileProgress::Ended => self.files.get_mut(&file).unwrap().3 = true,
        }
    }
    fn note(&mut self, message: &str) {
        self.notes.push(message.to_owned());
    }
    fn finish(&mut self) {
        self.finishes += 1;
    }
}
