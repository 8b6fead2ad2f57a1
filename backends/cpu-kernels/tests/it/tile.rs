//! Integer tiles of every format that matrices are packed to.

use super::*;

const ALL_CODES: [Codes; 5] = [
    Codes::Four,
    Codes::Fp4,
    Codes::Five,
    Codes::Six,
    Codes::Eight,
];
const ELEMENTS: [Element; 4] = [Element::F32, Element::F16, Element::Bf16, Element::HalfE8m0];

/// Every kind of format that [`TileInput::check`] accepts.
fn forms() -> Vec<TileFormat> {
    let mut forms = Vec::new();
    for codes in ALL_CODES {
        for (i, scale) in ELEMENTS.into_iter().enumerate() {
            for (group, run, sub_scales, mins) in [
                (32, 1, SubScales::None, false),
                (32, 1, SubScales::None, true),
                (32, 2, SubScales::None, true),
                (32, 4, SubScales::None, false),
                (32, 8, SubScales::Unsigned, true),
                (32, 2, SubScales::Signed, false),
                (16, 8, SubScales::Signed, false),
                (16, 1, SubScales::Unsigned, false),
            ] {
                forms.push(TileFormat {
                    codes,
                    group,
                    run,
                    scale,
                    min: mins.then_some(ELEMENTS[(i + 1) % ELEMENTS.len()]),
                    sub_scales,
                });
            }
        }
    }
    forms
}

fn element_bytes(element: Element, value: f32) -> Vec<u8> {
    match element {
        Element::F32 => value.to_le_bytes().to_vec(),
        Element::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
        Element::Bf16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
        Element::HalfE8m0 => vec![(120 + (value * 50.0) as i32) as u8],
    }
}

/// Random codes and sub-scales; `draw` makes the elements.
fn tile_bytes(
    form: &TileFormat,
    cols: usize,
    random: &mut Random,
    mut draw: impl FnMut(&mut Random, Element) -> Vec<u8>,
) -> Vec<u8> {
    let mut bytes = random.bytes(form.tile_bytes(cols));
    for run in 0..cols / GROUP / form.run {
        let mut at = form.elements_at(run * form.run);
        for element in [Some(form.scale), form.min].into_iter().flatten() {
            for _ in 0..TILE_ROWS {
                let value = draw(random, element);
                bytes[at..at + value.len()].copy_from_slice(&value);
                at += value.len();
            }
        }
    }
    bytes
}

fn moderate(random: &mut Random, element: Element) -> Vec<u8> {
    let value = random.float() * 0.1;
    element_bytes(element, value)
}

/// A number of columns near `cols` that the form can have.
fn whole(form: &TileFormat, cols: usize) -> usize {
    cols.next_multiple_of(form.run * GROUP)
}

/// Rounded activations of some tokens, the extremes among them.
struct Input {
    blocks: Vec<ActivationBlock>,
    tokens: usize,
    cols: usize,
    stride: usize,
}

impl Input {
    fn draw(random: &mut Random, tokens: usize, cols: usize) -> Self {
        let bytes = random.bytes(tokens * cols);
        let mut codes: Vec<i8> = bytes.iter().map(|byte| (*byte as i8).max(-127)).collect();
        codes[..GROUP].fill(-127);
        let scales = random.floats(tokens * cols / GROUP, 0.05);
        Self::new(&codes, &scales, tokens, cols)
    }

    /// Codes are `[token][column]`, scales `[token][block]`.
    fn new(codes: &[i8], scales: &[f32], tokens: usize, cols: usize) -> Self {
        // Wider than the tokens, as for a part of them.
        let stride = tokens + 2;
        let mut blocks = vec![ActivationBlock::default(); stride * cols / GROUP];
        for (i, (codes, scale)) in codes.as_chunks::<GROUP>().0.iter().zip(scales).enumerate() {
            let (token, block) = (i / (cols / GROUP), i % (cols / GROUP));
            blocks[block * stride + token] = activation_block(*codes, *scale);
        }
        Self {
            blocks,
            tokens,
            cols,
            stride,
        }
    }

    fn value(&self, token: usize, col: usize) -> f64 {
        let block = &self.blocks[col / GROUP * self.stride + token];
        f64::from(block.codes[col % GROUP]) * f64::from(block.scale)
    }

    fn view(&self) -> TileInput<'_> {
        TileInput {
            tokens: self.tokens,
            cols: self.cols,
            stride: self.stride,
            blocks: &self.blocks,
        }
    }
}

pub fn activation_block(codes: [i8; GROUP], scale: f32) -> ActivationBlock {
    let pair_sum = |codes: &[i8], first: usize| -> i16 {
        let pairs = codes.chunks(4).flat_map(|quad| &quad[first..first + 2]);
        pairs.map(|code| i16::from(*code)).sum()
    };
    let sum = |codes: &[i8]| codes.iter().map(|code| i32::from(*code)).sum::<i32>();
    let halves: [&[i8]; 2] = [&codes[..SUM_GROUP], &codes[SUM_GROUP..]];
    ActivationBlock {
        scale,
        scaled_sum: scale * sum(&codes) as f32,
        negated_sum: -sum(&codes),
        negated_sums: halves.map(|half| -sum(half)),
        pair_sums: halves.map(|half| [pair_sum(half, 0), pair_sum(half, 2)]),
        codes,
    }
}

fn multiply(kernels: &Kernels, tile: &Tile, input: &TileInput) -> Vec<f32> {
    let stride = TILE_ROWS + 3;
    let mut out = vec![7.0; input.tokens * stride];
    // SAFETY: `out` holds sixteen values at every stride.
    unsafe { (kernels.tile)(tile, input, out.as_mut_ptr(), stride) };
    assert!(out.chunks(stride).all(|row| row[TILE_ROWS..] == [7.0; 3]));
    out
}

