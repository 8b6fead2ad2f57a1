//! Times the integer tiles of every instruction set of this machine on one thread, with weights
//! and activations in cache.
//!
//! `cargo run --release -p loquat-cpu-kernels --example tile_speed [instruction sets [formats]]`,
//! both separated by commas.
//!
//! Instruction sets alternate, and the best of many passes counts, so that other work on the
//! machine matters little.

use std::time::Instant;

use loquat_cpu_kernels::{
    ActivationBlock, Codes, Element, GROUP, Kernels, SUM_GROUP, SubScales, TILE_ROWS, Tile,
    TileFormat, TileInput, TilePair, supported,
};

const COLS: usize = 2048;
const TOKENS: [usize; 4] = [1, 2, 8, 128];
const PASSES: usize = 40;

fn main() {
    let mut args = std::env::args().skip(1);
    let (sets, names) = (args.next(), args.next());
    let listed = |names: &str, name: &str| names.split(',').any(|listed| listed == name);
    let mut tables = supported();
    tables.retain(|table| match &sets {
        Some(sets) => listed(sets, table.name),
        None => table.name != "portable",
    });
    let kernels: Vec<TileKernel> = tables
        .iter()
        .flat_map(|table| {
            let pair = table
                .tile_pair
                .map(|pair| TileKernel::Pair(table.name, pair));
            [Some(TileKernel::Single(table)), pair]
                .into_iter()
                .flatten()
        })
        .collect();
    let mut formats = Vec::from(formats());
    formats.retain(|(name, _)| names.as_ref().is_none_or(|names| listed(names, name)));
    println!("billion multiply-adds per second of one thread, best of {PASSES} passes");
    let columns: Vec<String> = TOKENS.iter().map(|n| format!(" {n} tokens |")).collect();
    println!("| format | instruction set |{}", columns.concat());
    println!("|---|---|{}", "---|".repeat(TOKENS.len()));
    for (name, form) in formats {
        let mut best = vec![[f64::INFINITY; TOKENS.len()]; kernels.len()];
        let bytes = vec![0x35; form.tile_bytes(COLS)];
        for _ in 0..PASSES {
            for (kernel, best) in kernels.iter().zip(&mut best) {
                for (tokens, best) in TOKENS.into_iter().zip(best) {
                    *best = best.min(kernel.seconds(&form, &bytes, tokens));
                }
            }
        }
        for (kernel, best) in kernels.iter().zip(best) {
            let speeds = TOKENS.iter().zip(best).map(|(tokens, seconds)| {
                let products = (tokens * COLS * TILE_ROWS * kernel.tiles()) as f64;
                format!(" {:.1} |", products / seconds / 1e9)
            });
            println!(
                "| {name} | {} |{}",
                kernel.name(),
                speeds.collect::<String>()
            );
        }
    }
}

/// What is timed.
enum TileKernel {
    Single(&'static Kernels),
    /// Two neighbouring tiles at once, of the named instruction set.
    Pair(&'static str, TilePair),
}

impl TileKernel {
    fn name(&self) -> String {
        match self {
            Self::Single(table) => table.name.to_owned(),
            Self::Pair(name, _) => format!("{name}, two tiles"),
        }
    }

    fn tiles(&self) -> usize {
        match self {
            Self::Single(_) => 1,
            Self::Pair(..) => 2,
        }
    }

    /// The time of one call.
    fn seconds(&self, form: &TileFormat, bytes: &[u8], tokens: usize) -> f64 {
        let codes: [i8; GROUP] = std::array::from_fn(|i| (i * 37 % 255) as i8);
        let block = ActivationBlock {
            codes: codes.map(|code| code.max(-127)),
            scale: 1e-3,
            ..ActivationBlock::default()
        };
        let input = TileInput {
            tokens,
            cols: COLS,
            stride: tokens,
            blocks: &vec![block; tokens * COLS / GROUP],
        };
        let stride = self.tiles() * TILE_ROWS;
        let mut out = vec![0.0; tokens * stride];
        let calls = (256 / tokens).max(2);
        let tile = Tile { form: *form, bytes };
        let mut started = Instant::now();
        for call in 0..=calls {
            // The first call fills the caches.
            if call == 1 {
                started = Instant::now();
            }
            // SAFETY: `supported` gave the table, and `out` holds sixteen values for every tile
            // and token.
            unsafe {
                match self {
                    Self::Single(table) => (table.tile)(&tile, &input, out.as_mut_ptr(), stride),
                    Self::Pair(_, pair) => pair(&[tile; 2], &input, out.as_mut_ptr(), stride),
                }
            }
        }
        started.elapsed().as_secs_f64() / calls as f64
    }
}

/// The formats that models use most.
fn formats() -> [(&'static str, TileFormat); 6] {
    let plain = TileFormat {
        codes: Codes::Four,
        group: GROUP,
        run: 1,
        scale: Element::F16,
        min: None,
        sub_scales: SubScales::None,
    };
    let minimums = TileFormat {
        min: Some(Element::F16),
        ..plain
    };
    let superblock = TileFormat {
        run: 8,
        sub_scales: SubScales::Unsigned,
        ..minimums
    };
    [
        ("Q4_0", plain),
        ("Q4_1", minimums),
        ("Q4_K", superblock),
        (
            "Q5_K",
            TileFormat {
                codes: Codes::Five,
                ..superblock
            },
        ),
        (
            "Q6_K",
            TileFormat {
                codes: Codes::Six,
                group: SUM_GROUP,
                run: 8,
                sub_scales: SubScales::Signed,
                ..plain
            },
        ),
        (
            "Q8_0",
            TileFormat {
                codes: Codes::Eight,
                ..plain
            },
        ),
    ]
}
