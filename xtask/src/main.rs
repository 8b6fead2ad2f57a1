//! Repository tasks, run as `cargo xtask <command>`: the project's rules, the golden judge, the
//! comparison with llama.cpp, and the test command that developers and CI share.
//!
//! It checks and reports; cargo builds, formats and lints. The only tracked file it writes is the
//! support matrix, on request.

mod arm64;
mod command;
mod compare;
mod cuda;
mod error;
mod goldens;
mod mlx;
mod packages;
mod test;
mod tidy;
mod tools;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use error::Error;

const USAGE: &str = "\
usage: cargo xtask <command>

  tidy                check the repository's rules
  test [options]      run every check that CI runs
    --only A[,B]      run only these stages
    --skip A[,B]      run all stages but these
    --full            run the long checks too (docs/testing.md)
    --list            list the stages
  goldens [options]   compare logits with those of reference implementations
    --help            list the options
  compare MODEL.gguf  benchmark loquat against llama.cpp, built for this machine
    --threads N       threads of both engines [default: all cores]
    --rounds R        rounds, each one process per engine [default: 5, or 2 with --quick]
    --quick           fewer and shorter workloads
    --json FILE       write all results as JSON
    --svg FILE        plot the speeds
  mlx [VARIANT]       download MLX for builds with the feature `mlx`: cpu, cuda13 or metal
                      [default: metal on macOS, cpu elsewhere]
  cuda                download the CUDA compiler for builds with the feature `cuda`
  arm64 [ARGS]        run cargo with these arguments for ARM64 Linux, programs emulated; on x86-64
                      Debian, as root [default: test the CPU kernels]
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(args: &[String]) -> Result<(), Error> {
    let root = repository_root();
    match args.split_first() {
        Some((command, [])) if command == "tidy" => tidy::run(&root),
        Some((command, [extra, ..])) if command == "tidy" => Err(Error::Usage {
            message: format!("tidy takes no arguments, got `{extra}`"),
        }),
        Some((command, rest)) if command == "test" => test::run(&root, rest),
        Some((command, rest)) if command == "goldens" => goldens::run(rest),
        Some((command, rest)) if command == "compare" => compare::run(&root, rest),
        Some((command, rest)) if command == "mlx" => mlx::run(&root, rest),
        Some((command, rest)) if command == "cuda" => cuda::run(&root, rest),
        Some((command, rest)) if command == "arm64" => arm64::run(&root, rest),
        Some((command, _)) if command == "help" || command == "--help" => {
            print!("{USAGE}");
            Ok(())
        }
        Some((command, _)) => Err(Error::Usage {
            message: format!("unknown command `{command}`\n{USAGE}"),
        }),
        None => Err(Error::Usage {
            message: format!("no command given\n{USAGE}"),
        }),
    }
}

/// The directory above this crate's, so that every command works from any subdirectory.
fn repository_root() -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_dir.parent().unwrap_or(crate_dir).to_path_buf()
}
