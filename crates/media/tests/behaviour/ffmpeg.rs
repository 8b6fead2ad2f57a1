//! Videos that `ffmpeg` itself writes. Without the program they are skipped, unless the variable
//! says that it is installed, as `cargo xtask test` does.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::Instant;

use loquat_media::{FrameSource, Limits, MediaError, Raster};

const REQUIRED: &str = "LOQUAT_REQUIRE_FFMPEG";
const SIZE: (u32, u32) = (90, 62);
const FRAMES: usize = 12;

/// A video of frames that get brighter by 20 levels each; `None` without `ffmpeg`.
fn video(container: &str, options: &[&str]) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let (raw, file) = (folder.path().join("raw"), folder.path().join(container));
    let pixels = SIZE.0 as usize * SIZE.1 as usize * 3;
    let frames = (0..FRAMES).flat_map(|frame| vec![frame as u8 * 20; pixels]);
    std::fs::write(&raw, frames.collect::<Vec<_>>()).unwrap();
    let size = format!("{}x{}", SIZE.0, SIZE.1);
    let input = [
        "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", &size, "-r", "6", "-i",
    ];
    let mut arguments: Vec<OsString> = ["-v", "error", "-y"].map(OsString::from).into();
    arguments.extend(input.map(OsString::from));
    arguments.push(raw.into());
    arguments.extend(options.iter().map(OsString::from));
    arguments.push(file.clone().into());
    let run = Command::new("ffmpeg")
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    match run {
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{container}: {errors}");
            Some(std::fs::read(file).unwrap())
        }
        Err(error) if std::env::var_os(REQUIRED).is_some() => panic!("ffmpeg: {error}"),
        Err(error) => {
            eprintln!("skipped: ffmpeg: {error}");
            None
        }
    }
}

/// As a phone films: H.264 in MP4, its index at the end.
fn mp4() -> Option<Vec<u8>> {
    video(
        "video.mp4",
        &["-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "10"],
    )
}

fn frames(bytes: &[u8], indices: &[usize]) -> Vec<(Raster, usize)> {
    let limits = Limits::default();
    let source = FrameSource::open(bytes, &limits).unwrap();
    let mut frames = Vec::new();
    source
        .frames(indices, &limits, &mut |frame, times| {
            frames.push((frame, times))
        })
        .unwrap();
    frames
}

#[test]
fn chosen_frames_of_containers_are_decoded() {
    for (container, options) in [
        (
            "video.mp4",
            &["-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "10"][..],
        ),
        ("video.mov", &["-c:v", "mpeg4", "-q:v", "2"]),
        ("video.mkv", &["-c:v", "ffv1"]),
        ("video.avi", &["-c:v", "mjpeg", "-q:v", "2"]),
    ] {
        let Some(bytes) = video(container, options) else {
            return;
        };
        let source = FrameSource::open(&bytes, &Limits::default()).unwrap();
        let metadata = source.metadata();
        assert_eq!((metadata.width, metadata.height), SIZE, "{container}");
        assert_eq!(metadata.total_frames, FRAMES, "{container}");
        assert_eq!(metadata.fps, Some(6.0), "{container}");
        let chosen = frames(&bytes, &[0, 4, 4, 11]);
        let expected = [(0, 1), (4, 2), (11, 1)];
        assert_eq!(chosen.len(), expected.len(), "{container}");
        for ((raster, times), (number, expected_times)) in chosen.iter().zip(expected) {
            assert_eq!((raster.width(), raster.height()), SIZE);
            assert_eq!(*times, expected_times, "{container}");
            // Codecs lose some levels, less than half of what a frame gains.
            for level in raster.rgb() {
                let distance = level.abs_diff(number * 20);
                assert!(distance < 8, "{container}, frame {number}: {level}");
            }
        }
    }
}

#[test]
fn limits_hold_for_videos() {
    let Some(bytes) = mp4() else {
        return;
    };
    let refused = |limits: Limits| {
        let Err(error) = FrameSource::open(&bytes, &limits) else {
            panic!("accepted");
        };
        error.to_string()
    };
    let default = Limits::default;
    let few_frames = refused(Limits {
        frames: 11,
        ..default()
    });
    assert!(
        few_frames.contains("12") && few_frames.contains("11"),
        "{few_frames}"
    );
    let small = refused(Limits {
        side: 89,
        ..default()
    });
    assert!(small.contains("90"), "{small}");
    let short = refused(Limits {
        bytes: 100,
        ..default()
    });
    assert!(short.contains("100"), "{short}");

    let source = FrameSource::open(&bytes, &default()).unwrap();
    let little = Limits {
        kept_pixels: 90 * 62 * 2 - 1,
        ..default()
    };
    let error = source.frames(&[0, 1], &little, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, MediaError::TooLarge { .. }), "{error}");
}

#[test]
fn slow_decoders_are_ended() {
    // More than a tenth of a second to count, on any machine.
    let options = ["-vf", "loop=100:12,scale=640:480", "-c:v", "mpeg4"];
    let Some(bytes) = video("video.mp4", &options) else {
        return;
    };
    let source = FrameSource::open(&bytes, &Limits::default()).unwrap();
    let last = source.metadata().total_frames - 1;
    let hurried = Limits {
        decoder_seconds: 0.1,
        ..Limits::default()
    };
    let started = Instant::now();
    let error = source
        .frames(&[last], &hurried, &mut |_, _| {})
        .unwrap_err();
    assert!(error.to_string().contains("took too long"), "{error}");
    assert!(started.elapsed().as_secs() < 10);
}

#[test]
fn damaged_and_foreign_files_are_refused() {
    let Some(bytes) = mp4() else {
        return;
    };
    let playlist = b"#EXTM3U\n#EXTINF:1,\nfile:///etc/hostname\n".to_vec();
    let list = b"ffconcat version 1.0\nfile /etc/hostname\n".to_vec();
    for (name, bytes) in [
        ("half", bytes[..bytes.len() / 2].to_vec()),
        ("playlist", playlist),
        ("list", list),
    ] {
        let Err(error) = FrameSource::open(&bytes, &Limits::default()) else {
            panic!("{name} is accepted");
        };
        let message = error.to_string();
        assert!(message.starts_with("`ffprobe` failed"), "{name}: {message}");
        assert!(!message.contains("hostname"), "{name}: {message}");
    }
}
