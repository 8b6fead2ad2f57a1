//! Prefixes on disk: engines come and go over one folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use loquat_session::{Session, SessionError};
use loquat_spec::MediaAttention;
use loquat_testkit::fake_session::{Cost, FakeOptions, FakeSession};
use tempfile::TempDir;

use super::harness::{
    Harness, alone, even_steps, greedy, prompt, recurrent, windowed, without_cache, without_drafts,
};
use super::media::{picture, reads_media, shows};
use crate::disk_tier::BLOCK_TOKENS;
use crate::{DiskOptions, DiskStats, Engine, EngineError, EngineOptions, GenerateRequest};

fn options(folder: &Path) -> EngineOptions {
    EngineOptions {
        kv_disk: Some(DiskOptions {
            folder: folder.to_owned(),
            max_bytes: 1 << 30,
            required: true,
        }),
        // Rejected drafts would count as computed.
        ..without_drafts()
    }
}

fn harness(folder: &Path) -> Harness {
    Harness::new(even_steps(), options(folder))
}

/// Steps take so much of the engine's time that a disk shared with other tests reads faster.
fn slow(fake: FakeOptions) -> FakeOptions {
    let step = Duration::from_millis(500);
    FakeOptions {
        cost: Cost { step, ..fake.cost },
        ..fake
    }
}

/// Models whose sequences have tails: recurrent ones, those with windows, and both.
fn with_tails() -> [FakeOptions; 3] {
    let both = FakeOptions {
        kv_groups: windowed().kv_groups,
        ..recurrent()
    };
    [recurrent(), windowed(), both]
}

/// All kinds of models.
fn all_kinds() -> [FakeOptions; 4] {
    let [recurrent, windowed, both] = with_tails();
    [even_steps(), recurrent, windowed, both]
}

fn has_tails(fake: &FakeOptions) -> bool {
    fake.snapshots.is_some() || fake.kv_groups.count() > 1
}

/// Of a prompt with so many tokens that was computed before: its blocks, or all but its last token,
/// where tails are.
fn reused(fake: &FakeOptions, tokens: usize) -> usize {
    if has_tails(fake) {
        tokens - 1
    } else {
        whole(tokens)
    }
}

impl Harness {
    fn disk(&self) -> DiskStats {
        self.engine.stats().disk
    }

    /// Turns until everything is written. The writer is a thread, so that turns need real time.
    fn store(&mut self) {
        self.turn_slowly("stored", |harness| {
            harness.disk().pending_tokens == 0 && !harness.turn()
        });
    }

    fn turn_slowly(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..20_000 {
            if done(self) {
                return;
            }
            self.turn();
            std::thread::sleep(Duration::from_micros(500));
        }
        panic!("never happened: {what}");
    }

    /// Its tokens and how many of its prompt were cached.
    fn ask(&mut self, request: GenerateRequest) -> (Vec<u32>, usize) {
        let reader = self.submit(request);
        self.turn_slowly("its end", |harness| harness.readers[reader].has_ended());
        let reader = &self.readers[reader];
        (reader.ids(), reader.usage().cached_tokens)
    }
}

fn blocks(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut blocks: Vec<PathBuf> = entries.collect();
    blocks.sort();
    blocks
}

/// Blocks of a prompt whose last token is computed in any case.
fn whole(tokens: usize) -> usize {
    (tokens - 1) / BLOCK_TOKENS * BLOCK_TOKENS
}

