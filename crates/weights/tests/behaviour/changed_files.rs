//! Files that change while they are mapped.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use loquat_weights::{Blob, FileChange, FileWatch, WeightsError};

const LEN: usize = 100_000;

/// A file of ones that was last written long ago.
fn write_old_file(path: &Path) {
    fs::write(path, vec![1; LEN]).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    file.set_modified(long_ago).unwrap();
}

fn truncate(path: &Path, len: u64) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(len).unwrap();
}

fn overwrite(path: &Path) {
    let mut file = File::options().write(true).open(path).unwrap();
    file.write_all(&[2]).unwrap();
}

fn replace(path: &Path) {
    let other = path.with_extension("other");
    fs::write(&other, "other").unwrap();
    fs::rename(other, path).unwrap();
}

#[test]
fn changes_of_mapped_files_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    let resized = |to| {
        let from = LEN as u64;
        Some(FileChange::Resized { from, to })
    };
    type Case<'a> = (&'a str, &'a dyn Fn(), Option<FileChange>);
    let table: &[Case] = &[
        ("nothing", &|| {}, None),
        ("truncated", &|| truncate(&path, 10_000), resized(10_000)),
        ("emptied", &|| truncate(&path, 0), resized(0)),
        ("extended", &|| truncate(&path, 200_000), resized(200_000)),
        (
            "overwritten",
            &|| overwrite(&path),
            Some(FileChange::Written),
        ),
        // A mapping keeps its file after the path is replaced.
        ("replaced", &|| replace(&path), None),
        ("deleted", &|| fs::remove_file(&path).unwrap(), None),
    ];
    for (what, change, expected) in table {
        write_old_file(&path);
        let blob = Blob::map(&path).unwrap();
        let mut watch = FileWatch::default();
        watch.add_blob(&blob.slice(7..50_000).unwrap());
        watch.check().unwrap();
        change();
        // Reads every page, including missing ones.
        let sum: usize = blob.iter().map(|byte| usize::from(*byte)).sum();
        if expected.is_none() {
            assert_eq!(sum, LEN, "{what}");
        }
        match (watch.check(), expected) {
            (Ok(()), None) => {}
            (
                Err(WeightsError::FileChanged {
                    path: named,
                    change,
                }),
                Some(expected),
            ) => {
                assert_eq!((&named, &change), (&path, expected), "{what}");
            }
            (found, _) => panic!("{what}: {found:?}"),
        }
        let _ = fs::remove_file(&path);
    }
}

/// Pages can be lost although the file has its full size again.
#[cfg(unix)]
#[test]
fn lost_pages_stay_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    write_old_file(&path);
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let blob = Blob::map(&path).unwrap();
    let mut watch = FileWatch::default();
    watch.add_blob(&blob);
    truncate(&path, 0);
    assert_eq!(blob[LEN - 1], 0);
    fs::write(&path, vec![1; LEN]).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_modified(modified).unwrap();
    assert!(blob.iter().all(|byte| *byte == 0));
    let change = match watch.check() {
        Err(WeightsError::FileChanged { change, .. }) => change,
        other => panic!("{other:?}"),
    };
    assert_eq!(change, FileChange::Unreadable);
    // A new mapping is not affected by the old one.
    drop((blob, watch));
    let again = Blob::map(&path).unwrap();
    let mut watch = FileWatch::default();
    watch.add_blob(&again);
    assert!(again.iter().all(|byte| *byte == 1));
    watch.check().unwrap();
}

/// Many threads and mappings, some of which are lost and some of which are short-lived.
#[cfg(unix)]
#[test]
fn only_the_lost_mapping_is_affected() {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let path = folder.path().join(thread.to_string());
            scope.spawn(move || {
                for round in 0..40 {
                    write_old_file(&path);
                    let blob = Blob::map(&path).unwrap();
                    let mut watch = FileWatch::default();
                    watch.add_blob(&blob);
                    let lost = (thread + round) % 2 == 0;
                    if lost {
                        truncate(&path, 0);
                    }
                    let expected = u8::from(!lost);
                    assert!(blob.iter().all(|byte| *byte == expected));
                    assert_eq!(watch.check().is_err(), lost);
                }
            });
        }
    });
}

/// A fault outside guarded mappings ends the process, as it does without the guard. The test runs
/// itself again as the faulting process.
#[cfg(unix)]
#[test]
fn other_faults_are_not_hidden() {
    use std::os::unix::process::ExitStatusExt;

    const FAULTS: &str = "LOQUAT_TEST_FAULTS";
    let folder = tempfile::tempdir().unwrap();
    let (guarded, other) = (folder.path().join("guarded"), folder.path().join("other"));
    if std::env::var_os(FAULTS).is_some() {
        write_old_file(&guarded);
        write_old_file(&other);
        let _guarded = Blob::map(&guarded).unwrap();
        let file = File::open(&other).unwrap();
        // SAFETY: the file is truncated below, and the fault is the point of the test.
        let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        truncate(&other, 0);
        println!("{}", map[LEN - 1]);
        return;
    }
    let this = "changed_files::other_faults_are_not_hidden";
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let child = child.args(["--exact", this]).env(FAULTS, "1");
    let status = child.output().unwrap().status;
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
}
