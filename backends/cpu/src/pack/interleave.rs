//! Writes sixteen rows as one tile, in the order of its bytes.

use loquat_cpu_kernels::{Codes, GROUP, SubScales, TILE_ROWS, TileFormat};

use super::rows::Row;

/// Bytes of four columns, or of four planes' columns.
type Quad = [u8; 4];

/// Fills `tile`. The rows must have been read with the same format.
pub fn write_tile(rows: &[Row; TILE_ROWS], form: &TileFormat, tile: &mut [u8]) {
    let (scale_bytes, min_bytes) = form.element_bytes();
    let run_bytes = form.elements_at(form.run);
    let block_bytes = (run_bytes - scale_bytes - min_bytes) / form.run;
    let (line_bytes, plane_bytes) = form.codes.block_bytes();
    let sub_scale_bytes = form.sub_scale_bytes();
    for (run, out) in tile.chunks_exact_mut(run_bytes).enumerate() {
        let (elements, blocks) = out.split_at_mut(scale_bytes + min_bytes);
        let (scales, mins) = elements.split_at_mut(scale_bytes);
        write_elements(|row| &rows[row].scales.elements, run, scales);
        write_elements(|row| &rows[row].mins.elements, run, mins);
        for (within, out) in blocks.chunks_exact_mut(block_bytes).enumerate() {
            let block = run * form.run + within;
            let (lines, rest) = out.split_at_mut(line_bytes);
            let (planes, sub_scales) = rest.split_at_mut(plane_bytes);
            match form.codes {
                Codes::Eight => write_quads::<8>(|row| &rows[row].lines, block, lines),
                _ => write_quads::<4>(|row| &rows[row].lines, block, lines),
            }
            match form.codes {
                Codes::Five => write_bits(|row| &rows[row].planes, block, planes),
                Codes::Six => write_quads::<2>(|row| &rows[row].planes, block, planes),
                Codes::Four | Codes::Fp4 | Codes::Eight => {}
            }
            if form.sub_scales != SubScales::None {
                let (scales, mins) = sub_scales.split_at_mut(sub_scale_bytes);
                let groups = GROUP / form.group;
                write_bytes(|row| &rows[row].scales.sub_scales, block * groups, scales);
                write_bytes(|row| &rows[row].mins.sub_scales, block * groups, mins);
            }
        }
    }
}

/// Each row's element of a run.
fn write_elements<'a>(row: impl Fn(usize) -> &'a [u8], run: usize, out: &mut [u8]) {
    fn write<'a, const N: usize>(row: impl Fn(usize) -> &'a [u8], run: usize, out: &mut [u8]) {
        for (index, out) in out.as_chunks_mut::<N>().0.iter_mut().enumerate() {
            *out = row(index).as_chunks::<N>().0[run];
        }
    }
    match out.len() / TILE_ROWS {
        0 => {}
        1 => write::<1>(row, run, out),
        2 => write::<2>(row, run, out),
        _ => write::<4>(row, run, out),
    }
}

/// `N` quads of each row's block, as `[quad][row]`.
fn write_quads<'a, const N: usize>(row: impl Fn(usize) -> &'a [u8], block: usize, out: &mut [u8]) {
    let quads = out.as_chunks_mut::<4>().0.as_chunks_mut::<TILE_ROWS>().0;
    let Some(quads) = quads.first_chunk_mut::<N>() else {
        return;
    };
    let all: [&[Quad; N]; TILE_ROWS] =
        std::array::from_fn(|index| &row(index).as_chunks::<4>().0.as_chunks::<N>().0[block]);
    for (quad, out) in quads.iter_mut().enumerate() {
        for (row, out) in out.iter_mut().enumerate() {
            *out = all[row][quad];
        }
    }
}

/// Each row's 32 bits of a block, four to a quad, as `[quad][row]`.
fn write_bits<'a>(row: impl Fn(usize) -> &'a [u8], block: usize, out: &mut [u8]) {
    let all: [u32; TILE_ROWS] =
        std::array::from_fn(|index| u32::from_le_bytes(row(index).as_chunks::<4>().0[block]));
    // Half a byte for each row.
    let quads = out.as_chunks_mut::<{ TILE_ROWS / 2 }>().0.iter_mut();
    for (quad, out) in quads.enumerate() {
        for (pair, out) in out.iter_mut().enumerate() {
            let bits = |row: usize| (all[row] >> (4 * quad)) as u8 & 15;
            *out = bits(2 * pair) | bits(2 * pair + 1) << 4;
        }
    }
}

/// Each row's bytes from `first` on, as `[byte][row]`.
fn write_bytes<'a>(row: impl Fn(usize) -> &'a [u8], first: usize, out: &mut [u8]) {
    for (index, out) in out.as_chunks_mut::<TILE_ROWS>().0.iter_mut().enumerate() {
        for (within, out) in out.iter_mut().enumerate() {
            *out = row(within)[first + index];
        }
    }
}