#[test]
fn prefix_survives_restart() {
    for fake in all_kinds() {
        let folder = TempDir::new().unwrap();
        let request = || greedy(&prompt(1, 300), 5);
        let mut first = Harness::new(fake.clone(), options(folder.path()));
        assert_eq!(first.ask(request()), (alone(request()), 0));
        first.store();
        let stats = first.disk();
        // Tails of the prompt and of its answer, of a part and a record each.
        let tails = if has_tails(&fake) { 4 } else { 0 };
        assert_eq!(
            (stats.written_blocks, stats.hits),
            (4 + tails, 0),
            "{stats:?}"
        );
        // Killed: nothing is flushed.
        std::mem::forget(first);

        let cached = reused(&fake, 300);
        let mut second = Harness::new(fake.clone(), options(folder.path()));
        assert_eq!(
            second.ask(request()),
            (alone(request()), cached),
            "{fake:?}"
        );
        let stats = second.disk();
        assert_eq!((stats.hits, stats.hit_tokens), (1, cached as u64));
        // From memory from now on.
        assert_eq!(second.ask(request()), (alone(request()), 299));
        assert_eq!(second.disk().hits, 1);
        second.assert_empty();
    }
}

/// The picture is named by what it shows: another one behind equal placeholders is not found, and
/// text with these placeholders is not either.
#[test]
fn prefixes_with_pictures_survive_restart() {
    let causal = reads_media(MediaAttention::Causal);
    let kinds = [
        causal.clone(),
        reads_media(MediaAttention::View),
        FakeOptions {
            media: causal.media,
            ..recurrent()
        },
        FakeOptions {
            media: causal.media,
            ..windowed()
        },
    ];
    for fake in kinds {
        let folder = TempDir::new().unwrap();
        let open = || Harness::new(fake.clone(), options(folder.path()));
        let (own, other) = (shows(&picture(3), 8), shows(&picture(4), 8));
        let text = greedy(&own.prompt, 8);
        let expected = [&own, &other, &text].map(|request| {
            let mut alone = Harness::new(fake.clone(), EngineOptions::default());
            alone.answer(request.clone())
        });
        let mut first = open();
        assert_eq!(first.ask(own.clone()), (expected[0].clone(), 0));
        first.store();
        assert!(first.disk().written_blocks > 0);
        std::mem::forget(first);

        let cached = reused(&fake, own.prompt.len());
        assert!(cached > 20 + 40, "the picture is in blocks");
        assert_eq!(open().ask(other), (expected[1].clone(), 0), "{fake:?}");
        assert_eq!(open().ask(text), (expected[2].clone(), 0), "{fake:?}");
        let mut second = open();
        assert_eq!(second.ask(own), (expected[0].clone(), cached), "{fake:?}");
        second.assert_empty();
    }
}

#[test]
fn conversation_writes_only_new_blocks() {
    let folder = TempDir::new().unwrap();
    let mut said = prompt(1, 200);
    let mut written = 0;
    for turn in 0..5 {
        let mut harness = harness(folder.path());
        let (answer, cached) = harness.ask(greedy(&said, 30));
        assert_eq!(answer, alone(greedy(&said, 30)));
        assert_eq!(cached, if turn == 0 { 0 } else { whole(said.len() - 70) });
        said.extend(answer);
        harness.store();
        written += harness.disk().written_blocks;
        assert_eq!(written as usize, (said.len() - 1) / BLOCK_TOKENS);
        said.extend(prompt(turn + 2, 70));
    }
}

/// Each turn in a process of its own continues exactly where the last one ended.
#[test]
fn conversation_continues_at_its_tail() {
    for fake in with_tails() {
        let folder = TempDir::new().unwrap();
        let mut said = prompt(1, 200);
        let mut ended = 0;
        for turn in 0..5 {
            let mut harness = Harness::new(fake.clone(), options(folder.path()));
            let (answer, cached) = harness.ask(greedy(&said, 30));
            assert_eq!(answer, alone(greedy(&said, 30)));
            assert_eq!(cached, ended, "turn {turn} of {fake:?}");
            said.extend(answer);
            ended = said.len() - 1;
            harness.store();
            said.extend(prompt(turn + 2, 70));
        }
    }
}

