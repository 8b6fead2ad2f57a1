//! Integer tiles of every form that matrices are packed to.

use super::*;

/// Bytes of a tile's parts, before they are put together.
struct Bytes {
    lines: Vec<u8>,
    planes: Vec<u8>,
    scales: (Vec<u8>, Vec<u8>),
    mins: (Vec<u8>, Vec<u8>),
}

const ALL_CODES: [Codes; 5] = [
    Codes::Four,
    Codes::Fp4,
    Codes::Five,
    Codes::Six,
    Codes::Eight,
];
const ELEMENTS: [Element; 4] = [Element::F32, Element::F16, Element::Bf16, Element::HalfE8m0];

/// What a group's scale is made of.
#[derive(Clone, Copy, Debug)]
struct Form {
    codes: Codes,
    group: usize,
    element: Element,
    span: usize,
    /// Whether bytes multiply the elements, and whether they have signs.
    parts: Option<bool>,
    mins: bool,
}

/// Every combination that [`TileInput::check`] lets pass.
fn forms() -> Vec<Form> {
    let mut forms = Vec::new();
    for codes in ALL_CODES {
        for element in ELEMENTS {
            for (group, span, parts, mins) in [
                (32, 32, None, false),
                (32, 32, None, true),
                (32, 64, None, true),
                (32, 128, None, false),
                (32, 256, Some(false), true),
                (16, 256, Some(true), false),
                (16, 16, None, false),
            ] {
                forms.push(Form {
                    codes,
                    group,
                    element,
                    span,
                    parts,
                    mins,
                });
            }
        }
    }
    forms
}

impl Form {
    fn draw(&self, random: &mut Random, cols: usize) -> Bytes {
        let (lines, planes) = self.codes.block_bytes();
        let elements = cols.div_ceil(self.span) * TILE_ROWS;
        let parts = if self.parts.is_some() {
            cols / self.group
        } else {
            0
        } * TILE_ROWS;
        let mut scales = || {
            let values = random.floats(elements, 0.1);
            let bytes = values.iter().flat_map(|value| self.element_bytes(*value));
            (bytes.collect(), random.bytes(parts))
        };
        let (scales, mins) = (scales(), scales());
        Bytes {
            lines: random.bytes(cols / GROUP * lines),
            planes: random.bytes(cols / GROUP * planes),
            scales,
            mins,
        }
    }

    fn element_bytes(&self, value: f32) -> Vec<u8> {
        match self.element {
            Element::F32 => value.to_le_bytes().to_vec(),
            Element::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
            Element::Bf16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
            Element::HalfE8m0 => vec![120 + (value * 50.0) as i8 as u8],
        }
    }

    fn tile<'a>(&self, bytes: &'a Bytes) -> Tile<'a> {
        let scales = |(elements, parts): &'a (Vec<u8>, Vec<u8>)| Scales {
            element: self.element,
            span: self.span.trailing_zeros(),
            elements,
            parts: match self.parts {
                None => Parts::None,
                Some(false) => Parts::Unsigned(parts),
                Some(true) => Parts::Signed(parts),
            },
        };
        Tile {
            codes: self.codes,
            group: self.group,
            zero: if self.mins { 0 } else { 128 },
            lines: &bytes.lines,
            planes: &bytes.planes,
            scales: scales(&bytes.scales),
            mins: self.mins.then(|| scales(&bytes.mins)),
        }
    }
}

/// Rounded activations of some tokens, the extremes, -128 included, among them.
struct Input {
    codes: Vec<i8>,
    sums: Vec<i32>,
    scales: Vec<f32>,
    scaled_sums: Vec<f32>,
    tokens: usize,
    cols: usize,
}

