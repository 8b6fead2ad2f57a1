//! Pulls whose process is killed.

use std::fs;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use loquat_hubkit::noise;

use super::fixture::{HubFixture, WEIGHTS};

const KILLS: usize = 50;

/// Pseudo-random numbers below `limit`.
fn choices(count: usize, limit: u64, seed: u64) -> impl Iterator<Item = u64> {
    let bytes = noise(count * 8, seed);
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()) % limit)
        .collect();
    words.into_iter()
}

fn start(world: &HubFixture) -> Child {
    world.child().stderr(Stdio::null()).spawn().unwrap()
}

/// Sends SIGKILL.
fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Bytes of the weights in the journal.
fn recorded_bytes(world: &HubFixture) -> u64 {
    let etag = world.file(WEIGHTS).etag();
    let journal = world.root().join(format!("blobs/{etag}.loquat.journal"));
    let text = fs::read_to_string(journal).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let spans = whole.lines().skip(1).map(|line| {
        let (start, end) = line.split_once(' ').unwrap();
        end.parse::<u64>().unwrap() - start.parse::<u64>().unwrap()
    });
    spans.sum()
}

#[test]
fn killed_pulls_keep_progress_and_complete() {
    let world = HubFixture::new(8_000_000);
    let mut kept = 0;
    for bytes in choices(KILLS, 120_000, 3) {
        let goal = world.server.sent() + 1 + bytes;
        world.server.limit_sent(Some(goal));
        let child = start(&world);
        world.server.wait_sent(goal);
        kill(child);
        // The killed process's connections end when they may send again.
        world.server.limit_sent(None);
        world.server.wait_idle();
        world.assert_nothing_half_written();
        let now = recorded_bytes(&world);
        assert!(now >= kept, "{kept} bytes were here, and {now} are left");
        kept = now;
    }
    assert!(kept > 0);
    let small = world.repo.files.iter().filter(|file| !file.large);
    let absent = small.filter(|file| !world.blob(&file.path).exists());
    let absent: u64 = absent.map(|file| file.content.len() as u64).sum();
    let before = world.server.sent();
    world.pull().unwrap();
    world.assert_complete();
    assert_eq!(world.server.sent() - before, 8_000_000 - kept + absent);
}

#[test]
fn killed_pull_leaves_nothing_half_written() {
    let world = HubFixture::new(1_000_000);
    let mut begun = 0;
    for (index, micros) in choices(40, 60_000, 5).enumerate() {
        let before = world.server.sent();
        let mut child = start(&world);
        // Every other one receives some bytes first.
        while index % 2 == 0 && world.server.sent() == before && child.try_wait().unwrap().is_none()
        {
            thread::sleep(Duration::from_micros(200));
        }
        thread::sleep(Duration::from_micros(micros));
        kill(child);
        begun += usize::from(world.server.sent() > before);
        world.assert_nothing_half_written();
        // A complete pull leaves nothing to interrupt: start over.
        if world.root().join("refs/main").exists() {
            fs::remove_dir_all(world.root()).unwrap();
        }
    }
    world.pull().unwrap();
    world.assert_complete();
    assert!(begun > 0, "no process received a byte before it was killed");
}
