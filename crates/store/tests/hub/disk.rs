//! Disks that have no room.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use loquat_hubkit::{Repo as Served, Site};
use loquat_store::hub::HubError;
use loquat_store::{NoProgress, Progress};

use crate::world::{ID, WEIGHTS, World, child, files, pull, told_hub};

#[test]
fn what_the_disk_cannot_hold_is_refused_before_a_byte_is_asked_for() {
    let mut files = files(1_000);
    files[2].claimed_size = Some(1 << 60);
    let world = World::of(Served::new(ID, files));
    let error = world.pull().unwrap_err();
    let HubError::NoRoom { needed, free, .. } = error else {
        panic!("{error}");
    };
    assert!(needed > 1 << 60 && free < needed);
    let message = error.to_string();
    for part in ["HF_HUB_CACHE", &needed.to_string(), &free.to_string()] {
        assert!(message.contains(part), "{message}");
    }
    assert!(
        world
            .server
            .requests()
            .iter()
            .all(|request| request.site == Site::Api)
    );
    assert!(!world.root().exists());
}

/// A file system of its own, which only a process that may mount can have; user namespaces let
/// most accounts do so.
fn on_a_small_disk(dir: &Path, command: &Command) -> Command {
    let mut unshared = Command::new("unshare");
    let script = "mount -t tmpfs -o size=40m none \"$0\" && exec \"$@\"";
    unshared
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(dir)
        .arg(command.get_program())
        .args(command.get_args())
        .envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
    unshared
}

#[test]
fn a_disk_that_fills_up_keeps_what_came_and_the_next_pull_goes_on() {
    let world = World::new(8_000_000);
    let disk = world.folder().join("disk");
    fs::create_dir(&disk).unwrap();
    let probe = on_a_small_disk(&disk, &Command::new("true"))
        .stderr(Stdio::null())
        .status();
    if !probe.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this account may not mount a file system of its own");
        return;
    }
    let pull = child("disk::fill_the_disk", &world.server.url(), &disk);
    assert!(on_a_small_disk(&disk, &pull).status().unwrap().success());
    let weights = world.file(WEIGHTS).content.len() as u64;
    assert!(
        world.server.sent() < world.bytes() + weights / 2,
        "{}",
        world.server.sent()
    );
}

/// Takes all room that is left once half of the bytes are here.
struct Hog {
    path: PathBuf,
    left: u64,
}

impl Progress for Hog {
    fn start(&mut self, _what: &str, total: Option<u64>) {
        self.left = total.unwrap() / 2;
    }
    fn advance(&mut self, bytes: u64) {
        if self.left > 0 && bytes >= self.left {
            let mut file = File::create(&self.path).unwrap();
            while file.write_all(&[0; 4096]).is_ok() {}
        }
        self.left = self.left.saturating_sub(bytes);
    }
    fn note(&mut self, _message: &str) {}
    fn finish(&mut self) {}
}

/// Not a test of its own: what runs on the small disk.
#[test]
#[ignore = "run by other tests"]
fn fill_the_disk() {
    let Some((hub, cache)) = told_hub() else {
        return;
    };
    let mut hog = Hog {
        path: cache.join("hog"),
        left: 0,
    };
    let error = pull(&hub, &mut hog).unwrap_err();
    assert!(matches!(error, HubError::DiskFull { .. }), "{error}");
    let message = error.to_string();
    assert!(
        message.contains("is kept") && message.contains("HF_HUB_CACHE"),
        "{message}"
    );
    fs::remove_file(&hog.path).unwrap();
    let snapshot = pull(&hub, &mut NoProgress).unwrap();
    assert_eq!(
        fs::metadata(snapshot.join(WEIGHTS)).unwrap().len(),
        8_000_000
    );
}
