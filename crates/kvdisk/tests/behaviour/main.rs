//! The cache on disk through its public interface.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use loquat_kvdisk::{
    Block, BlockKey, BlockLoad, DiskCache, DiskOptions, DiskStats, LoadEvent, PrefixContent,
    PrefixIdentity, TailRecord, TailSearch, Worth,
};
use tempfile::TempDir;

const MODEL: u64 = 7;
const TOKENS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(60);

fn keys(scope: Option<&str>, tokens: &[u32]) -> Vec<BlockKey> {
    let identity = PrefixIdentity {
        model: MODEL,
        block_tokens: TOKENS,
        scope,
        adapters: &[],
    };
    identity.root().chain(&PrefixContent::text(tokens), TOKENS)
}

fn numbered(kind: u32, blocks: usize) -> Vec<BlockKey> {
    let tokens: Vec<u32> = (0..(blocks * TOKENS) as u32)
        .map(|at| at + 1000 * kind)
        .collect();
    keys(None, &tokens)
}

fn contents(key: &BlockKey) -> Vec<u8> {
    key.to_string().repeat(16).into_bytes()
}

/// A cache whose wake-ups can be waited for.
struct Fixture {
    cache: DiskCache,
    woken: mpsc::Receiver<()>,
}

impl Fixture {
    fn open(folder: &Path, max_bytes: u64) -> Self {
        Self::of_model(folder, max_bytes, MODEL)
    }

    fn of_model(folder: &Path, max_bytes: u64, model: u64) -> Self {
        let (sender, woken) = mpsc::channel();
        let options = DiskOptions {
            folder: folder.to_owned(),
            max_bytes,
            required: true,
        };
        let wake = move || _ = sender.send(());
        let cache = DiskCache::open(&options, (model, TOKENS), wake).expect("it opens");
        Self { cache, woken }
    }

    fn write(&self, keys: &[BlockKey]) {
        for key in keys {
            self.cache.write(Block {
                key: *key,
                tokens: TOKENS,
                contents: contents(key),
                prompt_speed: 0,
            });
        }
        assert!(self.cache.flush(PATIENCE));
    }

