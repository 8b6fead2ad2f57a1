//! Several processes share one cache.

use std::thread;

use loquat_store::NoProgress;

use super::fixture::{HubFixture, pull};
use crate::fixture::RecordedProgress;

#[test]
fn two_processes_download_each_byte_once() {
    let fixture = HubFixture::new(2_000_000);
    fixture.server.throttle(Some(2_000_000));
    let mut children = [
        fixture.child().spawn().unwrap(),
        fixture.child().spawn().unwrap(),
    ];
    thread::scope(|scope| {
        let local = scope.spawn(|| pull(&fixture.hub(), &mut NoProgress).unwrap());
        for child in &mut children {
            assert!(child.wait().unwrap().success());
        }
        local.join().unwrap();
    });
    assert_eq!(fixture.server.sent(), fixture.bytes());
    fixture.assert_complete();
}

#[test]
fn waiting_for_a_lock_is_reported() {
    let fixture = HubFixture::new(400_000);
    let locks = fixture.cache().join(".locks/models--someone--model");
    std::fs::create_dir_all(&locks).unwrap();
    let path = locks.join(format!("{}.lock", fixture.file("model.gguf").etag()));
    let lock = std::fs::File::create(path).unwrap();
    lock.lock().unwrap();

    /// Releases the lock as soon as another process waits for it.
    struct ReleaseOnNote(Option<std::fs::File>, RecordedProgress);
    impl loquat_store::Progress for ReleaseOnNote {
        fn start(&mut self, what: &str, total: Option<u64>) {
            self.1.start(what, total);
        }
        fn advance(&mut self, bytes: u64) {
            self.1.advance(bytes);
        }
        fn note(&mut self, message: &str) {
            self.0.take();
            self.1.note(message);
        }
        fn finish(&mut self) {
            self.1.finish();
        }
    }
    let mut progress = ReleaseOnNote(Some(lock), RecordedProgress::default());
    pull(&fixture.hub(), &mut progress).unwrap();
    let notes = progress.1.notes;
    assert!(
        notes[0].contains("waiting") && notes[0].contains("model.gguf"),
        "{notes:?}"
    );
    fixture.assert_complete();
}
