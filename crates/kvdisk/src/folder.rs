//! The folder: names, permissions, whole files, and what is removed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::BlockKey;
use crate::block_file::{BlockHeader, HEADER, Unusable};

const EXTENSION: &str = "kvblock";
const TEMPORARY: &str = "kvtmp";
/// A temporary file of this age was left behind by a process that was killed.
const ABANDONED: Duration = Duration::from_secs(600);
/// Summed or written at once, so that a thread that needs the core waits for no more: some tens of
/// microseconds. In whole groups of the checksum.
const CHUNK: usize = 64 << 10;

/// Numbers temporary files, so that threads of one process do not share any.
static TEMPORARIES: AtomicU64 = AtomicU64::new(0);

#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
}

/// A block's file.
#[derive(Debug, Clone, Copy)]
pub struct StoredBlock {
    pub key: BlockKey,
    pub bytes: u64,
    pub used: SystemTime,
}

impl Folder {
    /// Creates it if needed, and lets only its owner in.
    pub fn open(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
        }
        Ok(Self {
            path: path.to_owned(),
        })
    }

    fn file(&self, key: &BlockKey) -> PathBuf {
        self.path.join(format!("{key}.{EXTENSION}"))
    }

    /// Blocks in no order. Removes temporary files that were left behind. Files with other names
    /// are not ours and stay.
    pub fn list(&self) -> io::Result<Vec<StoredBlock>> {
        let mut blocks = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let path = entry.path();
            let extension = path.extension().and_then(|extension| extension.to_str());
            // Files of other processes may go at any time.
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if extension == Some(TEMPORARY) {
                if used.elapsed().is_ok_and(|age| age > ABANDONED) {
                    let _ = fs::remove_file(&path);
                }
                continue;
            }
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let key = stem.and_then(BlockKey::from_hex);
            if let Some(key) = key.filter(|_| extension == Some(EXTENSION)) {
                blocks.push(StoredBlock {
                    key,
                    bytes: metadata.len(),
                    used,
                });
            }
        }
        Ok(blocks)
    }

    /// Bytes of a block's file; `None` if there is none.
    pub fn size(&self, key: &BlockKey) -> Option<u64> {
        let metadata = fs::metadata(self.file(key)).ok()?;
        metadata.is_file().then_some(metadata.len())
    }

    /// Reads and checks a block's header.
    pub fn header(&self, key: &BlockKey) -> Result<BlockHeader, Unusable> {
        self.open_block(key).map(|(_, _, header)| header)
    }

    fn open_block(&self, key: &BlockKey) -> Result<(File, [u8; HEADER], BlockHeader), Unusable> {
        let mut file = File::open(self.file(key)).map_err(Unusable::Unreadable)?;
        let len = file.metadata().map_err(Unusable::Unreadable)?.len();
        let mut header = [0; HEADER];
        if len < HEADER as u64 {
            return Err(Unusable::Damaged("it is shorter than its header"));
        }
        file.read_exact(&mut header).map_err(Unusable::Unreadable)?;
        let decoded = BlockHeader::decode(&header, key, len)?;
        Ok((file, header, decoded))
    }

    /// Reads and checks a block of `tokens` tokens of `model`.
    pub fn read(&self, key: &BlockKey, model: u64, tokens: usize) -> Result<Vec<u8>, Unusable> {
        let (file, header, decoded) = self.open_block(key)?;
        if decoded.model != model || decoded.tokens != tokens as u64 {
            return Err(Unusable::Damaged("it is of another model"));
        }
        // The header's length is the file's, so nothing larger than the file is allocated.
        let mut contents = Vec::with_capacity(usize::try_from(decoded.bytes).unwrap_or(0));
        file.take(decoded.bytes)
            .read_to_end(&mut contents)
            .map_err(Unusable::Unreadable)?;
        BlockHeader::verify(&header, &contents)?;
        Ok(contents)
    }

    /// Writes a block whole or not at all. `rest` is called after every piece of the work with the
    /// time when it began.
    ///
    /// Nothing waits for the device: if the system fails before it has written the file, what is left
    /// of it does not match its checksum or its length, and is removed when it is read.
    pub fn write(
        &self,
        (header, contents): (&BlockHeader, &[u8]),
        rest: impl Fn(Instant),
    ) -> io::Result<()> {
        let number = TEMPORARIES.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{number}.{TEMPORARY}", std::process::id());
        let temporary = self.path.join(name);
        let mut encoding = header.begin();
        for chunk in contents.chunks(CHUNK) {
            let began = Instant::now();
            encoding.add(chunk);
            rest(began);
        }
        let written = write_file(&temporary, (&encoding.finish(), contents), rest)
            .and_then(|()| fs::rename(&temporary, self.file(&header.key)));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    /// Marks a block as used now.
    pub fn touch(&self, key: &BlockKey, now: SystemTime) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.file(key))?;
        file.set_modified(now)
    }

    /// Another process may have removed it before.
    pub fn remove(&self, key: &BlockKey) {
        if let Err(error) = fs::remove_file(self.file(key))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "a block of cached keys and values could not be removed");
        }
    }
}

fn write_file(
    path: &Path,
    (header, contents): (&[u8], &[u8]),
    rest: impl Fn(Instant),
) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    let mut file = options.open(path)?;
    file.write_all(header)?;
    for chunk in contents.chunks(CHUNK) {
        let began = Instant::now();
        file.write_all(chunk)?;
        rest(began);
    }
    Ok(())
}
