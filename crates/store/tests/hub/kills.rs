//! Processes that end when nobody asked them to.

use std::fs;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use loquat_hubkit::noise;

use crate::world::{WEIGHTS, World};

const KILLS: usize = 50;

/// Numbers below `limit` that differ from one another without reason.
fn choices(count: usize, limit: u64, seed: u64) -> impl Iterator<Item = u64> {
    let bytes = noise(count * 8, seed);
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()) % limit)
        .collect();
    words.into_iter()
}

fn start(world: &World) -> Child {
    world.child().stderr(Stdio::null()).spawn().unwrap()
}

/// SIGKILL: nothing of the process runs any more.
fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Bytes of the weights that the journal promises.
fn promised(world: &World) -> u64 {
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
fn a_pull_killed_at_random_bytes_forgets_nothing_and_ends_right() {
    let world = World::new(8_000_000);
    world.server.throttle(Some(1_000_000));
    let mut kept = 0;
    for bytes in choices(KILLS, 120_000, 3) {
        let goal = world.server.sent() + bytes;
        let mut child = start(&world);
        while world.server.sent() <= goal {
            assert!(
                child.try_wait().unwrap().is_none(),
                "it ended before it was killed"
            );
            thread::sleep(Duration::from_micros(200));
        }
        kill(child);
        world.assert_nothing_half_written();
        let now = promised(&world);
        assert!(now >= kept, "{kept} bytes were here, and {now} are left");
        kept = now;
    }
    assert!(kept > 0);
    let small = world.repo.files.iter().filter(|file| !file.large);
    let absent = small.filter(|file| !world.blob(&file.path).exists());
    let absent: u64 = absent.map(|file| file.content.len() as u64).sum();
    world.server.settle();
    let before = world.server.sent();
    world.server.throttle(None);
    world.pull().unwrap();
    world.assert_whole();
    assert_eq!(world.server.sent() - before, 8_000_000 - kept + absent);
}

#[test]
fn a_pull_killed_at_random_moments_leaves_nothing_half_written() {
    let world = World::new(1_000_000);
    let mut begun = 0;
    for (index, micros) in choices(40, 60_000, 5).enumerate() {
        let before = world.server.sent();
        let mut child = start(&world);
        // Every other one is let get somewhere first, however slow the machine is.
        while index % 2 == 0 && world.server.sent() == before && child.try_wait().unwrap().is_none()
        {
            thread::sleep(Duration::from_micros(200));
        }
        thread::sleep(Duration::from_micros(micros));
        kill(child);
        begun += usize::from(world.server.sent() > before);
        world.assert_nothing_half_written();
        // Once it is complete there is nothing left to be interrupted.
        if world.root().join("refs/main").exists() {
            fs::remove_dir_all(world.root()).unwrap();
        }
    }
    world.pull().unwrap();
    world.assert_whole();
    assert!(begun > 0, "none was sent a byte before it was killed");
}
