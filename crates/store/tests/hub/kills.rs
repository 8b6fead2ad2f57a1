//! Processes that end when nobody asked them to.

use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use loquat_hubkit::noise;

use crate::world::World;

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

#[test]
fn a_pull_killed_at_random_bytes_ends_right_and_loses_little() {
    let world = World::new(8_000_000);
    world.server.throttle(Some(8_000_000));
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
    }
    world.server.throttle(None);
    world.pull().unwrap();
    world.assert_whole();
    // Each of four streams may lose a step of the journal, and what lay in its socket.
    let twice = world.server.sent() - world.bytes();
    assert!(
        twice < KILLS as u64 * 4 * 64_000,
        "{twice} bytes were sent twice"
    );
}

#[test]
fn a_pull_killed_at_random_moments_leaves_nothing_half_written() {
    let world = World::new(1_000_000);
    let mut whole = 0;
    for micros in choices(40, 60_000, 5) {
        let child = start(&world);
        let end = Instant::now() + Duration::from_micros(micros);
        thread::sleep(end.saturating_duration_since(Instant::now()));
        kill(child);
        world.assert_nothing_half_written();
        // Once it is complete there is nothing left to be interrupted.
        if world.root().join("refs/main").exists() {
            std::fs::remove_dir_all(world.root()).unwrap();
            whole += 1;
        }
    }
    world.pull().unwrap();
    world.assert_whole();
    eprintln!("{whole} of 40 were complete before they were killed");
}
