//! Every format and colour type against Pillow; `tests/images/make_images.py` wrote the files.

use std::path::{Path, PathBuf};

use loquat_media::{Blame, ImageFormat, Limits, MediaError, Raster, probe};

pub fn images() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images")
}

pub fn read(name: &str) -> Vec<u8> {
    std::fs::read(images().join(name)).unwrap()
}

/// Largest difference from Pillow that is accepted. Lossless formats are equal; decoders of lossy
/// ones round differently, and upsample chroma differently.
const FILES: &[(&str, u8)] = &[
    ("rgb.png", 0),
    ("rgba.png", 0),
    ("gray.png", 0),
    ("gray_alpha.png", 0),
    ("palette.png", 0),
    ("palette_transparent.png", 0),
    ("bilevel.png", 0),
    ("lossless.webp", 0),
    ("alpha.webp", 0),
    ("still.gif", 0),
    ("transparent.gif", 0),
    ("animated.gif", 0),
    ("animated.webp", 0),
    ("rgb.bmp", 0),
    ("palette.bmp", 0),
    ("baseline.jpg", 2),
    ("subsampled.jpg", 5),
    ("progressive.jpg", 5),
    ("gray.jpg", 2),
    ("cmyk.jpg", 2),
    ("lossy.webp", 1),
    ("orientation1.jpg", 2),
    ("orientation2.jpg", 2),
    ("orientation3.jpg", 2),
    ("orientation4.jpg", 2),
    ("orientation5.jpg", 2),
    ("orientation6.jpg", 2),
    ("orientation7.jpg", 2),
    ("orientation8.jpg", 2),
];

