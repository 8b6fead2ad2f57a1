//! Against Pillow's and torchvision's pixels; `tests/images/make_images.py` wrote them.

use super::*;
use crate::limits::Limits;

fn image() -> Raster {
    let png = include_bytes!("../../tests/images/rgb.png");
    Raster::decode(png, &Limits::default()).unwrap()
}

#[test]
fn pixels_equal_those_of_pillow_and_torchvision() {
    let image = image();
    let mut reference = include_bytes!("../../tests/images/resize.bin").as_slice();
    for filter in [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos] {
        for (width, height) in [(7, 5), (24, 9), (50, 17), (61, 40), (2, 3)] {
            for arithmetic in [Arithmetic::Torchvision, Arithmetic::Pillow] {
                let ours = resize(&image, width, height, filter, arithmetic);
                let (expected, rest) = reference.split_at(ours.rgb().len());
                let name = format!("{filter:?} {width}x{height} {arithmetic:?}");
                assert!(ours.rgb() == expected, "{name}");
                reference = rest;
            }
        }
    }
    assert!(reference.is_empty());
}

#[test]
fn one_colour_stays_one_colour() {
    let image = Raster::from_parts(3, 5, [7, 130, 255].repeat(15));
    for number in 0..6 {
        let filter = Filter::from_pillow(number).unwrap();
        for arithmetic in [Arithmetic::Torchvision, Arithmetic::Pillow] {
            for (width, height) in [(1, 1), (2, 9), (300, 1), (3, 5)] {
                let resized = resize(&image, width, height, filter, arithmetic);
                let pixels = [7, 130, 255].repeat((width * height) as usize);
                assert!(resized.rgb() == pixels, "{filter:?} {width}x{height}");
            }
        }
    }
    assert_eq!(Filter::from_pillow(6), None);
}

#[test]
fn nearest_takes_pixel_centers() {
    let image = Raster::from_parts(4, 1, (0..4).flat_map(|n| [n; 3]).collect());
    let reds = |width| {
        let resized = resize(&image, width, 1, Filter::Nearest, Arithmetic::Torchvision);
        resized
            .rgb()
            .iter()
            .copied()
            .step_by(3)
            .collect::<Vec<u8>>()
    };
    assert_eq!(reds(2), [1, 3]);
    assert_eq!(reds(8), [0, 0, 1, 1, 2, 2, 3, 3]);
}