    fn next(&self, load: &BlockLoad) -> LoadEvent {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match load.try_next() {
                LoadEvent::Pending => {
                    assert!(Instant::now() < deadline, "nothing arrives");
                    let _ = self.woken.recv_timeout(Duration::from_millis(20));
                }
                event => return event,
            }
        }
    }

    fn load(&self, keys: &[BlockKey], worth: Worth) -> Vec<Vec<u8>> {
        let load = self.cache.load(keys.to_vec(), worth);
        let mut blocks = Vec::new();
        while let LoadEvent::Block(block) = self.next(&load) {
            blocks.push(block);
        }
        blocks
    }

    /// Writes the tail of a sequence, whose blocks exist, in two parts. Returns its files, the record
    /// last.
    fn write_tail(&self, tokens: &[u32]) -> Vec<BlockKey> {
        let chain = keys(None, tokens);
        let rest = &tokens[chain.len() * TOKENS..];
        let tail = chain
            .last()
            .unwrap()
            .tail(&PrefixContent::text(rest), 0..rest.len());
        let files = vec![tail.part(0), tail.part(1), tail];
        self.write_as(&files[..2], |_| 0, contents);
        let record = TailRecord {
            parts: 2,
            rest: contents(&tail),
        };
        self.write_as(&files[2..], |_| rest.len(), |_| record.encode());
        files
    }

    fn write_as(
        &self,
        keys: &[BlockKey],
        tokens: impl Fn(&BlockKey) -> usize,
        contents: impl Fn(&BlockKey) -> Vec<u8>,
    ) {
        for key in keys {
            self.cache.write(Block {
                key: *key,
                tokens: tokens(key),
                contents: contents(key),
                prompt_speed: 0,
            });
        }
        assert!(self.cache.flush(PATIENCE));
    }

    /// The length at which the prompt continues, or where the load ended before: blocks, tokens after
    /// them, and parts. Asserts that they are the right ones.
    fn found_tail(&self, tokens: &[u32], longer_than: usize) -> (usize, usize, usize) {
        let chain = keys(None, tokens);
        let search = TailSearch {
            prefix: PrefixContent::text(tokens),
            longer_than,
        };
        let load = self
            .cache
            .load_with_tail(chain.clone(), search, Worth::default());
        let (mut blocks, mut rest, mut parts, mut tail) = (0, 0, 0, None);
        loop {
            match self.next(&load) {
                LoadEvent::Block(block) => {
                    assert_eq!(block, contents(&chain[blocks]));
                    blocks += 1;
                }
                LoadEvent::Tail {
                    record,
                    tokens: count,
                } => {
                    rest = count;
                    let start = blocks * TOKENS;
                    let key =
                        chain[blocks - 1].tail(&PrefixContent::text(tokens), start..start + count);
                    assert_eq!((record.parts, record.rest), (2, contents(&key)));
                    tail = Some(key);
                }
                LoadEvent::Part(part) => {
                    assert_eq!(part, contents(&tail.unwrap().part(parts)));
                    parts += 1;
                }
                LoadEvent::End => return (blocks, rest, parts as usize),
                LoadEvent::Pending => panic!("pending"),
            }
        }
    }

    /// How many of the blocks are read; asserts that they are the right ones.
    fn found(&self, keys: &[BlockKey]) -> usize {
        let blocks = self.load(keys, Worth::default());
        let expected: Vec<_> = keys.iter().map(contents).take(blocks.len()).collect();
        assert_eq!(blocks, expected);
        blocks.len()
    }

    fn stats(&self) -> DiskStats {
        self.cache.stats()
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn file_of(folder: &Path, key: &BlockKey) -> PathBuf {
    folder.join(format!("{key}.kvblock"))
}

#[test]
fn blocks_survive_and_are_found_in_order() {
    let folder = TempDir::new().unwrap();
    let chain = numbered(1, 5);
    Fixture::open(folder.path(), 1 << 20).write(&chain[..4]);
    let cache = Fixture::open(folder.path(), 1 << 20);
    assert_eq!(cache.found(&chain), 4);
    assert_eq!(cache.found(&chain[2..]), 2, "from the middle on");
    assert_eq!(cache.found(&numbered(2, 5)), 0);
    fs::remove_file(file_of(folder.path(), &chain[1])).unwrap();
    assert_eq!(cache.found(&chain), 1, "up to the first that is missing");
    // Learned from the folder, and unlearned.
    assert!(cache.cache.contains(&chain[0]));
    assert!(!cache.cache.contains(&chain[1]));
}

#[test]
fn scopes_have_different_files() {
    let folder = TempDir::new().unwrap();
    let cache = Fixture::open(folder.path(), 1 << 20);
    let tokens: Vec<u32> = (0..8).collect();
    cache.write(&keys(Some("a"), &tokens));
    assert_eq!(cache.found(&keys(Some("a"), &tokens)), 2);
    for other in [Some("b"), Some(""), None] {
        assert_eq!(cache.found(&keys(other, &tokens)), 0, "{other:?}");
    }
}

#[cfg(unix)]
#[test]
fn only_the_owner_may_read() {
    use std::os::unix::fs::PermissionsExt;
    let parent = TempDir::new().unwrap();
    let folder = parent.path().join("deep/kv");
    Fixture::open(&folder, 1 << 20).write(&numbered(1, 2));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(files(&folder).len(), 2);
    for file in files(&folder) {
        assert_eq!(mode(&file), 0o600);
    }
}

#[test]
fn least_recently_used_blocks_are_removed_first() {
    let folder = TempDir::new().unwrap();
    let (a, b, c) = (numbered(1, 4), numbered(2, 4), numbered(3, 4));
    let probe = Fixture::open(folder.path(), 1 << 30);
    probe.write(&a);
    let size = probe.stats().bytes / 4;
    drop(probe);
    let cache = Fixture::open(folder.path(), 9 * size);
    std::thread::sleep(Duration::from_millis(20));
    cache.write(&b);
    std::thread::sleep(Duration::from_millis(20));
    cache.cache.touch(a.clone(), None);
    cache.write(&c);
    assert!(cache.stats().bytes <= 9 * size, "{:?}", cache.stats());
    assert_eq!(files(folder.path()).len(), 9);
    assert_eq!(cache.stats().evicted_blocks, 3);
    assert_eq!((cache.found(&a), cache.found(&c)), (4, 4));
    // Not the first block: the others would be useless without it.
    cache.cache.touch(b.clone(), None);
    cache.write(&numbered(4, 1));
    assert_eq!(files(folder.path()).len(), 9);
}

#[test]
fn later_blocks_of_a_prefix_are_removed_first() {
    let folder = TempDir::new().unwrap();
    let chain = numbered(1, 6);
    let probe = Fixture::open(folder.path(), 1 << 30);
    probe.write(&chain);
    probe.cache.touch(chain.clone(), None);
    assert!(probe.cache.flush(PATIENCE));
    let size = probe.stats().bytes / 6;
    drop(probe);
    let cache = Fixture::open(folder.path(), 6 * size);
    cache.write(&numbered(2, 2));
    assert_eq!(cache.found(&chain), 4);
}

#[test]
fn damaged_files_are_removed_and_not_used() {
    let folder = TempDir::new().unwrap();
    let chain = numbered(1, 2);
    let cache = Fixture::open(folder.path(), 1 << 20);
    let second = file_of(folder.path(), &chain[1]);
    cache.write(&chain);
    let whole = fs::read(&second).unwrap();
    let mut seed = 1u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % below
    };
    for trial in 0..200 {
        let mut damaged = whole.clone();
        match trial % 4 {
            0 => damaged.truncate(random(whole.len())),
            1 => damaged.extend(vec![0; 1 + random(100)]),
            _ => {
                let at = random(whole.len());
                damaged[at] ^= 1 + random(255) as u8;
            }
        }
        fs::write(&second, &damaged).unwrap();
        assert_eq!(cache.found(&chain), 1, "trial {trial}");
        // A file of a later version of the format stays.
        let newer = damaged.get(7).is_some_and(|version| *version > whole[7]);
        assert_eq!(
            second.exists(),
            newer && damaged.len() > 80,
            "trial {trial}"
        );
    }
    cache.write(&chain);
    fs::write(&second, &whole).unwrap();
    assert_eq!(cache.found(&chain), 2);
    assert!(cache.stats().damaged_blocks >= 150, "{:?}", cache.stats());
}

