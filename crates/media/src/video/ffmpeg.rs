//! Other containers, through the programs `ffprobe` and `ffmpeg`. They are run without a shell,
//! without network protocols, with limits on time and on what is read. They get the video as a
//! temporary file, because the index of many MP4 files is at their end, which a pipe cannot seek.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::NamedTempFile;

use super::VideoMetadata;
use crate::error::{MediaError, Quantity};
use crate::limits::{Limits, check};
use crate::raster::Raster;

/// `ffprobe` prints a few lines.
const PROBE_BYTES: u64 = 1 << 20;

/// Containers that cannot name other files, as playlists can.
const FORMATS: &str = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,flv,ogg";

/// The options that name the input, with what it may be.
fn input_options(file: &NamedTempFile) -> [OsString; 6] {
    let mut url = OsString::from("file:");
    url.push(file.path());
    [
        "-protocol_whitelist".into(),
        "file".into(),
        "-format_whitelist".into(),
        FORMATS.into(),
        "-i".into(),
        url,
    ]
}

fn temporary_file(bytes: &[u8]) -> Result<NamedTempFile, MediaError> {
    let failed = |source| MediaError::Io {
        path: std::env::temp_dir(),
        source,
    };
    let mut file = NamedTempFile::new().map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    file.flush().map_err(failed)?;
    Ok(file)
}

/// Reads size, frame rate and number of frames. Frames are counted by packets, which reads the
/// file once without decoding.
pub fn probe(bytes: &[u8], limits: &Limits) -> Result<VideoMetadata, MediaError> {
    let file = temporary_file(bytes)?;
    let entries = "stream=width,height,avg_frame_rate,nb_read_packets:stream_side_data=rotation";
    let output_options = [
        "-select_streams",
        "v:0",
        "-count_packets",
        "-show_entries",
        entries,
    ];
    let mut arguments: Vec<OsString> = vec!["-v".into(), "error".into()];
    arguments.extend(output_options.map(OsString::from));
    arguments.extend(["-of", "json"].map(OsString::from));
    arguments.extend(input_options(&file));
    let deadline = deadline(limits);
    let output = run("ffprobe", &arguments, PROBE_BYTES, deadline)?;
    parse_probe(&output, limits)
}

fn parse_probe(output: &[u8], limits: &Limits) -> Result<VideoMetadata, MediaError> {
    let unclear = |reason: &str| MediaError::VideoDecoder {
        program: "ffprobe",
        reason: reason.to_string(),
    };
    let output: Value =
        serde_json::from_slice(output).map_err(|_| unclear("printed no valid JSON"))?;
    let stream = output
        .pointer("/streams/0")
        .ok_or_else(|| unclear("found no video in the file"))?;
    let side = |name: &str| {
        let side = stream.get(name)?.as_u64()?;
        u32::try_from(side).ok()
    };
    let (Some(mut width), Some(mut height)) = (side("width"), side("height")) else {
        return Err(unclear("did not report the video's size"));
    };
    // `ffmpeg` turns frames upright.
    let rotation = stream.pointer("/side_data_list/0/rotation");
    if rotation
        .and_then(Value::as_i64)
        .is_some_and(|degrees| degrees % 180 != 0)
    {
        (width, height) = (height, width);
    }
    limits.check_size(width, height)?;
    let frames = stream
        .get("nb_read_packets")
        .and_then(|frames| frames.as_u64().or_else(|| frames.as_str()?.parse().ok()));
    let frames = frames
        .filter(|&frames| frames > 0)
        .ok_or(MediaError::NoFrames)?;
    check(Quantity::Frames, frames, limits.frames)?;
    let rate = stream.get("avg_frame_rate").and_then(Value::as_str);
    let fps = rate.and_then(|rate| {
        let (over, under) = rate.split_once('/')?;
        let rate = over.parse::<f64>().ok()? / under.parse::<f64>().ok()?;
        (rate.is_finite() && rate > 0.0).then_some(rate)
    });
    Ok(VideoMetadata {
        width,
        height,
        total_frames: frames as usize,
        fps,
    })
}

/// Decodes the frames with these numbers, which ascend, and calls `each` with every frame and the
/// count beside its number.
pub fn frames(
    bytes: &[u8],
    metadata: &VideoMetadata,
    numbers: &[(usize, usize)],
    limits: &Limits,
    each: &mut dyn FnMut(Raster, usize),
) -> Result<(), MediaError> {
    let (width, height) = (metadata.width, metadata.height);
    let pixels = u64::from(width) * u64::from(height);
    let kept = pixels.saturating_mul(numbers.len() as u64);
    check(Quantity::KeptPixels, kept, limits.kept_pixels)?;
    let chosen = numbers
        .iter()
        .map(|(number, _)| format!("eq(n\\,{number})"));
    let select = format!("select={}", chosen.collect::<Vec<_>>().join("+"));
    let count = numbers.len().to_string();
    let file = temporary_file(bytes)?;
    let mut arguments: Vec<OsString> = ["-v", "error", "-nostdin"].map(OsString::from).into();
    arguments.extend(input_options(&file));
    let output_options = ["-map", "0:v:0", "-vf", &select, "-fps_mode", "passthrough"];
    arguments.extend(output_options.map(OsString::from));
    let raw = [
        "-frames:v",
        &count,
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
        "pipe:1",
    ];
    arguments.extend(raw.map(OsString::from));
    let expected = kept * 3;
    let output = run("ffmpeg", &arguments, expected, deadline(limits))?;
    if output.len() as u64 != expected {
        return Err(MediaError::VideoDecoder {
            program: "ffmpeg",
            reason: format!("decoded {} bytes of {expected}", output.len()),
        });
    }
    let frames = output.chunks_exact(pixels as usize * 3);
    for (rgb, (_, times)) in frames.zip(numbers) {
        each(Raster::from_parts(width, height, rgb.to_vec()), *times);
    }
    Ok(())
}

