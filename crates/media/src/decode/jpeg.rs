//! The segments of a JPEG file, as far as limits need them.

/// Progressive files have about ten scans. Each scan may touch every block of the image, so a
/// small file with thousands of scans would take minutes: large images may have fewer.
const MAX_SCANS: u64 = 100;
const MAX_SCANNED_PIXELS: u64 = 1 << 30;

const START_OF_SCAN: u8 = 0xda;
const END_OF_IMAGE: u8 = 0xd9;

/// Markers with their offsets and segments. Entropy-coded data between segments is skipped.
struct Segments<'a> {
    bytes: &'a [u8],
    at: usize,
}

struct Segment<'a> {
    marker: u8,
    body: &'a [u8],
}

impl<'a> Iterator for Segments<'a> {
    type Item = Segment<'a>;

    fn next(&mut self) -> Option<Segment<'a>> {
        loop {
            let rest = self.bytes.get(self.at..)?;
            let offset = rest
                .windows(2)
                .position(|pair| pair[0] == 0xff && !matches!(pair[1], 0x00 | 0xff))?;
            let marker = rest[offset + 1];
            self.at += offset + 2;
            match marker {
                // Restart markers and the start of the image have no body.
                0x01 | 0xd0..=0xd8 => {}
                END_OF_IMAGE => return Some(Segment { marker, body: &[] }),
                _ => {
                    let length = self.bytes.get(self.at..self.at + 2)?;
                    let length = u16::from_be_bytes([length[0], length[1]]) as usize;
                    let end = (self.at + length.max(2)).min(self.bytes.len());
                    let body = &self.bytes[(self.at + 2).min(end)..end];
                    self.at = end;
                    return Some(Segment { marker, body });
                }
            }
        }
    }
}

fn segments(bytes: &[u8]) -> Segments<'_> {
    Segments { bytes, at: 0 }
}

/// Whether the image's data ends with its end marker. Thumbnails in metadata have their own.
pub fn has_end(bytes: &[u8]) -> bool {
    segments(bytes)
        .skip_while(|segment| segment.marker != START_OF_SCAN)
        .any(|segment| segment.marker == END_OF_IMAGE)
}

/// `pixels` are those of the image.
pub fn check_scans(bytes: &[u8], pixels: u64) -> Result<(), String> {
    let most = (MAX_SCANNED_PIXELS / pixels.max(1)).clamp(1, MAX_SCANS);
    let scans = segments(bytes)
        .take_while(|segment| segment.marker != END_OF_IMAGE)
        .filter(|segment| segment.marker == START_OF_SCAN)
        .take(most as usize + 1)
        .count();
    if scans as u64 > most {
        return Err(format!("it has more than {most} scans"));
    }
    Ok(())
}

/// Width and height of the first frame header.
pub fn dimensions(bytes: &[u8]) -> Option<(u32, u32)> {
    let frame = segments(bytes).find(|segment| {
        matches!(segment.marker, 0xc0..=0xcf) && !matches!(segment.marker, 0xc4 | 0xc8 | 0xcc)
    })?;
    let side = |at: usize| {
        let bytes = frame.body.get(at..at + 2)?;
        Some(u32::from(u16::from_be_bytes([bytes[0], bytes[1]])))
    };
    Some((side(3)?, side(1)?))
}
