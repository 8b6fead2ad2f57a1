//! Checks the committed goldens on both backends, and the support matrix derived from them.

use super::{Context, Note};
use crate::command::program;
use crate::error::Error;

pub fn run(context: &Context) -> Result<Note, Error> {
    let goldens = context.build.programs()?.join("loquat-goldens");
    let judge = |args: &[&str]| program(context.root, &goldens, args).run();
    let matrix = ["--check-matrix", "docs/support.md"];
    let cpu = judge(&[&["--committed"][..], &matrix].concat());
    let is_mlx_cpu = context.build.is_mlx_cpu();
    let matrix = if is_mlx_cpu { &matrix[..] } else { &[] };
    let mlx = judge(&[&["--committed", "--backend", "mlx"], matrix].concat());
    cpu.and(mlx)?;
    Ok((!is_mlx_cpu).then(|| "MLX's part of the support matrix: NOT CHECKED".to_string()))
}
