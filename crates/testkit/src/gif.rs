//! Animated GIFs, written without compression.

const PALETTE: [[u8; 3]; 4] = [[250, 30, 20], [20, 200, 60], [30, 40, 220], [240, 240, 90]];
/// Of a frame, in hundredths of a second.
const DELAY: u16 = 25;
/// Bits of a pixel; the two codes after the pixels' clear the table and end the image.
const PIXEL_BITS: u8 = 2;
const CLEAR: u8 = 1 << PIXEL_BITS;
const END: u8 = CLEAR + 1;

/// Blocks of four colours that move from frame to frame, four frames a second. Different `kind`s
/// show different colours.
pub fn animated_gif(width: u16, height: u16, frames: u16, kind: u16) -> Vec<u8> {
    let mut file = b"GIF89a".to_vec();
    let sizes = [width.to_le_bytes(), height.to_le_bytes()].concat();
    file.extend(&sizes);
    // A global table of four colours.
    file.extend([0x81, 0, 0]);
    file.extend(PALETTE.as_flattened());
    for frame in 0..frames {
        let [low, high] = DELAY.to_le_bytes();
        file.extend([0x21, 0xf9, 4, 0, low, high, 0, 0]);
        file.extend([0x2c, 0, 0, 0, 0]);
        file.extend(&sizes);
        file.extend([0, PIXEL_BITS]);
        let rows = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
        let pixels = rows.map(|(x, y)| ((x / 8 + kind * (y / 8) + frame + kind) % 4) as u8);
        for block in pack(pixels).chunks(255) {
            file.push(block.len() as u8);
            file.extend(block);
        }
        file.push(0);
    }
    file.push(0x3b);
    file
}

/// Codes of three bits. The table is cleared before it grows, so that their width never does.
fn pack(pixels: impl Iterator<Item = u8>) -> Vec<u8> {
    let codes = pixels.enumerate().flat_map(|(at, pixel)| {
        let clear = at.is_multiple_of(2).then_some(CLEAR);
        clear.into_iter().chain([pixel])
    });
    let (mut bytes, mut bits, mut filled) = (Vec::new(), 0u32, 0);
    for code in codes.chain([END]) {
        bits |= u32::from(code) << filled;
        filled += u32::from(PIXEL_BITS) + 1;
        while filled >= 8 {
            bytes.push(bits as u8);
            bits >>= 8;
            filled -= 8;
        }
    }
    bytes.push(bits as u8);
    bytes
}
