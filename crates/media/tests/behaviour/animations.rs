//! Animated files as videos.

use loquat_media::{FrameSource, Limits, Raster, Video};

use super::decoding::read;

fn frames(name: &str, indices: &[usize]) -> Vec<(Raster, usize)> {
    let bytes = read(name);
    let limits = Limits::default();
    let source = FrameSource::open(&bytes, &limits).unwrap();
    let mut frames = Vec::new();
    source
        .frames(indices, &limits, &mut |frame, times| {
            frames.push((frame, times))
        })
        .unwrap();
    frames
}

#[test]
fn frames_and_durations_are_counted_without_decoding() {
    let limits = Limits::default();
    for (name, total, fps) in [
        ("animated.gif", 5, 5.0),
        ("animated.webp", 5, 5.0),
        ("still.gif", 1, 10.0),
        ("rgb.png", 1, f64::INFINITY),
    ] {
        let bytes = read(name);
        let source = FrameSource::open(&bytes, &limits).unwrap();
        let metadata = source.metadata();
        assert_eq!((metadata.width, metadata.height), (24, 17), "{name}");
        assert_eq!(metadata.total_frames, total, "{name}");
        if fps.is_finite() {
            assert_eq!(metadata.fps, Some(fps), "{name}");
        }
    }
}

#[test]
fn chosen_frames_are_decoded_in_order() {
    for name in ["animated.gif", "animated.webp"] {
        let all = frames(name, &[0, 1, 2, 3, 4]);
        assert_eq!(all.len(), 5);
        let some = frames(name, &[1, 3, 3]);
        assert_eq!(some.len(), 2);
        assert_eq!(some[0], all[1]);
        assert_eq!((&some[1].0, some[1].1), (&all[3].0, 2));
        assert_ne!(all[0], all[1]);
        let first = Raster::decode(&read(name), &Limits::default()).unwrap();
        assert_eq!(all[0].0, first, "{name}");
    }
}

#[test]
fn frames_beyond_the_end_are_refused() {
    let bytes = read("animated.gif");
    let limits = Limits::default();
    let source = FrameSource::open(&bytes, &limits).unwrap();
    for indices in [&[][..], &[5], &[0, 9], &[2, 1]] {
        let result = source.frames(indices, &limits, &mut |_, _| {});
        assert!(result.is_err(), "{indices:?}");
    }
    let few = Limits {
        frames: 3,
        ..Limits::default()
    };
    let error = FrameSource::open(&bytes, &few).unwrap_err();
    assert!(
        error.to_string().contains("frames exceed the limit of 3"),
        "{error}"
    );
    let scanned = Limits {
        scanned_pixels: 1_000,
        ..Limits::default()
    };
    assert!(source.frames(&[4], &scanned, &mut |_, _| {}).is_err());
    assert!(source.frames(&[0], &scanned, &mut |_, _| {}).is_ok());
}

/// `animated.webp` with an EXIF orientation of 6, which turns stills by 90 degrees.
fn turned_animation() -> Vec<u8> {
    let mut bytes = read("animated.webp");
    assert_eq!(&bytes[12..16], b"VP8X");
    bytes[20] |= 0x08;
    let exif = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
    bytes.extend(b"EXIF");
    bytes.extend((exif.len() as u32).to_le_bytes());
    bytes.extend(exif);
    let length = bytes.len() as u32 - 8;
    bytes[4..8].copy_from_slice(&length.to_le_bytes());
    bytes
}

#[test]
fn orientation_of_an_animation_is_ignored() {
    let bytes = turned_animation();
    let limits = Limits::default();
    // The first frame as a still is turned.
    assert_eq!(Raster::decode(&bytes, &limits).unwrap().width(), 17);
    let source = FrameSource::open(&bytes, &limits).unwrap();
    assert_eq!(source.metadata().width, 24);
    let mut widths = Vec::new();
    source
        .frames(&[0, 4], &limits, &mut |frame, _| widths.push(frame.width()))
        .unwrap();
    assert_eq!(widths, [24, 24]);
}

#[test]
fn frames_of_different_sizes_are_refused() {
    let limits = Limits::default();
    let frame = |width| Raster::from_rgb8(width, 1, vec![0; width as usize * 3], &limits).unwrap();
    assert!(Video::from_frames(vec![frame(2), frame(2)], Some(1.0)).is_ok());
    assert!(Video::from_frames(vec![frame(2), frame(3)], None).is_err());
    assert!(Video::from_frames(Vec::new(), None).is_err());
}