#[test]
fn files_of_others_are_not_used() {
    let folder = TempDir::new().unwrap();
    let chain = numbered(1, 2);
    let cache = Fixture::open(folder.path(), 1 << 20);
    cache.write(&chain);
    // One block under the name of another.
    let (first, second) = (
        file_of(folder.path(), &chain[0]),
        file_of(folder.path(), &chain[1]),
    );
    fs::copy(&first, &second).unwrap();
    assert_eq!(cache.found(&chain), 1);
    assert!(!second.exists());
    // The same name, another model.
    let foreign = Fixture::of_model(folder.path(), 1 << 20, MODEL + 1);
    assert_eq!(foreign.found(&chain), 0);
    assert!(!first.exists());
    // What is not ours is neither counted nor removed.
    let note = folder.path().join("note.txt");
    fs::write(&note, vec![0; 1 << 20]).unwrap();
    let tiny = Fixture::open(folder.path(), 3000);
    tiny.write(&numbered(2, 8));
    assert!(note.exists());
    assert!(tiny.stats().bytes <= 3000);
}

#[test]
fn clearing_removes_only_the_own_model() {
    let folder = TempDir::new().unwrap();
    let (own, other) = (numbered(1, 3), numbered(2, 3));
    let (cache, foreign) = (
        Fixture::open(folder.path(), 1 << 20),
        Fixture::of_model(folder.path(), 1 << 20, MODEL + 1),
    );
    cache.write(&own);
    foreign.write(&other);
    cache.cache.clear();
    assert!(cache.cache.flush(PATIENCE));
    assert_eq!((cache.found(&own), foreign.found(&other)), (0, 3));
    assert!(!cache.cache.contains(&own[0]));
}