/// Another end of the same beginning continues at the end of what both have.
#[test]
fn branches_have_tails_of_their_own() {
    for fake in with_tails().map(slow) {
        let folder = TempDir::new().unwrap();
        let start = prompt(1, 500);
        let branch = |kind| [start.clone(), prompt(kind, 150)].concat();
        for tokens in [start.clone(), branch(2), branch(3)] {
            let mut harness = Harness::new(fake.clone(), options(folder.path()));
            harness.ask(greedy(&tokens, 2));
            harness.store();
        }
        let mut harness = Harness::new(fake.clone(), options(folder.path()));
        for (tokens, expected) in [
            (branch(4), 499),
            (branch(2), 649),
            ([branch(3), prompt(5, 9)].concat(), 649),
            // Shorter than every tail.
            (start[..450].to_vec(), 0),
        ] {
            let request = || greedy(&tokens, 5);
            assert_eq!(
                harness.ask(request()),
                (alone(request()), expected),
                "{fake:?}"
            );
        }
        assert_eq!(harness.disk().hits, 3);
    }
}

#[test]
fn short_sequences_have_no_tails() {
    for fake in with_tails() {
        let folder = TempDir::new().unwrap();
        let mut harness = Harness::new(fake, options(folder.path()));
        harness.ask(greedy(&prompt(1, 50), 5));
        harness.store();
        assert_eq!(blocks(folder.path()).len(), 0);
    }
}

/// A folder for parts of a tail only, which would remove each other.
#[test]
fn tails_that_do_not_fit_are_not_written() {
    for fake in with_tails() {
        let folder = TempDir::new().unwrap();
        let mut small = options(folder.path());
        if let Some(disk) = &mut small.kv_disk {
            disk.max_bytes = 1400;
        }
        let mut harness = Harness::new(fake, small);
        for kind in 0..3 {
            let request = || greedy(&prompt(kind, 300), 5);
            assert_eq!(harness.ask(request()), (alone(request()), 0));
            harness.store();
        }
        // The blocks of the first, before it was known.
        assert_eq!(harness.disk().written_blocks, 4);
        harness.assert_empty();
    }
}

#[test]
fn ending_engine_stores_what_is_left() {
    for fake in all_kinds() {
        let fake = FakeOptions {
            clock: None,
            ..fake
        };
        let folder = TempDir::new().unwrap();
        let session = FakeSession::new(fake.clone());
        let engine = Engine::start(Box::new(session), None, options(folder.path())).unwrap();
        let request = || greedy(&prompt(1, 1000), 5);
        let generation = engine.submit(request()).unwrap();
        let answer = generation.collect_blocking().unwrap();
        engine.drain(Duration::from_secs(60));
        assert!(blocks(folder.path()).len() >= whole(1000) / BLOCK_TOKENS);

        let session = FakeSession::new(fake.clone());
        let engine = Engine::start(Box::new(session), None, options(folder.path())).unwrap();
        let again = engine
            .submit(request())
            .unwrap()
            .collect_blocking()
            .unwrap();
        assert_eq!(again.ids(), answer.ids());
        assert_eq!(again.usage.cached_tokens, reused(&fake, 1000));
    }
}

#[test]
fn evicted_prefix_is_read_back() {
    for fake in all_kinds() {
        let folder = TempDir::new().unwrap();
        let cached = reused(&fake, 300);
        let fake = FakeOptions {
            kv_capacity: 512,
            max_step_tokens: 64,
            ..fake
        };
        let mut harness = Harness::new(fake, options(folder.path()));
        for kind in 0..6 {
            harness.ask(greedy(&prompt(kind, 300), 5));
            harness.store();
        }
        assert!(harness.engine.stats().cache.evictions >= 3);
        assert_eq!(harness.disk().lost, 0);
        let request = || greedy(&prompt(0, 300), 5);
        assert_eq!(harness.ask(request()), (alone(request()), cached));
        harness.assert_empty();
    }
}

