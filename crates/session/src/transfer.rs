//! Exported sequences, for backends: the envelope around a sequence's bytes, the layout of tails, and
//! the fingerprint of a model.

use std::ops::Range;

use loquat_spec::{ModelSpec, RopeScaling};
use loquat_weights::EncodedRow;

pub use crate::tail_layout::{TailContent, TailLayout, TailSection};

use crate::limits::Limits;
use crate::sequences::{ExportedAdapter, PlacedView, SequenceHeader, SequenceLayout};
use crate::{AdapterLimits, ModelSource, PositionGrid, Precision, SessionError, ViewLayout};

const MAGIC: &[u8; 8] = b"LOQKV\0\0\x05";
/// Magic, fingerprint, length, checksum of the length and all that follows: the adapters, the media,
/// and the backend's bytes.
const HEADER: usize = 8 + 8 + 8 + 8;
/// Numbers of a view: start, length, offset, base, positions, and its grid.
const VIEW_NUMBERS: usize = 9;
const VIEW_BYTES: usize = 8 * VIEW_NUMBERS;

/// An export in progress: its bytes are appended, then sealed.
pub struct Envelope {
    bytes: Vec<u8>,
}

impl Envelope {
    /// For a sequence of the model `fingerprint`, in about `size` bytes.
    pub fn new(fingerprint: u64, header: &SequenceHeader, size: usize) -> Self {
        let mut bytes = Vec::with_capacity(HEADER + size);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&fingerprint.to_le_bytes());
        bytes.extend_from_slice(&(header.len as u64).to_le_bytes());
        bytes.extend_from_slice(&[0; 8]);
        write_adapters(&header.adapters, &mut bytes);
        write_layout(&header.layout, &mut bytes);
        Self { bytes }
    }

    /// The sequence's own bytes, to append to.
    pub fn contents(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Writes the checksum and returns the exported bytes.
    pub fn seal(mut self) -> Vec<u8> {
        let checksum = checksum(&self.bytes);
        self.bytes[24..HEADER].copy_from_slice(&checksum.to_le_bytes());
        self.bytes
    }
}

/// An exported sequence.
#[derive(Debug)]
pub struct Unsealed<'a> {
    /// Its length, adapters and media.
    pub header: SequenceHeader,
    /// The backend's bytes.
    pub contents: &'a [u8],
}

/// Reads an exported sequence. It must be undamaged, of the model `fingerprint`, and of the size
/// that `size` returns for its length.
pub fn unseal(
    bytes: &[u8],
    fingerprint: u64,
    max_context: usize,
    size: impl Fn(usize) -> Option<usize>,
) -> Result<Unsealed<'_>, SessionError> {
    let refuse = |why: &str| Err(SessionError::BadImport(why.to_owned()));
    let Some((header, body)) = bytes.split_at_checked(HEADER) else {
        return refuse("it is shorter than its header");
    };
    let number = |at: usize| read_number(header, at).unwrap_or_default();
    if header[..8] != *MAGIC {
        return refuse("it does not start with the header of an exported sequence");
    }
    if number(8) != fingerprint {
        return refuse("it comes from another model or another KV format");
    }
    let len = usize::try_from(number(16)).unwrap_or(usize::MAX);
    let Some((adapters, rest)) = read_adapters(body) else {
        return refuse("its list of adapters is damaged");
    };
    let Some((layout, contents)) = read_layout(rest, len) else {
        return refuse("its media do not match its length field");
    };
    if size(len) != Some(contents.len()) {
        return refuse("its size does not match its length field");
    }
    if len > max_context {
        return Err(SessionError::ContextExceeded {
            wanted: len,
            max_context,
        });
    }
    if number(24) != checksum(bytes) {
        return refuse("its checksum does not match: the bytes were damaged");
    }
    Ok(Unsealed {
        header: SequenceHeader {
            len,
            layout,
            adapters,
        },
        contents,
    })
}

fn read_number(bytes: &[u8], at: usize) -> Option<u64> {
    let number = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(number.try_into().ok()?))
}

fn write_adapters(adapters: &[ExportedAdapter], out: &mut Vec<u8>) {
    out.extend_from_slice(&(adapters.len() as u64).to_le_bytes());
    for adapter in adapters {
        out.extend_from_slice(&adapter.fingerprint.to_le_bytes());
        out.extend_from_slice(&u64::from(adapter.scale.to_bits()).to_le_bytes());
    }
}

/// The adapters of a sequence, and what follows them. `None` if there are none such.
fn read_adapters(bytes: &[u8]) -> Option<(Vec<ExportedAdapter>, &[u8])> {
    let count = usize::try_from(read_number(bytes, 0)?).ok();
    let count = count.filter(|count| *count <= AdapterLimits::PER_SEQUENCE)?;
    let adapter = |index: usize| {
        let at = 8 + index * 16;
        Some(ExportedAdapter {
            fingerprint: read_number(bytes, at)?,
            scale: f32::from_bits(u32::try_from(read_number(bytes, at + 8)?).ok()?),
        })
    };
    let adapters = (0..count).map(adapter).collect::<Option<Vec<_>>>()?;
    Some((adapters, bytes.get(8 + count * 16..)?))
}

fn write_layout(layout: &SequenceLayout, out: &mut Vec<u8>) {
    for number in [layout.prefix, layout.views.len()] {
        out.extend_from_slice(&(number as u64).to_le_bytes());
    }
    for placed in &layout.views {
        write_view(placed, out);
    }
}

