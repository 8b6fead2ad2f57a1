//! The committed goldens on both backends, and the support matrix they give.

use super::{Context, Note, build};
use crate::error::Error;
use crate::goldens;

pub fn run(context: &Context) -> Result<Note, Error> {
    let judge = |args: &[&str]| {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        context
            .build
            .environment(goldens::judge(context.root, Some(build::FEATURES), &args))?
            .run()
    };
    let matrix = ["--check-matrix", "docs/support.md"];
    let cpu = judge(&[&["--committed"][..], &matrix].concat());
    let is_mlx_cpu = context.build.is_mlx_cpu();
    let matrix = if is_mlx_cpu { &matrix[..] } else { &[] };
    let mlx = judge(&[&["--committed", "--backend", "mlx"], matrix].concat());
    cpu.and(mlx)?;
    Ok((!is_mlx_cpu).then(|| "MLX's part of the support matrix: NOT CHECKED".to_string()))
}