#[test]
fn pixels_equal_those_of_pillow() {
    let limits = Limits::default();
    let mut failures = Vec::new();
    for (name, most) in FILES {
        let bytes = read(name);
        let raster =
            Raster::decode(&bytes, &limits).unwrap_or_else(|error| panic!("{name}: {error}"));
        let info = probe(&bytes, &limits).unwrap();
        assert_eq!(
            (info.width, info.height),
            (raster.width(), raster.height()),
            "{name}"
        );
        let turned = [
            "orientation5",
            "orientation6",
            "orientation7",
            "orientation8",
        ];
        let is_turned = turned.iter().any(|prefix| name.starts_with(prefix));
        let size = if is_turned { (17, 24) } else { (24, 17) };
        assert_eq!((info.width, info.height), size, "{name}");
        let expected = read(&format!("{name}.rgb"));
        let differences = raster
            .rgb()
            .iter()
            .zip(&expected)
            .map(|(a, b)| a.abs_diff(*b));
        let differences: Vec<u8> = differences.collect();
        let worst = *differences.iter().max().unwrap();
        let total: u32 = differences.iter().map(|&levels| u32::from(levels)).sum();
        let mean = f64::from(total) / differences.len() as f64;
        if worst > *most || mean > 1.0 {
            failures.push(format!(
                "{name}: {worst} levels of at most {most}, mean {mean}"
            ));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn deep_samples_keep_their_high_byte() {
    // 16-bit PNG: gray 0x1234, then gray with alpha.
    let png = |color: u8, pixel: &[u8]| {
        let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
        let mut chunk = |kind: &[u8], data: &[u8]| {
            bytes.extend((data.len() as u32).to_be_bytes());
            let body = [kind, data].concat();
            bytes.extend(&body);
            bytes.extend(crc32(&body).to_be_bytes());
        };
        chunk(b"IHDR", &[0, 0, 0, 1, 0, 0, 0, 1, 16, color, 0, 0, 0]);
        let row = [&[0], pixel].concat();
        // A stored block of deflate in a zlib stream.
        let length = row.len() as u16;
        let mut zlib = vec![0x78, 0x01, 1];
        zlib.extend(length.to_le_bytes());
        zlib.extend((!length).to_le_bytes());
        zlib.extend(&row);
        zlib.extend(adler32(&row).to_be_bytes());
        chunk(b"IDAT", &zlib);
        chunk(b"IEND", &[]);
        Raster::decode(&bytes, &Limits::default())
            .unwrap()
            .rgb()
            .to_vec()
    };
    assert_eq!(png(0, &[0x12, 0x34]), [0x12; 3]);
    assert_eq!(png(4, &[0x12, 0x34, 0, 0]), [0xff; 3]);
    assert_eq!(png(2, &[1, 2, 3, 4, 5, 6]), [1, 3, 5]);
    assert_eq!(png(6, &[1, 2, 3, 4, 5, 6, 0xff, 0xff]), [1, 3, 5]);
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, &byte: &u8| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    };
    !bytes.iter().fold(!0, step)
}

fn adler32(bytes: &[u8]) -> u32 {
    let (a, b) = bytes.iter().fold((1, 0), |(a, b), &byte| {
        let a = (a + u32::from(byte)) % 65_521;
        (a, (b + a) % 65_521)
    });
    b << 16 | a
}

#[test]
fn unusable_files_are_refused_by_reason() {
    let limits = Limits::default();
    let decode = |bytes: &[u8]| Raster::decode(bytes, &limits).unwrap_err();
    assert!(matches!(decode(b""), MediaError::EmptyFile));
    assert!(matches!(decode(b"<svg></svg>"), MediaError::UnknownFormat));
    assert!(matches!(
        decode(b"\x89PNG"),
        MediaError::Undecodable { format: "PNG", .. }
    ));
    for name in [
        "rgb.png",
        "baseline.jpg",
        "lossless.webp",
        "still.gif",
        "rgb.bmp",
    ] {
        let bytes = read(name);
        let error = decode(&bytes[..bytes.len() * 2 / 3]);
        assert!(
            matches!(error, MediaError::Undecodable { .. }),
            "{name}: {error}"
        );
        assert_eq!(error.blame(), Blame::Request);
    }
    let error = ImageFormat::Png.expect(&read("baseline.jpg")).unwrap_err();
    assert_eq!(error.to_string(), "the file is not PNG but JPEG");
    assert_eq!(
        ImageFormat::from_media_type("image/JPEG"),
        Some(ImageFormat::Jpeg)
    );
    assert_eq!(ImageFormat::from_media_type("image/tiff"), None);
}

#[test]
fn limits_are_checked_before_decoding() {
    // Headers without data: what is refused is refused by them alone.
    let ihdr = |width: u32, height: u32| {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\x0d".to_vec();
        let mut body = b"IHDR".to_vec();
        body.extend(width.to_be_bytes());
        body.extend(height.to_be_bytes());
        body.extend([8, 6, 0, 0, 0]);
        bytes.extend(&body);
        bytes.extend(crc32(&body).to_be_bytes());
        bytes.extend(b"\0\0\0\0IDAT");
        bytes
    };
    let limits = Limits::default();
    let cases = [
        (
            1,
            100_000,
            "100000 pixels of height exceed the limit of 16384",
        ),
        (
            100_000,
            1,
            "100000 pixels of width exceed the limit of 16384",
        ),
        (
            16_000,
            16_000,
            "256000000 pixels exceed the limit of 50331648",
        ),
        (
            u32::MAX >> 1,
            1,
            "2147483647 pixels of width exceed the limit of 16384",
        ),
    ];
    for (width, height, expected) in cases {
        let bytes = ihdr(width, height);
        for error in [
            probe(&bytes, &limits).unwrap_err(),
            Raster::decode(&bytes, &limits).unwrap_err(),
        ] {
            assert_eq!(error.to_string(), expected);
        }
    }
    let small = Limits {
        bytes: 100,
        ..Limits::default()
    };
    let error = Raster::decode(&read("rgb.png"), &small).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("bytes of the file exceed the limit of 100")
    );
    let tight = Limits {
        decoded_bytes: 1_000,
        ..Limits::default()
    };
    assert!(Raster::decode(&read("rgb.png"), &tight).is_err());
}