/// Appends [`VIEW_BYTES`].
pub(crate) fn write_view(placed: &PlacedView, out: &mut Vec<u8>) {
    let grid = placed.view.grid;
    let [frames, rows, cols, step] = grid.map_or([0; 4], |grid| {
        [grid.frames, grid.rows, grid.cols, grid.frame_step]
    });
    let numbers: [usize; VIEW_NUMBERS] = [
        placed.start,
        placed.len,
        placed.offset,
        placed.base,
        placed.view.positions,
        frames,
        rows,
        cols,
        step,
    ];
    for number in numbers {
        out.extend_from_slice(&(number as u64).to_le_bytes());
    }
}

/// A number of a position. Those beyond any context would overflow later arithmetic.
fn read_position(bytes: &[u8], index: usize) -> Option<usize> {
    let number = read_number(bytes, index.checked_mul(8)?)?;
    let number = usize::try_from(number).ok();
    number.filter(|number| *number <= u32::MAX as usize)
}

fn read_view(bytes: &[u8]) -> Option<PlacedView> {
    let number = |index: usize| read_position(bytes, index);
    let (frames, rows, cols) = (number(5)?, number(6)?, number(7)?);
    let placed = PlacedView {
        start: number(0)?,
        len: number(1)?,
        offset: number(2)?,
        base: number(3)?,
        view: ViewLayout {
            positions: number(4)?,
            grid: (frames > 0 && rows > 0 && cols > 0).then_some(PositionGrid {
                rows,
                cols,
                frames,
                frame_step: number(8)?,
            }),
        },
    };
    let within = placed.offset.checked_add(placed.len)? <= placed.view.positions;
    (placed.len > 0 && within).then_some(placed)
}

/// The views of these positions of a sequence, which are all of `bytes`. `None` if they are none.
pub(crate) fn read_views(bytes: &[u8], positions: Range<usize>) -> Option<Vec<PlacedView>> {
    let (views, rest) = bytes.as_chunks::<VIEW_BYTES>();
    let mut earlier = positions.start;
    let views = views.iter().map(|bytes| {
        let placed = read_view(bytes).filter(|placed| placed.start >= earlier)?;
        earlier = placed.start.checked_add(placed.len)?;
        (earlier <= positions.end).then_some(placed)
    });
    let views = views.collect::<Option<_>>();
    views.filter(|_| rest.is_empty())
}

/// The layout of a sequence of `len` positions, and what follows it. `None` if it is none.
fn read_layout(bytes: &[u8], len: usize) -> Option<(SequenceLayout, &[u8])> {
    let (prefix, count) = (read_position(bytes, 0)?, read_position(bytes, 1)?);
    let (views, contents) = bytes
        .get(16..)?
        .split_at_checked(count.checked_mul(VIEW_BYTES)?)?;
    let views = read_views(views, 0..len)?;
    (prefix <= len).then_some((SequenceLayout { views, prefix }, contents))
}

/// Identifies a model and its KV format: a hash of the spec, the format, all vectors, and each
/// matrix's first bytes, so that a fine-tune of the same shape is another model.
pub fn fingerprint(source: &ModelSource, kv_format: &str) -> u64 {
    const SAMPLED: usize = 256;
    let mut sample = format!("{:?} {kv_format}", source.spec).into_bytes();
    for (_, matrix) in source.weights.matrices() {
        sample.extend_from_slice(matrix.format().as_bytes());
        let parts = match matrix.encoded_row(0) {
            Some(EncodedRow::Plain { bytes, .. }) => [bytes, &[], &[]],
            Some(EncodedRow::Mlx {
                codes,
                scales,
                biases,
                ..
            }) => [codes, scales.0, biases.map_or(&[][..], |biases| biases.0)],
            Some(EncodedRow::Fp8 { codes, scales, .. }) => [codes, scales.0, &[]],
            None => [&[][..]; 3],
        };
        for part in parts {
            sample.extend_from_slice(&part[..part.len().min(SAMPLED)]);
        }
    }
    for (_, vector) in source.weights.vectors() {
        sample.extend(vector.iter().flat_map(|value| value.to_le_bytes()));
    }
    fnv1a(&sample)
}

/// Of the length, which may not follow from the size, and of what follows the header.
fn checksum(export: &[u8]) -> u64 {
    let covered = [&export[16..24], &export[HEADER..]];
    fnv1a_parts(&covered)
}

/// Identifies the keys and values of a backend's ranges and tails: they depend on what
/// [`fingerprint`] identifies, on the backend and its precision, on the context if it selects
/// rotations, and on which groups of layers the ranges hold.
pub fn range_fingerprint(
    fingerprint: u64,
    backend: &str,
    spec: &ModelSpec,
    precision: Precision,
    limits: &Limits,
) -> u64 {
    let is_long = spec
        .mixers()
        .filter_map(|(_, mixer)| mixer.rope())
        .any(|rope| {
            matches!(&rope.scaling, RopeScaling::LongRope { original_context, .. }
            if limits.context > *original_context)
        });
    let groups = limits.sizes.kv_groups.iter();
    let in_ranges: Vec<bool> = groups
        .map(|group| group.keeps_all_within(limits.context))
        .collect();
    let depends_on = format!("{backend} {precision:?} {is_long} {in_ranges:?}");
    let mut bytes = fingerprint.to_le_bytes().to_vec();
    bytes.extend_from_slice(depends_on.as_bytes());
    fnv1a(&bytes)
}

fn fnv1a(bytes: &[u8]) -> u64 {
    fnv1a_parts(&[bytes])
}

/// Detects damage. It is no protection: who can forge an export controls the process already.
fn fnv1a_parts(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().copied().flatten();
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}