#[test]
fn disk_continues_what_is_in_memory() {
    for fake in all_kinds() {
        let folder = TempDir::new().unwrap();
        let long = || greedy(&prompt(1, 600), 5);
        let cached = reused(&fake, 600);
        let mut first = Harness::new(fake.clone(), options(folder.path()));
        first.ask(long());
        first.store();
        drop(first);
        let mut second = Harness::new(fake, options(folder.path()));
        second.ask(greedy(&prompt(1, 200), 5));
        let computed = second.computed(|harness| {
            assert_eq!(harness.ask(long()), (alone(long()), cached));
        });
        assert_eq!(computed, 600 - cached + 4);
        second.assert_empty();
    }
}

#[test]
fn scopes_do_not_share_files() {
    for fake in all_kinds() {
        let folder = TempDir::new().unwrap();
        let in_scope = |scope: Option<&str>| GenerateRequest {
            cache_scope: scope.map(str::to_owned),
            ..greedy(&prompt(1, 300), 5)
        };
        let mut first = Harness::new(fake.clone(), options(folder.path()));
        first.ask(in_scope(Some("a")));
        first.store();
        drop(first);
        let own = (Some("a"), reused(&fake, 300));
        for (scope, cached) in [(Some("b"), 0), (None, 0), own] {
            let mut harness = Harness::new(fake.clone(), options(folder.path()));
            let answer = harness.ask(in_scope(scope));
            assert_eq!(answer, (alone(in_scope(scope)), cached), "{scope:?}");
        }
    }
}

#[test]
fn damaged_files_are_computed_again() {
    for fake in all_kinds() {
        let folder = TempDir::new().unwrap();
        let request = || greedy(&prompt(1, 300), 5);
        let expected = alone(request());
        let mut first = Harness::new(fake.clone(), options(folder.path()));
        first.ask(request());
        first.store();
        drop(first);
        let whole_files: Vec<_> = blocks(folder.path())
            .into_iter()
            .map(|path| (fs::read(&path).unwrap(), path))
            .collect();
        let mut random = super::rng::SeededRng::new(1);
        let mut missed = 0;
        for trial in 0..200 {
            for (bytes, path) in &whole_files {
                fs::write(path, bytes).unwrap();
            }
            let (bytes, path) = random.pick(&whole_files);
            let mut damaged = bytes.clone();
            let at = random.number(0..=bytes.len() - 1);
            if trial % 5 == 0 {
                damaged.truncate(at);
            } else {
                damaged[at] ^= random.number(1..=255) as u8;
            }
            fs::write(path, damaged).unwrap();
            let mut harness = Harness::new(fake.clone(), options(folder.path()));
            let (answer, cached) = harness.ask(request());
            assert_eq!(answer, expected, "trial {trial}");
            missed += usize::from(cached < reused(&fake, 300));
        }
        // Of a recurrent model, the tail of the answer is not needed.
        assert!(missed == 200 || has_tails(&fake) && missed > 80, "{missed}");
    }
}

/// A missing file of a tail leaves the tails before it.
#[test]
fn tail_without_a_part_is_not_used() {
    for fake in with_tails() {
        let folder = TempDir::new().unwrap();
        let request = |tokens: usize| greedy(&prompt(1, tokens), 5);
        let mut written: Vec<Vec<PathBuf>> = Vec::new();
        for tokens in [300, 500] {
            let mut harness = Harness::new(fake.clone(), options(folder.path()));
            harness.ask(request(tokens));
            harness.store();
            let new = blocks(folder.path());
            written.push(
                new.into_iter()
                    .filter(|path| !written.concat().contains(path))
                    .collect(),
            );
        }
        for path in &written[1] {
            let bytes = fs::read(path).unwrap();
            fs::remove_file(path).unwrap();
            let mut harness = Harness::new(fake.clone(), options(folder.path()));
            let (answer, cached) = harness.ask(request(500));
            assert_eq!(answer, alone(request(500)));
            assert!(cached >= 299, "{cached} without {path:?} of {fake:?}");
            // What is useless without the file was removed.
            harness.store();
            drop(harness);
            fs::write(path, bytes).unwrap();
        }
    }
}