fn deadline(limits: &Limits) -> Instant {
    let seconds = limits.decoder_seconds.clamp(0.1, 86_400.0);
    Instant::now() + Duration::from_secs_f64(seconds)
}

/// Runs a program; returns what it prints, which must be at most `most` bytes.
fn run(
    program: &'static str,
    arguments: &[impl AsRef<OsStr>],
    most: u64,
    deadline: Instant,
) -> Result<Vec<u8>, MediaError> {
    let failed = |reason: String| MediaError::VideoDecoder { program, reason };
    let spawned = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(MediaError::NoVideoDecoder);
        }
        Err(error) => return Err(failed(format!("cannot be started: {error}"))),
    };
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let output = thread::scope(|scope| {
        let errors = scope.spawn(move || read_at_most(stderr, 4_096));
        let (sender, receiver) = mpsc::channel();
        scope.spawn(move || {
            // One more byte shows that there is too much.
            let _ = sender.send(read_at_most(stdout, most.saturating_add(1)));
        });
        let left = deadline.saturating_duration_since(Instant::now());
        let received = receiver.recv_timeout(left);
        let outcome = match &received {
            Err(_) => Err("took too long".to_string()),
            Ok(output) if output.len() as u64 > most => Err("printed too much".to_string()),
            Ok(_) => wait(&mut child, deadline),
        };
        // Ends the program in any case, so that the threads above end too.
        let _ = child.kill();
        let _ = child.wait();
        let errors = errors.join().unwrap_or_default();
        match (outcome, received) {
            (Ok(()), Ok(output)) => Ok(output),
            (Err(reason), _) => {
                let errors = String::from_utf8_lossy(&errors);
                let first = errors.lines().next().unwrap_or_default();
                Err(if first.is_empty() {
                    reason
                } else {
                    format!("{reason}: {first}")
                })
            }
            (Ok(()), Err(_)) => Err("took too long".to_string()),
        }
    });
    output.map_err(failed)
}

fn read_at_most(pipe: Option<impl Read>, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // What was read before an error counts; the caller checks the length.
        let _ = pipe.take(most).read_to_end(&mut bytes);
    }
    bytes
}

fn wait(child: &mut Child, deadline: Instant) -> Result<(), String> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("failed ({status})")),
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
            Ok(None) => return Err("took too long".to_string()),
            Err(error) => return Err(format!("cannot be waited for: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_output_is_checked() {
        let parse = |output: &str| parse_probe(output.as_bytes(), &Limits::default());
        let stream = |fields: &str| format!(r#"{{"streams": [{{{fields}}}]}}"#);
        let video = parse(&stream(
            r#""width": 640, "height": 360, "avg_frame_rate": "30000/1001", "nb_read_packets": "90""#,
        ))
        .unwrap();
        assert_eq!(
            (video.width, video.height, video.total_frames),
            (640, 360, 90)
        );
        assert!((video.fps.unwrap() - 29.97).abs() < 0.01);
        let turned = parse(&stream(
            r#""width": 640, "height": 360, "avg_frame_rate": "0/0", "nb_read_packets": "1",
               "side_data_list": [{"rotation": -90}]"#,
        ))
        .unwrap();
        assert_eq!((turned.width, turned.height, turned.fps), (360, 640, None));
        for refused in [
            "".to_string(),
            "{}".to_string(),
            stream(""),
            stream(r#""width": 640, "height": 360"#),
            stream(r#""width": 1, "height": 100000, "nb_read_packets": "9""#),
            stream(r#""width": 640, "height": 360, "nb_read_packets": "999999""#),
        ] {
            assert!(parse(&refused).is_err(), "{refused}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn program_that_hangs_or_floods_is_ended() {
        let soon = || Instant::now() + Duration::from_millis(300);
        let error = run("sleep", &["30"], 10, soon()).unwrap_err();
        assert!(error.to_string().contains("took too long"), "{error}");
        let error = run("yes", &[""; 0], 1_000, soon()).unwrap_err();
        assert!(error.to_string().contains("printed too much"), "{error}");
        let error = run("false", &[""; 0], 1_000, soon()).unwrap_err();
        assert!(error.to_string().contains("failed"), "{error}");
        let output = run("echo", &["text"], 1_000, soon()).unwrap();
        assert_eq!(output, b"text\n");
        let error = run("loquat-no-such-program", &[""; 0], 1, soon()).unwrap_err();
        assert!(matches!(error, MediaError::NoVideoDecoder), "{error}");
    }
}