#[test]
fn failed_writes_lose_nothing_else() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("kv");
    let cache = Fixture::open(&path, 1 << 20);
    let chain = numbered(1, 3);
    cache.write(&chain[..1]);
    // As on a full disk: no file can be created.
    let aside = folder.path().join("aside");
    fs::rename(&path, &aside).unwrap();
    cache.write(&chain[1..2]);
    assert_eq!(cache.stats().failed_writes, 1);
    assert!(!cache.cache.contains(&chain[1]), "it may be written later");
    fs::rename(&aside, &path).unwrap();
    cache.write(&chain[1..]);
    assert_eq!(cache.found(&chain), 3);
    // Larger than the limit.
    let small = Fixture::open(&path, 100);
    small.write(&numbered(2, 1));
    assert_eq!(small.stats().failed_writes, 1);
    assert_eq!(cache.found(&chain), 3, "it removed nothing");
}

#[test]
fn slow_reading_is_not_worth_it() {
    let folder = TempDir::new().unwrap();
    let chain = numbered(1, 4);
    let cache = Fixture::open(folder.path(), 1 << 20);
    cache.write(&chain);
    let worth = |prompt_speed: f64| Worth {
        prompt_speed: Some(prompt_speed),
        import_speed: Some(1e9),
    };
    // Nothing was read yet: reading measures it.
    assert_eq!(cache.load(&chain, worth(1e12)).len(), 4);
    assert_eq!(cache.load(&chain, worth(1e12)).len(), 0);
    assert_eq!(cache.stats().slower, 1);
    assert_eq!(cache.load(&chain, worth(1e-3)).len(), 4);
}

fn sequence(kind: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|at| at + 1000 * kind).collect()
}

#[test]
fn longest_tail_is_found() {
    let folder = TempDir::new().unwrap();
    let cache = Fixture::open(folder.path(), 1 << 20);
    let tokens = sequence(1, 40);
    cache.write(&keys(None, &tokens[..30]));
    for len in [9, 16, 26] {
        cache.write_tail(&tokens[..len]);
    }
    // In another process.
    drop(cache);
    let cache = Fixture::open(folder.path(), 1 << 20);
    assert_eq!(cache.found_tail(&tokens, 0), (6, 2, 2));
    assert_eq!(cache.found_tail(&tokens[..26], 0), (6, 2, 2), "as long");
    assert_eq!(cache.found_tail(&tokens[..25], 0), (4, 0, 2), "at an edge");
    assert_eq!(cache.found_tail(&tokens[..15], 0), (2, 1, 2));
    assert_eq!(cache.found_tail(&tokens[..8], 0), (0, 0, 0), "shorter");
    assert_eq!(cache.found_tail(&tokens, 25), (6, 2, 2));
    assert_eq!(cache.found_tail(&tokens, 26), (0, 0, 0), "in memory");
    assert_eq!(cache.found_tail(&sequence(2, 40), 0), (0, 0, 0));
    // Tails after a block that is missing are out of reach.
    fs::remove_file(file_of(folder.path(), &keys(None, &tokens)[4])).unwrap();
    assert_eq!(cache.found_tail(&tokens, 0), (4, 0, 2));
    assert_eq!(cache.stats().damaged_blocks, 0);
}