#[test]
fn cancelled_loads_leave_nothing() {
    let request = || greedy(&prompt(1, 2000), 5);
    for fake in all_kinds() {
        for turns in 0..8 {
            let folder = TempDir::new().unwrap();
            let mut first = Harness::new(fake.clone(), options(folder.path()));
            first.ask(request());
            first.store();
            drop(first);
            let mut second = Harness::new(fake.clone(), options(folder.path()));
            let reader = second.submit(request());
            for _ in 0..turns {
                second.turn();
                std::thread::sleep(Duration::from_micros(200));
            }
            second.readers[reader].generation = None;
            second.turn_slowly("its end", |harness| {
                let totals = harness.engine.stats().totals;
                totals.cancelled + totals.finished == 1
            });
            assert_eq!(second.ask(request()).0, alone(request()));
            second.store();
            second.assert_empty();
        }
    }
}

#[test]
fn clearing_the_cache_removes_files() {
    for fake in all_kinds() {
        let folder = TempDir::new().unwrap();
        let mut harness = Harness::new(fake, options(folder.path()));
        harness.ask(greedy(&prompt(1, 300), 5));
        harness.store();
        harness.engine.clear_cache();
        harness.turn();
        harness.turn_slowly("an empty folder", |_| blocks(folder.path()).is_empty());
    }
}

#[test]
fn busy_engine_stores_between_steps() {
    for fake in all_kinds() {
        let folder = TempDir::new().unwrap();
        let cached = reused(&fake, 300);
        let mut harness = Harness::new(fake.clone(), options(folder.path()));
        harness.ask(greedy(&prompt(1, 300), 5));
        // Never idle: a stream runs until everything is written.
        let stream = harness.submit(greedy(&prompt(2, 10), 2000));
        harness.turn_slowly("stored under load", |harness| {
            let disk = harness.disk();
            disk.written_blocks >= 4 && disk.pending_tokens == 0
        });
        assert!(!harness.readers[stream].has_ended());
        std::mem::forget(harness);
        // It is read between steps, too.
        let mut harness = Harness::new(fake, options(folder.path()));
        let stream = harness.submit(greedy(&prompt(2, 10), 2000));
        harness.turn();
        let request = || greedy(&prompt(1, 300), 5);
        assert_eq!(harness.ask(request()), (alone(request()), cached));
        assert!(!harness.readers[stream].has_ended());
    }
}

fn without_ranges() -> FakeOptions {
    FakeOptions {
        ranges: false,
        ..even_steps()
    }
}

#[test]
fn sessions_that_cannot_are_refused_or_go_without() {
    let folder = TempDir::new().unwrap();
    let start = |fake: FakeOptions, options: EngineOptions| {
        Engine::start(Box::new(FakeSession::new(fake)), None, options)
    };
    let refused = |fake, options| match start(fake, options) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("accepted"),
    };
    let message = refused(without_ranges(), options(folder.path()));
    assert!(
        message.contains("`kv_disk`") && message.contains("ranges"),
        "{message}"
    );
    let off = EngineOptions {
        kv_disk: options(folder.path()).kv_disk,
        ..without_cache()
    };
    let message = refused(even_steps(), off);
    assert!(message.contains("prefix cache is off"), "{message}");
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let message = refused(even_steps(), options(&file));
    assert!(
        message.contains("`kv_disk`") && message.contains("folder"),
        "{message}"
    );

    let mut optional = options(folder.path());
    if let Some(disk) = &mut optional.kv_disk {
        disk.required = false;
    }
    let engine = start(without_ranges(), optional).unwrap();
    assert_eq!(engine.stats().disk, DiskStats::default());
}

#[test]
fn fake_without_ranges_says_so() {
    let session = FakeSession::new(without_ranges());
    let refused = session.range_fingerprint();
    assert!(matches!(refused, Err(SessionError::Unsupported(_))));
    let error: EngineError = refused.unwrap_err().into();
    assert!(error.to_string().contains("ranges"));
}
