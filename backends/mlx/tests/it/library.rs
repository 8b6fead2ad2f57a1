//! A missing or damaged library is a named error.
//!
//! Libraries are searched next to the program, so each case runs a hard link of this program in a
//! folder with the libraries of the case.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use loquat_mlx::MlxBackend;
use loquat_session::{Backend, OpenError, Probe, SessionOptions};
use loquat_testkit::goldens;

/// The libraries of the build.
const SHIM: &str = env!("LOQUAT_MLX_SHIM");
const LIBRARY: &str = env!("LOQUAT_MLX_LIBRARY");

/// What the program of a case should report; unset in a normal run.
const EXPECTED: &str = "LOQUAT_TEST_EXPECTED";

struct Case {
    name: &'static str,
    /// Puts libraries into the program's folder.
    prepare: fn(&Path),
    /// Part of the reason why MLX is not available; empty if it is.
    expected: &'static str,
}

const CASES: &[Case] = &[
    Case {
        name: "whole",
        prepare: |folder| {
            copy_shim(folder, |_| {});
            symlink(LIBRARY, folder.join("libmlx.so")).unwrap();
            link_dependencies(folder);
        },
        expected: "",
    },
    Case {
        name: "empty shim",
        prepare: |folder| copy_shim(folder, Vec::clear),
        expected: "is damaged: it has only 0 bytes",
    },
    Case {
        name: "truncated shim",
        prepare: |folder| copy_shim(folder, |bytes| bytes.truncate(bytes.len() / 2)),
        expected: "is damaged",
    },
    Case {
        name: "shim with random content",
        prepare: |folder| copy_shim(folder, |bytes| bytes.fill(0xa5)),
        expected: "is damaged: it is not a shared library of this system",
    },
    Case {
        name: "shim with a damaged header",
        prepare: |folder| copy_shim(folder, |bytes| bytes[16..64].fill(0xa5)),
        expected: "is damaged",
    },
    Case {
        name: "MLX is another library",
        prepare: |folder| {
            copy_shim(folder, |_| {});
            fs::copy(SHIM, folder.join("libmlx.so")).unwrap();
        },
        expected: "cannot be loaded",
    },
    Case {
        name: "MLX is missing",
        prepare: |folder| copy_shim(folder, |bytes| erase_library_path(bytes)),
        expected: "cannot be loaded: libmlx.so",
    },
    Case {
        name: "truncated MLX",
        prepare: |folder| {
            copy_shim(folder, |_| {});
            let library = fs::read(LIBRARY).unwrap();
            fs::write(folder.join("libmlx.so"), &library[..library.len() / 2]).unwrap();
        },
        expected: "libmlx.so is damaged",
    },
    Case {
        name: "MLX with random content",
        prepare: |folder| {
            copy_shim(folder, |_| {});
            fs::write(folder.join("libmlx.so"), [0xa5; 4096]).unwrap();
        },
        expected: "libmlx.so is damaged",
    },
];

/// A wheel's library searches for others two folders above its own.
fn link_dependencies(folder: &Path) {
    let two_up = |path: &Path| path.ancestors().nth(2).unwrap().to_owned();
    let Ok(entries) = fs::read_dir(two_up(Path::new(LIBRARY).parent().unwrap())) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "libs") || path.ends_with("nvidia") {
            symlink(&path, two_up(folder).join(path.file_name().unwrap())).unwrap();
        }
    }
}

fn copy_shim(folder: &Path, alter: fn(&mut Vec<u8>)) {
    let mut bytes = fs::read(SHIM).unwrap();
    alter(&mut bytes);
    fs::write(folder.join("libloquat_mlx.so"), bytes).unwrap();
}

/// The shim contains the path of the MLX it was built with.
fn erase_library_path(shim: &mut [u8]) {
    let known = Path::new(LIBRARY).parent().unwrap();
    let known = known.as_os_str().as_encoded_bytes();
    let offsets: Vec<usize> = shim
        .windows(known.len())
        .enumerate()
        .filter(|(_, window)| *window == known)
        .map(|(index, _)| index)
        .collect();
    assert!(!offsets.is_empty());
    for offset in offsets {
        shim[offset..offset + known.len()].fill(b'x');
    }
}

fn run(case: &Case) -> Output {
    // In the build directory, so that the program can be hard-linked.
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let folder = root.path().join("mlx/lib");
    fs::create_dir_all(&folder).unwrap();
    (case.prepare)(&folder);
    let program = folder.join("program");
    fs::hard_link(std::env::current_exe().unwrap(), &program).unwrap();
    Command::new(program)
        .args([
            "--exact",
            "library::program_reports_the_library_it_found",
            "--nocapture",
        ])
        .env(EXPECTED, case.expected)
        .output()
        .unwrap()
}

#[test]
fn damaged_library_is_a_named_error() {
    for case in CASES {
        let output = run(case);
        assert!(output.status.success(), "{}: {output:#?}", case.name);
    }
}

/// The program of a case; in a normal run it finds the build's libraries.
#[test]
fn program_reports_the_library_it_found() {
    let expected = std::env::var(EXPECTED).unwrap_or_default();
    let source = goldens::source(&goldens::family("llama")).unwrap();
    let opened = MlxBackend::AUTO.open(source, &SessionOptions::default(), &mut |_| {});
    match (MlxBackend::AUTO.probe(), opened.map(drop)) {
        (Probe::Available(_), Ok(())) => assert_eq!(expected, ""),
        (Probe::Unavailable { why, remedy }, Err(OpenError::Unavailable { why: again, .. })) => {
            assert!(!expected.is_empty() && why.contains(&expected), "{why}");
            assert_eq!(why, again);
            assert!(!remedy.is_empty());
        }
        other => panic!("{other:?}"),
    }
}