/// Multiplies a pair of tiles and returns each one's rows as [`multiply`] does.
fn multiply_pair(pair: TilePair, tiles: [&Tile; 2], input: &TileInput) -> [Vec<f32>; 2] {
    let stride = 2 * TILE_ROWS + 3;
    let mut out = vec![7.0; input.tokens * stride];
    // SAFETY: `out` holds thirty-two values at every stride.
    unsafe { pair(&tiles.map(|tile| *tile), input, out.as_mut_ptr(), stride) };
    assert!(
        out.chunks(stride)
            .all(|row| row[2 * TILE_ROWS..] == [7.0; 3])
    );
    [0, TILE_ROWS].map(|first| {
        let rows = out.chunks(stride).map(|row| &row[first..stride]);
        rows.flat_map(|row| [&row[..TILE_ROWS], &[7.0; 3]].concat())
            .collect()
    })
}

/// [`agree`] for tiles, including emulated instructions and tiles that are multiplied in pairs.
fn all_agree(what: &str, tile: &Tile, input: &TileInput) {
    let expected = bits(&agree(what, |k| multiply(k, tile, input)));
    // The other tile of a pair differs, so that a kernel that mixes them up is noticed.
    let other: Vec<u8> = tile.bytes.iter().map(|byte| byte.rotate_left(3)).collect();
    let other = Tile {
        bytes: &other,
        ..*tile
    };
    for table in supported().into_iter().chain(emulated::tables()) {
        let Some(pair) = table.tile_pair else {
            continue;
        };
        let expected_other = bits(&multiply(table, &other, input));
        let [found, found_other] = multiply_pair(pair, [tile, &other], input);
        assert_eq!(bits(&found), expected, "{what}: {} first", table.name);
        assert_eq!(
            bits(&found_other),
            expected_other,
            "{what}: {} second",
            table.name
        );
    }
    for table in emulated::tables() {
        let found = bits(&multiply(table, tile, input));
        assert_eq!(found, expected, "{what}: {} differs", table.name);
    }
}

#[test]
fn tiles_agree_for_every_format() {
    let mut random = Random(7);
    for form in forms() {
        for (cols, tokens) in [
            (32, 1),
            (64, 3),
            (96, 7),
            (256, 8),
            (576, 33),
            (32, 17),
            (1056, 16),
            (2304, 6),
        ] {
            let cols = whole(&form, cols);
            let bytes = &tile_bytes(&form, cols, &mut random, moderate);
            let input = Input::draw(&mut random, tokens, cols);
            let what = format!("{form:?}, {cols} columns, {tokens} tokens");
            all_agree(&what, &Tile { form, bytes }, &input.view());
        }
    }
}

/// Against sums of exact products in `f64`.
#[test]
fn tiles_match_exact_products() {
    let mut random = Random(11);
    let tokens = 5;
    for form in forms() {
        let cols = whole(&form, 320);
        let bytes = &tile_bytes(&form, cols, &mut random, moderate);
        let tile = Tile { form, bytes };
        let input = Input::draw(&mut random, tokens, cols);
        let found = multiply(supported()[0], &tile, &input.view());
        let mut expected = vec![0.0; tokens * TILE_ROWS];
        let mut codes = [0; GROUP * TILE_ROWS];
        for col in 0..cols {
            tile.unpack(col / GROUP, &mut codes);
            for row in 0..TILE_ROWS {
                let code = codes[col % GROUP / 4 * LINE + row * 4 + col % 4];
                let code = f64::from(code) - f64::from(form.zero());
                let min = tile.min(row, col).map_or(0.0, f64::from);
                let weight = code * f64::from(tile.scale(row, col)) + min;
                for token in 0..tokens {
                    expected[token * TILE_ROWS + row] += weight * input.value(token, col);
                }
            }
        }
        let rows = found
            .chunks(TILE_ROWS + 3)
            .flat_map(|row| &row[..TILE_ROWS]);
        let found: Vec<f32> = rows.copied().collect();
        near(&format!("{form:?}"), &found, &expected, 1e-5);
    }
}

#[test]
fn extreme_scales_agree() {
    let mut random = Random(13);
    let extremes: [[f32; 4]; 2] = [
        [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX],
        [1e-40, -1e-45, f32::MIN_POSITIVE, 0.0],
    ];
    for form in forms() {
        for values in extremes {
            let bytes = &tile_bytes(&form, 256, &mut random, |random, element| {
                let pick = random.next() as usize % 4;
                match element {
                    Element::HalfE8m0 => vec![[0, 1, 254, 255][pick]],
                    _ => element_bytes(element, values[pick]),
                }
            });
            let input = Input::draw(&mut random, 9, 256);
            let what = format!("{form:?} {values:?}");
            all_agree(&what, &Tile { form, bytes }, &input.view());
        }
    }
}

/// These saturate first if sums are too narrow.
#[test]
fn largest_codes_agree() {
    let mut random = Random(19);
    for form in forms() {
        let cols = whole(&form, 64);
        let (lines, planes) = form.codes.block_bytes();
        for (code, x) in [(255, -127), (255, 127), (0, -127), (0, 127)] {
            let mut bytes = tile_bytes(&form, cols, &mut random, moderate);
            for block in 0..cols / GROUP {
                bytes[form.block_at(block)..][..lines + planes].fill(code);
            }
            let scales = random.floats(16 * cols / GROUP, 0.05);
            let input = Input::new(&vec![x; 16 * cols], &scales, 16, cols);
            let what = format!("{form:?}, codes {code}, activations {x}");
            let bytes = &bytes;
            all_agree(&what, &Tile { form, bytes }, &input.view());
        }
    }
}