impl Input {
    fn draw(random: &mut Random, tokens: usize, cols: usize) -> Self {
        let bytes = random.bytes(tokens * cols);
        let mut codes: Vec<i8> = bytes.iter().map(|byte| *byte as i8).collect();
        codes[..GROUP].fill(-128);
        let sum = |codes: &[i8]| codes.iter().map(|code| i32::from(*code)).sum();
        let sums: Vec<i32> = codes.chunks(SUM_GROUP).map(sum).collect();
        let scales = random.floats(tokens * cols / GROUP, 0.05);
        let scaled = scales.iter().zip(sums.chunks(2));
        let scaled_sums = scaled.map(|(scale, sums)| scale * (sums[0] + sums[1]) as f32);
        Self {
            scaled_sums: scaled_sums.collect(),
            codes,
            sums,
            scales,
            tokens,
            cols,
        }
    }

    fn view(&self) -> TileInput<'_> {
        TileInput {
            tokens: self.tokens,
            cols: self.cols,
            codes: &self.codes,
            scales: &self.scales,
            sums: &self.sums,
            scaled_sums: &self.scaled_sums,
        }
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

/// [`agree`] for tiles, with the stand-ins for instructions that this machine may not have.
fn all_agree(what: &str, tile: &Tile, input: &TileInput) {
    let expected = bits(&agree(what, |k| multiply(k, tile, input)));
    for table in stand_ins::tables() {
        let found = bits(&multiply(table, tile, input));
        assert_eq!(found, expected, "{what}: {} differs", table.name);
    }
}

#[test]
fn tiles_agree_for_every_form() {
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
        ] {
            let bytes = form.draw(&mut random, cols);
            let input = Input::draw(&mut random, tokens, cols);
            let what = format!("{form:?}, {cols} columns, {tokens} tokens");
            all_agree(&what, &form.tile(&bytes), &input.view());
        }
    }
}

/// Against sums of exact products in `f64`, which know nothing of blocks.
#[test]
fn tiles_are_right() {
    let mut random = Random(11);
    let (cols, tokens) = (320, 5);
    for form in forms() {
        let bytes = form.draw(&mut random, cols);
        let tile = form.tile(&bytes);
        let input = Input::draw(&mut random, tokens, cols);
        let found = multiply(supported()[0], &tile, &input.view());
        let mut expected = Vec::new();
        for token in 0..tokens {
            for row in 0..TILE_ROWS {
                let product = |col: usize| {
                    let code = f64::from(tile.code(row, col) - tile.zero);
                    let scale = f64::from(tile.scales.value(row, col, form.group));
                    let min = |mins: Scales| f64::from(mins.value(row, col, form.group));
                    let weight = code * scale + tile.mins.map_or(0.0, min);
                    let at = token * cols + col;
                    weight * f64::from(input.codes[at]) * f64::from(input.scales[at / GROUP])
                };
                expected.push((0..cols).map(product).sum());
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
    let extremes: [&[f32]; 2] = [
        &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX],
        &[1e-40, -1e-45, f32::MIN_POSITIVE, 0.0],
    ];
    for form in forms() {
        for values in extremes {
            let mut bytes = form.draw(&mut random, 256);
            let size = form.element.bytes();
            for (i, element) in bytes.scales.0.chunks_exact_mut(size).enumerate() {
                let value = form.element_bytes(values[i % values.len()]);
                match form.element {
                    Element::HalfE8m0 => element[0] = [0, 1, 254, 255][i % 4],
                    _ => element.copy_from_slice(&value),
                }
            }
            let input = Input::draw(&mut random, 9, 256);
            let what = format!("{form:?} {values:?}");
            all_agree(&what, &form.tile(&bytes), &input.view());
        }
    }
}

/// What saturates first where sums are too narrow.
#[test]
fn the_largest_codes_agree() {
    let mut random = Random(19);
    for form in forms() {
        for (code, x) in [(255, -128), (255, 127), (0, -128)] {
            let mut bytes = form.draw(&mut random, 64);
            bytes.lines.fill(code);
            bytes.planes.fill(code);
            let mut input = Input::draw(&mut random, 16, 64);
            input.codes.fill(x);
            input.sums.fill(i32::from(x) * SUM_GROUP as i32);
            let what = format!("{form:?}, codes {code}, activations {x}");
            all_agree(&what, &form.tile(&bytes), &input.view());
        }
    }
}