#[test]
fn incomplete_tails_are_not_used() {
    let folder = TempDir::new().unwrap();
    let cache = Fixture::open(folder.path(), 1 << 20);
    let tokens = sequence(1, 20);
    cache.write(&keys(None, &tokens));
    cache.write_tail(&tokens[..9]);
    let shorter = (2, 1, 2);
    for at in 0..3 {
        let files = cache.write_tail(&tokens[..18]);
        assert_eq!(cache.found_tail(&tokens, 0), (4, 2, 2));
        // Evicted.
        fs::remove_file(file_of(folder.path(), &files[at])).unwrap();
        assert_eq!(cache.found_tail(&tokens, 0), shorter);
        let record = file_of(folder.path(), &files[2]);
        assert!(!record.exists(), "it is of no use");
        assert!(!cache.cache.contains(&files[2]), "it may be written again");
        // Damaged.
        cache.write_tail(&tokens[..18]);
        let damaged = file_of(folder.path(), &files[at]);
        let mut bytes = fs::read(&damaged).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&damaged, bytes).unwrap();
        // Parts are read when the blocks were sent.
        let found = cache.found_tail(&tokens, 0);
        let expected = [(4, 2, 0), (4, 2, 1), shorter][at];
        assert_eq!(found, expected);
        assert_eq!(cache.found_tail(&tokens, 0), shorter);
        assert!(!damaged.exists());
    }
    assert_eq!(cache.stats().damaged_blocks, 3);
}

#[test]
fn used_tails_are_removed_after_others() {
    let folder = TempDir::new().unwrap();
    let (a, b) = (sequence(1, 18), sequence(2, 18));
    let cache = Fixture::open(folder.path(), 1 << 20);
    for tokens in [&a, &b] {
        cache.write(&keys(None, tokens));
        cache.write_tail(tokens);
    }
    std::thread::sleep(Duration::from_millis(20));
    let tail = |tokens: &[u32]| keys(None, tokens)[3].tail(&PrefixContent::text(tokens), 16..18);
    cache.cache.touch(keys(None, &a), Some(tail(&a)));
    assert!(cache.cache.flush(PATIENCE));
    let half = cache.stats().bytes / 2;
    drop(cache);
    let cache = Fixture::open(folder.path(), half + 2000);
    cache.write(&numbered(3, 1));
    assert_eq!(cache.found_tail(&a, 0), (4, 2, 2));
    assert_eq!(cache.found_tail(&b, 0), (0, 0, 0));
}

#[test]
fn processes_share_a_folder() {
    let folder = TempDir::new().unwrap();
    let limit = 64 << 10;
    let path = folder.path();
    std::thread::scope(|scope| {
        for kind in 0..4 {
            scope.spawn(move || {
                let cache = Fixture::open(path, limit);
                // Two of them write the same blocks.
                let chain = numbered(kind / 2, 100);
                for part in chain.chunks(5) {
                    cache.write(part);
                    // Contents are asserted; how many there are depends on the others.
                    cache.found(&chain);
                }
                assert_eq!(cache.stats().damaged_blocks, 0);
            });
        }
    });
    let bytes: u64 = files(path)
        .iter()
        .map(|file| fs::metadata(file).unwrap().len())
        .sum();
    // Each counts again after a sixteenth of the limit.
    assert!(bytes <= limit + limit / 4, "{bytes}");
    let whole = |file: &PathBuf| file.extension().is_some_and(|name| name == "kvblock");
    assert!(files(path).iter().all(whole), "{:?}", files(path));
}

/// A request that arrives right after a start looks for what the folder has.
#[test]
fn blocks_are_not_missed_before_the_folder_is_listed() {
    let folder = TempDir::new().unwrap();
    let (stored, other) = (numbered(1, 3), numbered(2, 1));
    Fixture::open(folder.path(), 1 << 20).write(&stored);
    for _ in 0..20 {
        let cache = Fixture::open(folder.path(), 1 << 20);
        assert!(cache.cache.may_contain(&stored[2]));
        assert!(cache.cache.flush(PATIENCE), "it is listed then");
        assert!(cache.cache.may_contain(&stored[2]));
        assert!(!cache.cache.may_contain(&other[0]));
    }
}
