//! Full disks.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use loquat_hubkit::{FakeRepo, Site};
use loquat_store::hub::HubError;
use loquat_store::{NoProgress, Progress};

use super::fixture::{HubFixture, ID, WEIGHTS, child, files, hub_from_env, pull};

#[test]
fn too_large_download_is_refused_before_requests() {
    let mut files = files(1_000);
    files[2].claimed_size = Some(1 << 60);
    let fixture = HubFixture::serving(FakeRepo::new(ID, files));
    let error = fixture.pull().unwrap_err();
    let HubError::NoRoom { needed, free, .. } = error else {
        panic!("{error}");
    };
    assert!(needed > 1 << 60 && free < needed);
    let message = error.to_string();
    for part in ["HF_HUB_CACHE", &needed.to_string(), &free.to_string()] {
        assert!(message.contains(part), "{message}");
    }
    assert!(
        fixture
            .server
            .requests()
            .iter()
            .all(|request| request.site == Site::Api)
    );
    assert!(!fixture.root().exists());
}

/// Runs the command with a small file system mounted at `dir`, in a user namespace.
fn on_small_disk(dir: &Path, command: &Command) -> Command {
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
fn full_disk_keeps_partial_download_for_resume() {
    let fixture = HubFixture::new(8_000_000);
    let disk = fixture.folder().join("disk");
    fs::create_dir(&disk).unwrap();
    let probe = on_small_disk(&disk, &Command::new("true"))
        .stderr(Stdio::null())
        .status();
    if !probe.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this account cannot mount a file system");
        return;
    }
    // The rest of the file is sent only after the disk is full.
    fixture.server.limit_sent(Some(fixture.bytes() / 2));
    let pull = child("hub::disk::fill_the_disk", &fixture.server.url(), &disk);
    let mut process = on_small_disk(&disk, &pull).spawn().unwrap();
    while !full_marker(&disk).exists() && process.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    fixture.server.limit_sent(None);
    assert!(process.wait().unwrap().success());
}

/// A file next to the small disk, written when the disk is full.
fn full_marker(disk: &Path) -> PathBuf {
    disk.with_extension("full")
}

/// Fills the disk once a quarter of the bytes are downloaded.
struct DiskFiller {
    path: PathBuf,
    marker: PathBuf,
    left: u64,
}

impl Progress for DiskFiller {
    fn start(&mut self, _what: &str, total: Option<u64>) {
        self.left = total.unwrap() / 4;
    }
    fn advance(&mut self, bytes: u64) {
        if self.left > 0 && bytes >= self.left {
            let mut file = File::create(&self.path).unwrap();
            for chunk in [1 << 20, 4096] {
                let zeros = vec![0; chunk];
                while file.write_all(&zeros).is_ok() {}
            }
            fs::write(&self.marker, "").unwrap();
        }
        self.left = self.left.saturating_sub(bytes);
    }
    fn note(&mut self, _message: &str) {}
    fn finish(&mut self) {}
}

/// Spans in the journal.
fn recorded_spans(cache: &Path) -> usize {
    let blobs = fs::read_dir(cache.join("models--someone--model/blobs")).unwrap();
    let mut journals = blobs
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "journal"));
    let journal = fs::read_to_string(journals.next().unwrap()).unwrap();
    journal.lines().count() - 1
}

/// The process that runs on the small disk.
#[test]
#[ignore = "run by other tests"]
fn fill_the_disk() {
    let Some((hub, cache)) = hub_from_env() else {
        return;
    };
    let mut filler = DiskFiller {
        path: cache.join("filler"),
        marker: full_marker(&cache),
        left: 0,
    };
    let error = pull(&hub, &mut filler).unwrap_err();
    assert!(matches!(error, HubError::DiskFull { .. }), "{error}");
    let message = error.to_string();
    assert!(
        message.contains("is kept") && message.contains("HF_HUB_CACHE"),
        "{message}"
    );
    fs::remove_file(&filler.path).unwrap();
    assert!(recorded_spans(&cache) > 0, "no span is recorded");
    let snapshot = pull(&hub, &mut NoProgress).unwrap();
    assert_eq!(
        fs::metadata(snapshot.join(WEIGHTS)).unwrap().len(),
        8_000_000
    );
}
